"""The inner loops: one compiled chain per kind of model (theory §1, §10). Nothing else loops over steps."""
