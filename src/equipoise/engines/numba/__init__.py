"""The engine of linear-predictor losses: a loop written in vectors, compiled by Numba."""
