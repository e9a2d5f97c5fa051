"""The attention family: forward and backward, and what writes the caches of keys and values."""

from aotriton.rules.family import Shared
from aotriton.rules.flash import append, backward, common, features, forward
from aotriton.tritonsrc.flash.lib import constants

OPERATORS = (forward.OPERATOR, backward.OPERATOR, append.OPERATOR)
SHARED: Shared = {**features.SHARED, "kPageStep": constants.PAGE_STEP, "kMostPlain": common.MOST_PLAIN}

# The reference has gained the kernels that split keys, those of a plan, keys as caches hold them, and kernels that are
# not timed since, and says the same of the others; the splits of calls whose lengths are in device memory have become
# more, and grids ask for lengths by their bits, of which no call that was measured then has any; parameters of
# functions have other names; a plan counts what programs have drawn of it;
# a caller may do without gradients.
EARLIER_JUDGES = {
    "attn_fwd": ("b087552c1fe65492", "3bed8bc7e5380483", "03759b0001b0cba8", "6f76bb2d00823ec8", "49dd93e8675af3cf"),
    "attn_fwd_hopper": ("7a8e3f566f7cb9fe", "be49983ee0569001", "62c020d6578fcc26", "593fb87ec53974a3"),
    "attn_fwd_hopper_slim": ("8c1ddac9f96fd143", "894e4042d7e2391d", "47a8b27f15d956cf", "863173bed82617e3"),
    "attn_fwd_slim": ("3bed8bc7e5380483", "03759b0001b0cba8", "6f76bb2d00823ec8", "49dd93e8675af3cf"),
    "attn_fwd_hopper_features": (
        "f8298291e0b0d534",
        "be7ad5919ae00ea2",
        "69f0c4ec94f5e74a",
        "5294829f25b45b3c",
        "248a477f0a79f2e0",
        "6a84ee26783712c4",
    ),
    "attn_fwd_decode": (
        "166e9e85e4b38964",
        "70568b32c12e4024",
        "149f2d50cf6ae47f",
        "331120fe69823bd2",
        "830825644e27a89d",
        "8c6e4474173d968a",
    ),
    "attn_fwd_combine": ("fdc260db291c4f58", "4d6ffebc17342aad", "f5bbebae761b65ca", "8c7ce8e1397b1cd2"),
    "attn_fwd_split": (
        "166e9e85e4b38964",
        "70568b32c12e4024",
        "149f2d50cf6ae47f",
        "331120fe69823bd2",
        "830825644e27a89d",
        "8c6e4474173d968a",
    ),
    "attn_bwd_preprocess": (
        "9758b402bd6845b3",
        "83dc3c856e63c642",
        "6a498c7aaefeca92",
        "537bc55268b69678",
        "5205b057f59d4435",
    ),
    "attn_bwd_dk_dv": (
        "555f6386e921f8b7",
        "1952e9c0c8e05be1",
        "28e66e2a56b16f23",
        "2977f49581ee78e6",
        "168c0114f2b9a13d",
        "406242a8c8431c9e",
    ),
    "attn_bwd_dq": (
        "0e1c88baa376e08d",
        "766022709808729b",
        "d3edf3a2349ef0e3",
        "26af6b0009dc7e5f",
        "240b7ad5fc1c2ee6",
        "ade46a5eb7109d13",
    ),
    "attn_bwd_hopper_prepare": ("2f8710faa62e4705", "26b6f27e7da5bbdf", "b1e121fd259d9b2b", "265034ccd72337d7"),
    "attn_bwd_hopper_pair": ("2582fa09f0e9666a", "8856028b445b412d", "54892a118091c869", "573a59e8054bc9bd"),
    "attn_bwd_hopper_finish": (
        "ade8a0ac30ad8687",
        "2a9e03c9f5a256a7",
        "956bb58d9c4045bd",
        "da7c831df81b2819",
        "b7126c0c4c140890",
    ),
    "attn_bwd_hopper_shares": ("6be9e56d3b1221e8", "d3921dbe1ff7b31d", "6b4c9d64503986cd", "265bceb0f65853ac"),
    "attn_bwd_hopper_shares_finish": ("2a0c1ecc56ddf963", "09a91403555682ed", "0418b7203b3d6097", "5ded6deab4819c11"),
    "attn_bwd_hopper_heads": ("e0d8174b636abe15", "9d39e1e250ec369d", "6a1c81e16b073bfd", "fe3fa438b5f63afc"),
    "attn_bwd_hopper_parts_prepare": ("d3ac024f72daa8f2", "fcbe70e24e89f553", "9e58ef99ece24ed9", "def2ce0cb4cd3871"),
    "attn_bwd_hopper_parts": ("e43cbc9a591f2ecd", "3bcc00112424f5cb", "326372d75f307ccd", "c691b89cd4d780ad"),
    "attn_bwd_hopper_parts_finish": ("565bc339ea3f5a18", "feb4f4719c821497", "8acb8c863c464cdd", "e048ea8fe10c6bba"),
    "attn_bwd_hopper_pair_slim": ("b055a4b6b0efb393", "32fbae89151894cd", "9fb1f68b89121bfa", "731266771a4edffb"),
    "attn_bwd_hopper_dk_dv": (
        "0d933c0eeb02a1dd",
        "682b63b3b93b1607",
        "de9f3a211aa154c5",
        "9266330a77a3754f",
        "74e7ccd2f3d43998",
    ),
    "attn_bwd_hopper_dq": (
        "8213a5171479453d",
        "0181b10d8c45b167",
        "45e78ca873cd6877",
        "66c3fb03d465152d",
        "20e08040f033560f",
    ),
    "attn_bwd_hopper_dq_slim": (
        "bbe425b4b18f30fb",
        "5fa1f5c2b914fc27",
        "f6f74b2b8c63b8d5",
        "05ceeec3e4a97b7a",
        "c6f78ec4b296ccbf",
    ),
    "attn_bwd_hopper_split_prepare": ("343a53e01801ed94", "37901dc1e4a54f18", "b029f2821dbab39f", "bcdc44e76f1ab240"),
    "attn_bwd_hopper_dk_dv_parts": (
        "7b5c8e0089c1f0b6",
        "cf37d1be73966a64",
        "97bd017b567f8966",
        "1cdf53f6e0730c50",
        "a53b21490798a66e",
    ),
    "attn_bwd_hopper_split_finish": (
        "d5803c5d6fa50d8d",
        "8831eee9e1d5d333",
        "512f0db3d8c1a849",
        "6e335d13e9bf5a3e",
        "d7c0e053aebedd74",
    ),
    "attn_bwd_hopper_features_prepare": (
        "b96cc37a6fed26cc",
        "015bfd42df04d47e",
        "75991405cc00adf5",
        "56e2e6c8efa05fe3",
        "538b0b50406b02ee",
    ),
    "attn_bwd_hopper_features": (
        "13174b0b66d3a585",
        "1a9c067ffaad7fa2",
        "7f070a3420bd2ad0",
        "1f2975f2ec9ac1b6",
        "54f2c2e5602bb906",
        "2530d2a50d1ac68e",
    ),
    "attn_bwd_hopper_features_finish": (
        "dfbae5d25b3a13c7",
        "6bb05b7b9df42150",
        "3263ce1c235df518",
        "d372463e55cad983",
        "f3b546567386301f",
        "6b01d624ea2b66bf",
        "7e6becfa7351e80c",
    ),
    "attn_bwd_dk_dv_slim": (
        "1952e9c0c8e05be1",
        "28e66e2a56b16f23",
        "2977f49581ee78e6",
        "168c0114f2b9a13d",
        "406242a8c8431c9e",
    ),
    "attn_bwd_dq_slim": (
        "766022709808729b",
        "d3edf3a2349ef0e3",
        "26af6b0009dc7e5f",
        "240b7ad5fc1c2ee6",
        "ade46a5eb7109d13",
    ),
    "attn_fwd_plan": ("315488af65490222", "386cfb99ce858bb5", "b16bfcef9d11961b", "881c97838131c80d"),
    "attn_fwd_hopper_planned": ("75f56d9c989ce630", "afb5f09d6b6bb757", "ee5f4d9578351c04", "7a9cf44818f0fabe"),
    "attn_fwd_planned_combine": ("406233e48c15bbd1", "7c7380b4dc2bd472", "d73fd663875915e0", "e81a0c6c8f9d844f"),
    "attn_fwd_invariant": ("89bc2ba8c37474cf", "356a4f70c426b10a"),
    "attn_fwd_invariant_combine": ("4d6ffebc17342aad", "f5bbebae761b65ca"),
    "attn_fwd_latent": ("ed1aed1697dc7b2c", "09202d80c9cfbf02", "265f57a2a9929d01"),
    "attn_fwd_hopper_latent": ("2cb8d7f02870031a",),
    "attn_fwd_latent_combine": ("4d6ffebc17342aad", "f5bbebae761b65ca"),
    "attn_bwd_dsinks": ("2bc6b7229cad62f8", "4ab7802b068fdcd5"),
    "kv_append": ("4f20f009831bcbbd", "4acfd8ffc15561cf"),
    "attn_fwd_hopper_fp8": ("eed4858e7b9e269a", "b43800570c7f968c"),
}
