"""A package with kernels as people have them, for test_autotune_kernels.py."""
