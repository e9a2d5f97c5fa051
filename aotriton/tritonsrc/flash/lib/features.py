"""Features: which of them a call has, as bits of the number `features` that images with features take."""

import triton
import triton.language as tl

# The bits of the table in rules/flash/features.py.
ALIBI = tl.constexpr(1)
SINKS = tl.constexpr(2)
PACKED = tl.constexpr(4)  # sequences follow each other along the rows, and cu_seqlens says where each begins
USED_Q = tl.constexpr(8)  # seqused_q says how many rows of a sequence count
USED_K = tl.constexpr(16)
OWN_LAST = tl.constexpr(32)  # lo and hi are relative to the key that is as far from the last as the row is
BIAS = tl.constexpr(64)
DROPOUT = tl.constexpr(128)
DBIAS = tl.constexpr(256)
SOFTCAP = tl.constexpr(512)

UNUSED = tl.constexpr(1 << 16)  # `features` has no bits from here on

FULL = tl.constexpr(5)  # the level whose images have bias and dropout


@triton.jit
def has(features, bits, step):
    """Whether any of the bits is set, as a question of the step of a loop.

    The answer is the same in each step. The compiler must not know: it would make a copy of the loop for each answer.
    """
    return (features & (bits | (step * UNUSED))) != 0
