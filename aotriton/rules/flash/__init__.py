"""The attention family: forward and backward."""

from aotriton.rules.flash import backward, forward

OPERATORS = (forward.OPERATOR, backward.OPERATOR)
