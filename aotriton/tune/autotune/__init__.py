"""Autotuning of kernels that have no family yet: one is written for them, and is tuned as every other one."""
