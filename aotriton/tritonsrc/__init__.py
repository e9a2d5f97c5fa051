"""Device code: Triton kernels that import triton and nothing of this project but each other."""
