"""How the GEMM family is tuned."""

from aotriton.tune.gemm.tuning import GemmTuning

TUNING = GemmTuning()
