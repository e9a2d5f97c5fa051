"""What attention's kernels share: a module for each idea."""
