"""The attention family: forward, and backward as preprocess, dk_dv and dq."""

from __future__ import annotations

from aotriton.rules.binning import MAX_SEQLEN_K, MAX_SEQLEN_Q, WAVES
from aotriton.rules.kernel import (
    Backend,
    Choice,
    Constexpr,
    KernelDescription,
    Operator,
    Scalar,
    Stride,
    Tensor,
    kernels_of,
)
from aotriton.rules.target import ADDRESSING

FAMILY = "flash"

T = Choice("T", "type", ("fp16", "bf16"))
HEAD_DIM = Choice("BLOCK_DMODEL", "feature", (32, 64, 128, 256))  # the head dim, padded to the next of these
CAUSAL = Choice("CAUSAL", "feature", (False, True))
ACCESS = Choice("ADDRESSING", "feature", ADDRESSING)
DESCRIPTOR = Choice("ADDRESSING", "feature", ("descriptor",))

Q_TILE = (1, 1, "BLOCK_M", "BLOCK_DMODEL")
K_TILE = (1, 1, "BLOCK_N", "BLOCK_DMODEL")


def _strides(*tensors: str) -> tuple[Stride, ...]:
    """Batch, head and row strides of tensors laid out as [batch, heads, seqlen, head_dim]."""
    return tuple(Stride(tensor, dim) for tensor in tensors for dim in ("b", "h", "s"))


SIZES = (
    Scalar("num_heads_q", "i32"),
    Scalar("num_heads_k", "i32"),
    Scalar("max_seqlen_q", "i32"),
    Scalar("max_seqlen_k", "i32"),
    Scalar("head_dim", "i32", multiple_of=8),
)

ATTN_FWD = KernelDescription(
    name="attn_fwd",
    family=FAMILY,
    arguments=(
        Tensor("Q", 4, block=Q_TILE),
        Tensor("K", 4, block=K_TILE),
        Tensor("V", 4, block=K_TILE),
        Tensor("Out", 4, block=Q_TILE),
        Tensor("L", 3, dtype="fp32"),
        Scalar("store_lse", "i32"),
        Scalar("sm_scale", "fp32"),
        *_strides("Q", "K", "V", "Out"),
        *SIZES,
        *map(Constexpr, ("BLOCK_M", "BLOCK_N", "BLOCK_DMODEL", "CAUSAL", "ADDRESSING")),
    ),
    choices=(T, HEAD_DIM, CAUSAL, ACCESS),
    # A warp group of four warps owns 64 rows of a product, so no smaller BLOCK_M on Hopper. Two stages keep one tile
    # under way while the other is used. gfx942: only BLOCK_N 16 with eight warps fits head dim 256, general.
    psels={
        "cuda": {"BLOCK_M": (64, 128), "BLOCK_N": (32, 64, 128)},
        "hip": {"BLOCK_M": (64, 128), "BLOCK_N": (16, 32, 64)},
    },
    copts={
        "cuda": {"num_warps": (4, 8), "num_stages": (2, 3, 4)},
        "hip": {"num_warps": (4, 8), "num_stages": (1,), "waves_per_eu": (1, 2)},
    },
    tuning_keys=(MAX_SEQLEN_Q, MAX_SEQLEN_K, WAVES),
    tiled_axis="q",
)

Q_ROWS = (1, 1, 64, "BLOCK_DMODEL")  # of one consumer: what a warp group multiplies at once

ATTN_FWD_HOPPER = KernelDescription(
    name="attn_fwd_hopper",
    family=FAMILY,
    arguments=(
        Tensor("Q", 4, block=Q_ROWS),
        Tensor("K", 4, block=K_TILE),
        Tensor("V", 4, block=K_TILE),
        Tensor("Out", 4, block=Q_ROWS),
        Tensor("L", 3, dtype="fp32"),
        Scalar("store_lse", "i32"),
        Scalar("sm_scale", "fp32"),
        *SIZES,
        Scalar("batch", "i32"),
        *map(Constexpr, ("BLOCK_N", "CONSUMERS", "STAGES", "BLOCK_DMODEL", "CAUSAL")),
        *map(Constexpr, ("GROUP_ROUNDS", "OUT_IN_Q", "Q_IN_REGISTERS", "EARLY_WAIT")),
    ),
    choices=(T, HEAD_DIM, CAUSAL, DESCRIPTOR),
    psels={
        "cuda": {
            "BLOCK_N": (64, 128),
            "CONSUMERS": (1, 2, 3),
            "STAGES": (2, 3, 4, 5, 6),
            "GROUP_ROUNDS": (0, 2, 4),
            "OUT_IN_Q": (0, 1),
            "Q_IN_REGISTERS": (0, 1),
            "EARLY_WAIT": (0, 1),
        },
    },
    # Four warps are the first consumer; the compiler adds the others. Each thread begins with maxnreg registers: the
    # consumers take over what the producer does not need.
    copts={"cuda": {"num_warps": (4,), "maxnreg": (128, 168)}},
    tuning_keys=(MAX_SEQLEN_Q, MAX_SEQLEN_K, WAVES),
    tiled_axis="q",
    archs=("sm_90",),
    gluon=True,
)

