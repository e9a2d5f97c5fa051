"""The attention family: forward and backward, and what writes the caches of keys and values."""

from aotriton.rules.flash import append, backward, forward

OPERATORS = (forward.OPERATOR, backward.OPERATOR, append.OPERATOR)

# The reference has gained the kernels that split keys since, and says the same of these; the splits of calls whose
# lengths are in device memory have become more, which no measured call has.
EARLIER_JUDGES = {
    "attn_fwd": ("b087552c1fe65492",),
    "attn_fwd_decode": ("166e9e85e4b38964",),
    "attn_fwd_split": ("166e9e85e4b38964",),
    "attn_fwd_hopper_features": ("f8298291e0b0d534",),
    "attn_bwd_preprocess": ("9758b402bd6845b3",),
    "attn_bwd_dk_dv": ("555f6386e921f8b7",),
    "attn_bwd_dq": ("0e1c88baa376e08d",),
    "attn_bwd_hopper_features": ("1a9c067ffaad7fa2",),
    "attn_bwd_hopper_features_prepare": ("b96cc37a6fed26cc",),
    "attn_bwd_hopper_features_finish": ("6bb05b7b9df42150",),
}
