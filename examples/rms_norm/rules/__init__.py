"""rms_norm: out = x / sqrt(mean(x²) + eps) * weight, for each row of x."""

from aotriton.rules.arch import ADDRESSING
from aotriton.rules.binning import TuningKey
from aotriton.rules.expression import addressing, constant, dtype, scalar, size, tiles
from aotriton.rules.kernel import (
    Choice,
    Constexpr,
    KernelDescription,
    Number,
    Operand,
    Restriction,
    Tensor,
    by_vendor,
    strides,
)
from aotriton.rules.operators import Backend, Operator, Scalar

# What a caller gives. Sizes are named by the operands that have them.
X = Operand("x", ("rows", "width"))
WEIGHT = Operand("weight", ("width",), contiguous=True)
OUT = Operand("out", ("rows", "width"), written=True)

RMS_NORM = KernelDescription(
    name="rms_norm",
    family="rms_norm",
    # In the order of the kernel's own arguments.
    arguments=(
        Tensor("X", X),
        Tensor("Weight", WEIGHT),
        Tensor("Out", OUT),
        *strides("r", "X", "Out"),
        Number("eps", "fp32", scalar("eps")),
        Number("rows", "i32", size("rows")),
        Number("width", "i32", size("width")),
        *map(Constexpr, ("ROWS", "WIDTH")),
    ),
    # What a call pins: an image is compiled for each combination.
    choices=(
        Choice("T", ("fp16", "bf16"), dtype(), measured_as="bf16", small="bf16", option="dtype"),
        Choice("WIDTH", (1024, 4096, 8192), size("width"), round_up=True, option="width"),
        Choice("ADDRESSING", ADDRESSING, addressing(), borrows=True, option="addressing"),
    ),
    # What the tuner picks; ``more`` is what only a search tries.
    tunables=by_vendor(more={"cuda": {"ROWS": (16, 32)}}, cuda={"ROWS": (1, 2, 4, 8)}, hip={"ROWS": (1, 2, 4)}),
    compile_options=by_vendor(
        more={"cuda": {"num_warps": (32,)}},
        cuda={"num_warps": (1, 2, 4, 8, 16)},
        hip={"num_warps": (1, 2, 4, 8, 16), "waves_per_eu": (0,)},
    ),
    # The winner may differ from bin to bin.
    tuning_keys=(TuningKey("rows", (256, 8192), size("rows"), "rows"),),
    grid=(tiles("rows", "ROWS"), constant(1), constant(1)),
    restrictions=(
        Restriction(
            "a thread would hold more than 64 elements",
            lambda functional, keys, config: (
                config["ROWS"] * int(functional["WIDTH"]) > 64 * config["num_warps"] * functional.arch_spec.warp_size
            ),
            certain=False,
        ),
        Restriction(
            "a thread would hold fewer than 4 elements",
            lambda functional, keys, config: (
                config["ROWS"] * int(functional["WIDTH"]) < 4 * config["num_warps"] * functional.arch_spec.warp_size
            ),
            certain=False,
        ),
        Restriction(
            "a thread would hold more elements than it has registers",
            lambda functional, keys, config: (
                config["ROWS"] * int(functional["WIDTH"])
                > functional.arch_spec.thread_registers * config["num_warps"] * functional.arch_spec.warp_size
            ),
        ),
    ),
)

OPERATORS = (
    Operator(
        name="rms_norm",
        family="rms_norm",
        operands=(X, WEIGHT, OUT),
        scalars=(Scalar("eps", "fp32", 1e-6),),
        backends=(Backend("portable", (RMS_NORM,)),),
    ),
)
