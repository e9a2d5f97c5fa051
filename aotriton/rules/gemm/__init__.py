"""The GEMM family: D = act(alpha A B + bias)."""

from aotriton.rules.gemm import operator

OPERATORS = (operator.OPERATOR,)
