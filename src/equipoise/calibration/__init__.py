"""From a problem to calibrated draws: the plan, the one call, diagnosis, accuracy and storage."""
