"""The engine of losses of your own: a loop compiled by JAX."""
