"""Claims about image names: they change when, and only when, something that reaches the compiler changes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from aotriton.rules import image
from aotriton.rules.arch import arch_spec
from aotriton.rules.family import IN_TREE, family
from aotriton.rules.flash.backward import ATTN_BWD_PREPROCESS as KERNEL
from aotriton.rules.flash.forward import ATTN_FWD
from aotriton.rules.image import ImageSpec, source_digest
from aotriton.rules.kernel import Argument, Operand, Tensor, strides

ROOT = Path(__file__).resolve().parents[2]

KERNELS = [kernel for name in IN_TREE for kernel in family(name).kernels]
PACKAGE = "aotriton.tritonsrc.flash"

TILE = '''"""Tiles."""
SIZE = 4


def load(x):
    """Loads."""
    return x  # as is
'''
SOURCE = '''"""Rowsum."""
from aotriton.tritonsrc.flash.lib.tile import load


def attn_bwd_preprocess(Out):
    """Documented."""
    return load(Out)
'''


@pytest.fixture
def sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The family's device code, made up."""
    for room in ("kernels", "lib"):
        (tmp_path / room).mkdir()
    (tmp_path / "lib/tile.py").write_text(TILE)
    (tmp_path / "kernels/attn_bwd_preprocess.py").write_text(SOURCE)
    (tmp_path / "lib/stranger.py").write_text("x = 1\n")
    monkeypatch.setattr(image, "_folder", {PACKAGE: tmp_path}.__getitem__)
    yield tmp_path
    source_digest.cache_clear()


def name(arch: str = "sm_90", **changed: int | str) -> str:
    source_digest.cache_clear()
    values: dict[str, Any] = {
        "T": "bf16",
        "BLOCK_DMODEL": 64,
        "ADDRESSING": "general",
        "BLOCK_M": 64,
        "num_warps": 4,
        "num_stages": 1,
    }
    values |= {"waves_per_eu": 0} if arch == "gfx942" else {}
    values |= changed
    functional = KERNEL.functional(arch, **{choice.name: values.pop(choice.name) for choice in KERNEL.choices})
    return ImageSpec.of(functional, {"BLOCK_M": values.pop("BLOCK_M")}, values).name


@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        ("kernels/attn_bwd_preprocess.py", '"""Rowsum."""', '"""Sums\nrows."""'),
        ("kernels/attn_bwd_preprocess.py", '    """Documented."""\n', ""),
        ("kernels/attn_bwd_preprocess.py", "load(Out)", "load(\n        Out,\n    )  # a comment"),
        ("lib/tile.py", "  # as is", ""),
        ("lib/tile.py", '    """Loads."""\n', '    """Loads a tile."""\n'),
        ("lib/stranger.py", "x = 1", "x = 2"),
    ],
)
def test_prose_does_not_count(sources: Path, file: str, old: str, new: str) -> None:
    """Comments, docstrings, layout and modules that the kernel does not import leave the name as it is."""
    before = name()
    assert old in (sources / file).read_text()
    (sources / file).write_text((sources / file).read_text().replace(old, new))
    assert name() == before


@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        ("kernels/attn_bwd_preprocess.py", "load(Out)", "load(Out) + 0"),
        ("kernels/attn_bwd_preprocess.py", "(Out):", "(Out: int):"),
        ("lib/tile.py", "return x", "return -x"),
        ("lib/tile.py", "SIZE = 4", "SIZE = 5"),
    ],
)
def test_code_counts(sources: Path, file: str, old: str, new: str) -> None:
    """An edit to the code of the kernel, or of a module that it imports, changes the name."""
    before = name()
    assert old in (sources / file).read_text()
    (sources / file).write_text((sources / file).read_text().replace(old, new))
    assert name() != before


def test_indirect_imports_count(sources: Path) -> None:
    """The source of a module imported by an imported module counts, in either way of importing it."""
    (sources / "lib/tile.py").write_text(f"from {PACKAGE}.lib import deep\n" + TILE)
    (sources / "lib/deep.py").write_text("DEPTH = 1\n")
    before = name()
    (sources / "lib/deep.py").write_text("DEPTH = 2\n")
    assert name() != before


