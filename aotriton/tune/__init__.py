"""Measurement: from problems and candidates to rows of the tuning database."""