ATTN_BWD_PREPROCESS = KernelDescription(
    name="attn_bwd_preprocess",
    family=FAMILY,
    arguments=(
        Tensor("Out", 4),
        Tensor("DO", 4),
        Tensor("Delta", 3, dtype="fp32"),
        *_strides("Out", "DO"),
        Scalar("num_heads_q", "i32"),
        Scalar("max_seqlen_q", "i32"),
        Scalar("head_dim", "i32", multiple_of=8),
        *map(Constexpr, ("BLOCK_M", "BLOCK_DMODEL", "ADDRESSING")),
    ),
    choices=(T, HEAD_DIM, ACCESS),
    psels={"cuda": {"BLOCK_M": (32, 64, 128)}, "hip": {"BLOCK_M": (32, 64, 128)}},
    copts={
        "cuda": {"num_warps": (4, 8), "num_stages": (1,)},
        "hip": {"num_warps": (4,), "num_stages": (1,), "waves_per_eu": (0,)},
    },
    tuning_keys=(MAX_SEQLEN_Q,),
    tiled_axis="q",
)

ATTN_BWD_DK_DV = KernelDescription(
    name="attn_bwd_dk_dv",
    family=FAMILY,
    arguments=(
        Tensor("Q", 4, block=Q_TILE),
        Tensor("K", 4, block=K_TILE),
        Tensor("V", 4, block=K_TILE),
        Tensor("DO", 4, block=Q_TILE),
        Tensor("DK", 4, block=K_TILE),
        Tensor("DV", 4, block=K_TILE),
        Tensor("L", 3, dtype="fp32"),
        Tensor("Delta", 3, dtype="fp32"),
        Scalar("sm_scale", "fp32"),
        *_strides("Q", "K", "V", "DO", "DK", "DV"),
        *SIZES,
        *map(Constexpr, ("BLOCK_M", "BLOCK_N", "BLOCK_DMODEL", "CAUSAL", "ADDRESSING")),
    ),
    choices=(T, HEAD_DIM, CAUSAL, ACCESS),
    # Two accumulators of BLOCK_N x BLOCK_DMODEL stay in registers: head dim 256 leaves room for BLOCK_N 64 at most, and
    # with general addressing, whose pointers take registers too, for 32.
    psels={
        "cuda": {"BLOCK_M": (32, 64, 128), "BLOCK_N": (32, 64, 128)},
        "hip": {"BLOCK_M": (16, 32, 64), "BLOCK_N": (32, 64)},
    },
    copts={
        "cuda": {"num_warps": (4, 8), "num_stages": (2, 3)},
        # More than one wave for each SIMD would spill, or fits anyway. Eight warps serve head dim 256, general.
        "hip": {"num_warps": (4, 8), "num_stages": (1,), "waves_per_eu": (1,)},
    },
    tuning_keys=(MAX_SEQLEN_Q, MAX_SEQLEN_K, WAVES),
    tiled_axis="k",
)

