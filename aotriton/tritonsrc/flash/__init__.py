"""Device code of the attention kernels."""
