"""Device code of the made-up family."""