ATTN_BWD_DQ = KernelDescription(
    name="attn_bwd_dq",
    family=FAMILY,
    arguments=(
        Tensor("Q", 4, block=Q_TILE),
        Tensor("K", 4, block=K_TILE),
        Tensor("V", 4, block=K_TILE),
        Tensor("DO", 4, block=Q_TILE),
        Tensor("DQ", 4, block=Q_TILE),
        Tensor("L", 3, dtype="fp32"),
        Tensor("Delta", 3, dtype="fp32"),
        Scalar("sm_scale", "fp32"),
        *_strides("Q", "K", "V", "DO", "DQ"),
        *SIZES,
        *map(Constexpr, ("BLOCK_M", "BLOCK_N", "BLOCK_DMODEL", "CAUSAL", "ADDRESSING")),
    ),
    choices=(T, HEAD_DIM, CAUSAL, ACCESS),
    # Hopper: fewer rows than a warp group's 64 are the only ones that fit with head dim 256, general.
    psels={
        "cuda": {"BLOCK_M": (32, 64, 128), "BLOCK_N": (32, 64, 128)},
        "hip": {"BLOCK_M": (32, 64), "BLOCK_N": (16, 32, 64)},
    },
    copts={
        "cuda": {"num_warps": (4, 8), "num_stages": (2, 3)},
        # More than one wave for each SIMD would spill, or fits anyway. Eight warps serve head dim 256, general.
        "hip": {"num_warps": (4, 8), "num_stages": (1,), "waves_per_eu": (1,)},
    },
    tuning_keys=(MAX_SEQLEN_Q, MAX_SEQLEN_K, WAVES),
    tiled_axis="q",
)

KEY_ROWS = (1, 1, 128, "BLOCK_DMODEL")  # of a program: 64 for each of its two warp groups
# A warp group's registers have no room for its share of DK and DV at head dim 256.
HEAD_DIM_FUSED = Choice("BLOCK_DMODEL", "feature", (32, 64, 128))

ATTN_BWD_HOPPER_PREPARE = KernelDescription(
    name="attn_bwd_hopper_prepare",
    family=FAMILY,
    arguments=(
        Tensor("Out", 4),
        Tensor("DO", 4),
        Tensor("Delta", 3, dtype="fp32"),
        Tensor("DQSum", 4, dtype="fp32"),
        *_strides("Out", "DO"),
        Scalar("num_heads_q", "i32"),
        Scalar("max_seqlen_q", "i32"),
        Scalar("head_dim", "i32", multiple_of=8),
        *map(Constexpr, ("BLOCK_M", "BLOCK_DMODEL")),
    ),
    choices=(T, HEAD_DIM_FUSED, DESCRIPTOR),
    psels={"cuda": {"BLOCK_M": (32, 64, 128)}},
    copts={"cuda": {"num_warps": (4, 8), "num_stages": (1,)}},
    tuning_keys=(MAX_SEQLEN_Q,),
    tiled_axis="q",
    archs=("sm_90",),
)

ATTN_BWD_HOPPER = KernelDescription(
    name="attn_bwd_hopper",
    family=FAMILY,
    arguments=(
        Tensor("Q", 4, block=Q_TILE),
        Tensor("K", 4, block=KEY_ROWS),
        Tensor("V", 4, block=KEY_ROWS),
        Tensor("DO", 4, block=Q_TILE),
        Tensor("DK", 4, block=KEY_ROWS),
        Tensor("DV", 4, block=KEY_ROWS),
        Tensor("DQSum", 4, dtype="fp32", block=Q_TILE),
        Tensor("L", 3, dtype="fp32"),
        Tensor("Delta", 3, dtype="fp32"),
        Scalar("sm_scale", "fp32"),
        *SIZES,
        *map(Constexpr, ("BLOCK_M", "BLOCK_DMODEL", "CAUSAL")),
    ),
    choices=(T, HEAD_DIM_FUSED, CAUSAL, DESCRIPTOR),
    psels={"cuda": {"BLOCK_M": (64, 128)}},
    copts={"cuda": {"num_warps": (8,), "maxnreg": (168,)}},
    tuning_keys=(MAX_SEQLEN_Q, MAX_SEQLEN_K, WAVES),
    tiled_axis="k",
    archs=("sm_90",),
    gluon=True,
)

ATTN_BWD_HOPPER_FINISH = KernelDescription(
    name="attn_bwd_hopper_finish",
    family=FAMILY,
    arguments=(
        Tensor("DQSum", 4, dtype="fp32"),
        Tensor("DQ", 4),
        Scalar("sm_scale", "fp32"),
        *_strides("DQSum", "DQ"),
        Scalar("max_seqlen_q", "i32"),
        Scalar("head_dim", "i32", multiple_of=8),
        *map(Constexpr, ("BLOCK_M", "BLOCK_DMODEL")),
    ),
    choices=(T, HEAD_DIM_FUSED, DESCRIPTOR),
    psels={"cuda": {"BLOCK_M": (32, 64, 128)}},
    copts={"cuda": {"num_warps": (4, 8), "num_stages": (1,)}},
    tuning_keys=(MAX_SEQLEN_Q,),
    tiled_axis="q",
    archs=("sm_90",),
)

