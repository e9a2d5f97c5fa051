"""The attention family: forward and backward, and what writes the caches of keys and values."""

from aotriton.rules.family import Shared
from aotriton.rules.flash import append, backward, features, forward, split

OPERATORS = (forward.OPERATOR, backward.OPERATOR, append.OPERATOR)
SHARED: Shared = {**features.SHARED, "kPageStep": split.PAGE_STEP}

# The reference has gained the kernels that split keys and those of a plan since, and says the same of the others; the
# splits of calls whose lengths are in device memory have become more, which no measured call has.
EARLIER_JUDGES = {
    "attn_fwd": ("b087552c1fe65492", "3bed8bc7e5380483"),
    "attn_fwd_hopper": ("7a8e3f566f7cb9fe",),
    "attn_fwd_hopper_slim": ("8c1ddac9f96fd143",),
    "attn_fwd_slim": ("3bed8bc7e5380483",),
    "attn_fwd_hopper_features": ("f8298291e0b0d534", "be7ad5919ae00ea2"),
    "attn_fwd_decode": ("166e9e85e4b38964", "70568b32c12e4024"),
    "attn_fwd_combine": ("fdc260db291c4f58",),
    "attn_fwd_split": ("166e9e85e4b38964", "70568b32c12e4024"),
    "attn_bwd_preprocess": ("9758b402bd6845b3", "83dc3c856e63c642"),
    "attn_bwd_dk_dv": ("555f6386e921f8b7", "1952e9c0c8e05be1"),
    "attn_bwd_dq": ("0e1c88baa376e08d", "766022709808729b"),
    "attn_bwd_hopper_prepare": ("2f8710faa62e4705",),
    "attn_bwd_hopper_pair": ("2582fa09f0e9666a",),
    "attn_bwd_hopper_finish": ("ade8a0ac30ad8687",),
    "attn_bwd_hopper_shares": ("6be9e56d3b1221e8",),
    "attn_bwd_hopper_shares_finish": ("2a0c1ecc56ddf963",),
    "attn_bwd_hopper_heads": ("e0d8174b636abe15",),
    "attn_bwd_hopper_parts_prepare": ("d3ac024f72daa8f2",),
    "attn_bwd_hopper_parts": ("e43cbc9a591f2ecd",),
    "attn_bwd_hopper_parts_finish": ("565bc339ea3f5a18",),
    "attn_bwd_hopper_pair_slim": ("b055a4b6b0efb393",),
    "attn_bwd_hopper_dk_dv": ("0d933c0eeb02a1dd",),
    "attn_bwd_hopper_dq": ("8213a5171479453d",),
    "attn_bwd_hopper_dq_slim": ("bbe425b4b18f30fb",),
    "attn_bwd_hopper_split_prepare": ("343a53e01801ed94",),
    "attn_bwd_hopper_dk_dv_parts": ("7b5c8e0089c1f0b6",),
    "attn_bwd_hopper_split_finish": ("d5803c5d6fa50d8d",),
    "attn_bwd_hopper_features_prepare": ("b96cc37a6fed26cc", "015bfd42df04d47e"),
    "attn_bwd_hopper_features": ("1a9c067ffaad7fa2", "7f070a3420bd2ad0"),
    "attn_bwd_hopper_features_finish": ("6bb05b7b9df42150", "3263ce1c235df518"),
    "attn_bwd_dk_dv_slim": ("1952e9c0c8e05be1",),
    "attn_bwd_dq_slim": ("766022709808729b",),
    "attn_fwd_plan": ("315488af65490222",),
    "attn_fwd_hopper_planned": ("75f56d9c989ce630",),
    "attn_fwd_planned_combine": ("406233e48c15bbd1",),
}
