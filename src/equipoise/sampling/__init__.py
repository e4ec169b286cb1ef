"""Running chains, whatever the engine: the run, its draws, checkpoints, and the closed loop."""
