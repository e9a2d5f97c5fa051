"""On the GPU: launches an image through the library's host code, and times it."""
