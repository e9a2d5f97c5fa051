"""The GEMM kernels: a file each, which has the name of its kernel and of the function in it."""