def test_the_request_counts(sources: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Type, constexprs, tunables, options, addressing, arch and compiler each give another name, always the same."""
    variants: list[dict[str, Any]] = [
        {},
        {"T": "fp16"},
        {"BLOCK_DMODEL": 128},
        {"ADDRESSING": "descriptor"},
        {"BLOCK_M": 128},
        {"num_warps": 8},
        {"num_stages": 2},
        {"arch": "gfx942"},
        {"arch": "gfx942", "waves_per_eu": 1},
        {"arch": "gfx942", "ADDRESSING": "offset32"},
    ]
    names = [name(**variant) for variant in variants]
    assert len(set(names)) == len(variants)
    assert [name(**variant) for variant in variants] == names
    monkeypatch.setattr(image, "TRITON_VERSION", "9.9.9")
    assert not {name(**variant) for variant in variants} & set(names)


def test_the_packages_own_name_does_not_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same code in a package of another name has the same digest: a family can be moved without measuring again."""
    digests = []
    for package in (PACKAGE, "elsewhere.tritonsrc"):
        (tmp_path / "lib").mkdir(exist_ok=True)
        (tmp_path / "lib/tile.py").write_text(TILE)
        (tmp_path / "kernel.py").write_text(SOURCE.replace(PACKAGE, package))
        monkeypatch.setattr(image, "_folder", {package: tmp_path}.__getitem__)
        source_digest.cache_clear()
        digests.append(source_digest(package, f"{package}.kernel"))
    assert digests[0] == digests[1]
    (tmp_path / "lib/tile.py").write_text(TILE.replace("4", "5"))
    source_digest.cache_clear()
    assert source_digest("elsewhere.tritonsrc", "elsewhere.tritonsrc.kernel") != digests[0]


def test_names_are_symbols(sources: Path) -> None:
    """A name tells kernel and arch and is a C++ identifier."""
    assert name().startswith("attn_bwd_preprocess_sm_90_")
    assert name().isidentifier()


def test_a_level_is_an_image_of_its_own() -> None:
    """A level with device code of its own has its arguments, and a plain image nothing of it: no argument, and in its
    name no code.
    """
    choices: dict[str, Any] = {"T": "bf16", "BLOCK_DMODEL": 64, "ADDRESSING": "general"}
    plain, banded = (
        ImageSpec.of(
            ATTN_FWD.functional("sm_90", LEVEL=level, CAUSAL=False, **choices),
            {"BLOCK_M": 64, "BLOCK_N": 64},
            {"num_warps": 4, "num_stages": 2},
        )
        for level in (0, 4)
    )
    assert {"lo", "hi"} <= banded.compiler_request()["signature"].keys()
    assert not {"lo", "hi", "LEVEL"} & plain.compiler_request()["signature"].keys()
    assert "CAUSAL" not in banded.compiler_request()["constexprs"]
    package = "aotriton.tritonsrc.flash"
    code = image._closure(package, "kernels.attn_fwd")
    assert not {one for one in code if "features" in one or "band" in one}
    assert "lib.band" in image._closure(package, "kernels.attn_fwd_features")
    assert banded.plain_names[0] == plain.name


def test_a_general_tensor_is_one_in_every_image_of_its_levels() -> None:
    """Its pointer has no attribute and its strides have 64 bits; the same tensor without ``general`` follows the
    addressing. Images of other levels have neither.
    """
    operand = Operand("extra", ("batch", "heads_q", "seqlen_q"), alignment=16)

    def request(level: int, general: bool) -> dict[str, Any]:
        own: tuple[Argument, ...] = (
            Tensor("Extra", operand, general=general, levels=(4,)),
            *strides("bh", "Extra", levels=(4,)),
        )
        kernel = replace(ATTN_FWD, arguments=(*ATTN_FWD.arguments, *own))
        functional = kernel.functional(
            "gfx942", LEVEL=level, T="bf16", BLOCK_DMODEL=64, CAUSAL=False, ADDRESSING="offset32"
        )
        compile_options = {"num_warps": 4, "num_stages": 1, "waves_per_eu": 1}
        return ImageSpec.of(functional, {"BLOCK_M": 64, "BLOCK_N": 64}, compile_options).compiler_request()

    names = ["Extra", "stride_extra_b", "stride_extra_h"]
    general, addressed = request(4, True), request(4, False)
    assert [general["signature"][name] for name in names] == ["*bf16", "i64", "i64"]
    assert not general["attrs"].keys() & set(names)
    assert [addressed["signature"][name] for name in names] == ["*bf16", "i32", "i32"]
    assert addressed["attrs"].keys() >= set(names)
    for level in (0, 5):
        assert not request(level, True)["signature"].keys() & set(names)


def test_wrong_names_are_refused() -> None:
    """Tunables and compile options that the kernel does not have, or lacks, are an error that lists the right ones."""
    functional = next(KERNEL.functionals("sm_90"))
    with pytest.raises(ValueError, match=r"attn_bwd_preprocess sm_90: expected \['BLOCK_M'\], got \['BLOCK_X'\]"):
        ImageSpec.of(functional, {"BLOCK_X": 1}, {"num_warps": 4, "num_stages": 1})
    with pytest.raises(ValueError, match=r"expected \['num_warps', 'num_stages'\], got \['num_warps'\]"):
        ImageSpec.of(functional, {"BLOCK_M": 64}, {"num_warps": 4})


def test_requests_survive_json() -> None:
    """The request is plain data: it reads back from json as it was, for every functional of every kernel and arch."""
    for kernel in KERNELS:
        for arch, vendor in ((arch, arch_spec(arch).vendor) for arch in kernel.archs):
            tunables = {name: values[0] for name, values in kernel.tunable_values(vendor).items()}
            compile_options = {name: values[0] for name, values in kernel.compile_option_values(vendor).items()}
            for functional in kernel.functionals(arch):
                request = ImageSpec.of(functional, tunables, compile_options).compiler_request()
                assert json.loads(json.dumps(request)) == request


SPELLED = '''
import triton
from aotriton.tritonsrc.flash.tile import load


@triton.jit
def kernel(x, /, y: int = None, *rest, SIZE: "constexpr" = 4, **more) -> None:
    """Documented."""
    (a, b), *c = load(x), x[1:], not y
    line = f"bar.{a!r} {9 + b:>{SIZE}}, 'ä{0 if SIZE else 1}" "\\n"
    for i in range(SIZE):
        a[i, ...] += -1.5e-30 if a < b <= c else 0x10
    else:
        return [one @ 2 for one in (line,) if one is not None], {"k": lambda: 1j, **more}, b"\\0"
    match y:
        case 0 | None:
            pass
'''


def test_names_do_not_depend_on_python(sources: Path) -> None:
    """The digest of code with all that some version of Python has a way of its own with; this one's is written here."""
    (sources / "tile.py").write_text(TILE)
    (sources / "kernel.py").write_text(SPELLED)
    assert (
        source_digest(PACKAGE, f"{PACKAGE}.kernel")
        == "bd5c9de31c0abf6834c1ef0f3eff0c3965e67f4ec8b66a35136d08b310415378"
    )
