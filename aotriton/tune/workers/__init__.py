"""The workers of a run: processes that own a GPU, compilers, and the jobs that are sent to them."""
