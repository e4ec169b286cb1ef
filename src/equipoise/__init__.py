"""Equipoise: calibrated stochastic-gradient MCMC."""
