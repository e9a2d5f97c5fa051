"""A run: asks strategies for configs, has them compiled and measured by workers, and writes rows."""
