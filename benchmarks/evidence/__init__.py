"""Evidence of calibration: do the intervals that are printed cover, and are the posterior's draws the posterior's?

`python -m benchmarks.evidence coverage` and `python -m benchmarks.evidence ranks` measure, and go on where they stopped;
`python -m benchmarks.evidence page` writes tables and figures into the documentation.
"""
