"""Strategies choose which configs of a problem are measured: the tuner asks them for configs and reports the trials."""
