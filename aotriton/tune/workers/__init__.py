"""What works for a run: processes that own a GPU, compilers, and the jobs that they are sent."""
