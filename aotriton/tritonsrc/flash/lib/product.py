"""Products of tiles, as exact as their operands."""

import triton
import triton.language as tl


@triton.jit
def product(a, b, add, BF16_PRODUCTS: tl.constexpr):
    """[rows, columns] in fp32: the product of ``a``, [rows, depth], and ``b``, [depth, columns], and ``add``, if any.

    Of fp32, with BF16_PRODUCTS 6: tensor cores have no fp32, or are slow at it. A number of fp32 is the sum of three of
    bf16, and six products of these are as exact as one of fp32 (Henry, Tang and Heinecke, 2019).
    """
    if a.dtype != tl.float32:
        return tl.dot(a, b, add)
    elif BF16_PRODUCTS == 6:
        return tl.dot(a, b, add, input_precision="bf16x6")
    else:
        return tl.dot(a, b, add, input_precision="ieee")


@triton.jit
def waited_for(sums):
    """The sums of a product, fp32, which the compiler waits for here: not only as what the next product adds to.

    With a product under way through a branch, ptxas would serialise all of them (C7515).
    """
    return sums.to(tl.int32, bitcast=True).to(tl.float32, bitcast=True)
