"""Losses of one row as scalar functions of its linear predictor, with three derivatives: what models and engines share."""
