"""Models: per-observation losses, and what they become once bound to data."""
