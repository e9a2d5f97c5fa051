"""A made-up family outside of the tree, so that tests do not move when the real kernels do."""
