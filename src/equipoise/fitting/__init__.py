"""Searching for the minimiser: Newton, trust regions, restarts, and the certificate that it is one."""
