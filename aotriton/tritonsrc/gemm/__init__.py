"""Device code of the GEMM family."""
