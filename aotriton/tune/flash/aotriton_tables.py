"""From a row of the tuning tables that AOTriton publishes to a config in the terms of our descriptions.

Read from its releases 0.10 to 0.14 (github.com/ROCm/aotriton): a table for each kernel, a row for each product, element
type, head dim, mask and pair of lengths, with the config that won there. No table has the time of a config.
"""

from __future__ import annotations

from collections.abc import Mapping

from aotriton.rules.checked import count, text
from aotriton.rules.flash.backward import ATTN_BWD_DK_DV, ATTN_BWD_DQ
from aotriton.rules.flash.common import HEAD_DIM_PORTABLE, LEVEL, MOST_PLAIN, PLAIN
from aotriton.rules.flash.forward import ATTN_FWD
from aotriton.rules.kernel import Value
from aotriton.tune.dataset.published import Published

TABLES = {
    "FLASH$attn_fwd": ATTN_FWD,
    "FLASH$bwd_kernel_dk_dv": ATTN_BWD_DK_DV,
    "FLASH$bwd_kernel_dq": ATTN_BWD_DQ,
}
# What its other tables are about.
OTHERS = {
    "FLASH$bwd_kernel_fuse": "of a kernel that we do not have",
    # In some releases they have TFLOP/s, but neither batch nor heads nor a time.
    "FLASH$op_attn_fwd": "which of AOTriton's own backends serves a call",
    "FLASH$op_attn_bwd": "which of AOTriton's own backends serves a call",
}

DTYPES = {"torch.float16": "fp16", "torch.bfloat16": "bf16"}
CAUSAL = {0: False, 3: True}  # 3: a window, and the one that its tuner measures is the causal one
# What our kernels cannot do.
ABSENT = ("ENABLE_DROPOUT", "BIAS_TYPE", "PADDED_HEAD", "USE_ALIBI", "INT8", "INT8_KV", "USE_P_SCALE")
PERSISTENT_ONLY = ("GRID_CU_MULTIP",)  # says nothing of a kernel that is not persistent


def translate(table: str, row: Mapping[str, object]) -> Published | str:
    """What the row says, or why we cannot say it. ValueError, with the column, where the row is none of AOTriton's."""
    if table in OTHERS:
        return OTHERS[table]
    kernel, inputs, config = TABLES[table], _group(row, "inputs"), _group(row, "tuned_kernel")
    arch, _, variant = text("gpu", _of(row, "gpu")).partition("_")
    if arch not in kernel.archs or variant != "mod0":
        return f"of {arch}, which we do not have" if variant == "mod0" else f"of another product, {arch}_{variant}"
    if (dtype := text("inputs$Q_dtype", _of(inputs, "Q_DTYPE"))) not in DTYPES:
        return f"of element type {dtype}"
    for name in ABSENT:
        if inputs.get(name):
            return f"with {name}"
    numbers = {name: count(f"inputs${name}", _of(inputs, name)) for name in ("CAUSAL_TYPE", HEAD_DIM_PORTABLE.name)}
    keys = {name: count(f"inputs${name}", _of(inputs, name.upper())) for name in ("max_seqlen_q", "max_seqlen_k")}
    if numbers["CAUSAL_TYPE"] not in CAUSAL:
        return f"with CAUSAL_TYPE {numbers['CAUSAL_TYPE']}"
    width = numbers[HEAD_DIM_PORTABLE.name]
    if width not in HEAD_DIM_PORTABLE.values:
        return "of a head dim that we pad"
    if width > MOST_PLAIN:
        return "of a head dim of which we have no images for plain calls"
    if any(keys[key.name] not in key.representatives for key in kernel.tuning_keys if key.name in keys):
        return "of lengths within a bin, of which another row is the representative"
    tunables = {name: count(f"tuned_kernel${name}", config[name]) for name in config if name not in PERSISTENT_ONLY}
    for name in [name for name in tunables if name not in kernel.tunable_names]:
        if tunables.pop(name):
            return f"with {name}, which our kernel does not have"
    options = _group(row, "compiler_options")
    compile_options = {name: count(f"compiler_options${name}", options[name]) for name in options}
    choices: dict[str, Value]
    choices = {"T": DTYPES[dtype], HEAD_DIM_PORTABLE.name: width, "CAUSAL": CAUSAL[numbers["CAUSAL_TYPE"]]}
    choices[LEVEL.name] = PLAIN
    return Published(kernel, arch, choices, keys, tunables, compile_options)


def _group(row: Mapping[str, object], group: str) -> dict[str, object]:
    """The columns ``group$name`` by their names; of inputs in capitals, as its tables differ in how they spell them."""
    found = {name.partition("$")[2]: value for name, value in row.items() if name.startswith(f"{group}$")}
    return {name.upper(): value for name, value in found.items()} if group == "inputs" else found


def _of(row: Mapping[str, object], name: str) -> object:
    if name not in row:
        raise ValueError(f"there is no column {name}: tables of AOTriton 0.10 to 0.14 are known")
    return row[name]