# At head dim 256 products are cheaper than the traffic of adding up dQ: two kernels, as in the portable backend.
HEAD_DIM_SPLIT = Choice("BLOCK_DMODEL", "feature", (256,))
KEY_ROWS_SPLIT = (1, 1, 64, "BLOCK_DMODEL")

ATTN_BWD_HOPPER_DK_DV = KernelDescription(
    name="attn_bwd_hopper_dk_dv",
    family=FAMILY,
    arguments=(
        Tensor("Q", 4, block=Q_TILE),
        Tensor("K", 4, block=KEY_ROWS_SPLIT),
        Tensor("V", 4, block=KEY_ROWS_SPLIT),
        Tensor("DO", 4, block=Q_TILE),
        Tensor("DK", 4, block=KEY_ROWS_SPLIT),
        Tensor("DV", 4, block=KEY_ROWS_SPLIT),
        Tensor("L", 3, dtype="fp32"),
        Tensor("Delta", 3, dtype="fp32"),
        Scalar("sm_scale", "fp32"),
        *SIZES,
        *map(Constexpr, ("BLOCK_M", "BLOCK_DMODEL", "CAUSAL")),
    ),
    choices=(T, HEAD_DIM_SPLIT, CAUSAL, DESCRIPTOR),
    psels={"cuda": {"BLOCK_M": (64,)}},
    copts={"cuda": {"num_warps": (8,), "maxnreg": (168,)}},
    tuning_keys=(MAX_SEQLEN_Q, MAX_SEQLEN_K, WAVES),
    tiled_axis="k",
    archs=("sm_90",),
    gluon=True,
)

ATTN_BWD_HOPPER_DQ = KernelDescription(
    name="attn_bwd_hopper_dq",
    family=FAMILY,
    arguments=(
        Tensor("Q", 4, block=Q_ROWS),
        Tensor("K", 4, block=K_TILE),
        Tensor("V", 4, block=K_TILE),
        Tensor("DO", 4, block=Q_ROWS),
        Tensor("DQ", 4, block=Q_ROWS),
        Tensor("L", 3, dtype="fp32"),
        Tensor("Delta", 3, dtype="fp32"),
        Scalar("sm_scale", "fp32"),
        *SIZES,
        *map(Constexpr, ("BLOCK_N", "BLOCK_DMODEL", "CAUSAL")),
    ),
    choices=(T, HEAD_DIM_SPLIT, CAUSAL, DESCRIPTOR),
    psels={"cuda": {"BLOCK_N": (64,)}},
    copts={"cuda": {"num_warps": (4,), "maxnreg": (168,)}},
    tuning_keys=(MAX_SEQLEN_Q, MAX_SEQLEN_K, WAVES),
    tiled_axis="q",
    archs=("sm_90",),
    gluon=True,
)

OPERATORS = (
    Operator("attn_fwd", FAMILY, (Backend("portable", (ATTN_FWD,)), Backend("hopper", (ATTN_FWD_HOPPER,)))),
    Operator(
        "attn_bwd",
        FAMILY,
        (
            Backend("portable", (ATTN_BWD_PREPROCESS, ATTN_BWD_DK_DV, ATTN_BWD_DQ)),
            Backend("hopper", (ATTN_BWD_HOPPER_PREPARE, ATTN_BWD_HOPPER, ATTN_BWD_HOPPER_FINISH)),
            Backend("hopper_split", (ATTN_BWD_PREPROCESS, ATTN_BWD_HOPPER_DK_DV, ATTN_BWD_HOPPER_DQ)),
        ),
    ),
)

KERNELS = kernels_of(OPERATORS)


def kernel(name: str) -> KernelDescription:
    """The description of kernel ``name``; ValueError names the kernels that exist."""
    for description in KERNELS:
        if description.name == name:
            return description
    raise ValueError(f"unknown kernel {name!r}: choose from {', '.join(k.name for k in KERNELS)}")
