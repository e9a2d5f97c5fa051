"""The GEMM family: D = act(alpha A B + bias)."""

from aotriton.rules.gemm import operator

OPERATORS = (operator.OPERATOR,)

# Parameters of the reference's functions have other names since.
EARLIER_JUDGES = {
    "gemm": ("b1918fd68a64ec97",),
    "gemm_hopper": ("8c731489cead2ed5",),
    "gemm_hopper_split": ("2f26b85c6be4b11c",),
    "gemm_reduce": ("8eeece0414a44323",),
}
