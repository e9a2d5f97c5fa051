"""Kernels of public packages, each declared as ``aotriton.autotune`` wants it: one module for each package."""
