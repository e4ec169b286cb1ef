"""The discrete-time theory of SG(L)D: NumPy and SciPy only, no data and no models."""
