"""Zero that the compiler takes for a number of a loop's step."""

import triton
import triton.language as tl

from aotriton.tritonsrc.flash.lib.features import UNUSED


@triton.jit
def zero(features, step):
    """Zero. What it is added to is worked out in each step that needs it, and does not stay in registers."""
    return (features & (step * UNUSED)).to(tl.int32)
