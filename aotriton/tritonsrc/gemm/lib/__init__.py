"""What the GEMM kernels share."""
