"""What a machine has."""

FAST = False
