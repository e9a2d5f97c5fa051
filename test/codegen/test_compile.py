"""Claims about the image service: what it makes, what it says when it can not, and what survives a crash."""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from aotriton.codegen import compile_pool
from aotriton.codegen.compile import CompiledImage, ImageStore, compile_images, resources
from aotriton.codegen.compile import _compile as compile_here
from aotriton.codegen.compile_pool import request_of, spec_of
from aotriton.rules.arch import arch_spec
from aotriton.rules.flash.backward import (
    ATTN_BWD_HOPPER_DK_DV,
    ATTN_BWD_HOPPER_DK_DV_PARTS,
    ATTN_BWD_HOPPER_DQ,
    ATTN_BWD_HOPPER_DQ_SLIM,
    ATTN_BWD_HOPPER_PAIR,
    ATTN_BWD_HOPPER_PAIR_SLIM,
    ATTN_BWD_HOPPER_PARTS,
)
from aotriton.rules.flash.backward import ATTN_BWD_PREPROCESS as KERNEL
from aotriton.rules.flash.common import WIDTH_V
from aotriton.rules.flash.forward import ATTN_FWD, ATTN_FWD_HOPPER, ATTN_FWD_HOPPER_SLIM
from aotriton.rules.image import TRITON_VERSION, ImageSpec
from aotriton.rules.kernel import KernelDescription
from aotriton.tune.problem.compiler_facts import unfit

ROOT = Path(__file__).resolve().parents[2]

HEADER = """import os, signal, time
import triton
import triton.language as tl

"""
GOOD = """
@triton.jit
def attn_bwd_preprocess(
    Out, DO, Delta, stride_out_b, stride_out_h, stride_out_s, stride_do_b, stride_do_h, stride_do_s,
    num_heads_q, max_seqlen_q, head_dim, BLOCK_M: tl.constexpr, BLOCK_DMODEL: tl.constexpr, ADDRESSING: tl.constexpr,
):
    tl.store(Delta + tl.arange(0, BLOCK_M), 0.0)
"""
# All of a tile is needed for its sum, and again after it: many times the registers of a thread.
SPILLING = GOOD.replace(
    "    tl.store",
    "    tile = tl.load(DO + tl.arange(0, 512)[:, None] * 256 + tl.arange(0, 256)[None, :]).to(tl.float32)\n"
    "    tl.store(Delta + tl.arange(0, 256), tl.sum(tile * tl.sum(tile), 0))\n    tl.store",
)
# A product's accumulators are read before it is waited for: ptxas waits by itself, and says so.
SERIALISED = GOOD.replace(
    "    tl.store",
    """    rows = tl.arange(0, 128)
    sums = tl.inline_asm_elementwise(
        "{ .reg .b64 d; mov.b64 d, 0; mov.f32 $0, $4; mov.f32 $1, $4; mov.f32 $2, $4; mov.f32 $3, $4;"
        "wgmma.fence.sync.aligned;"
        "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {$0, $1, $2, $3}, d, d, 1, 1, 1, 0, 0;"
        "wgmma.commit_group.sync.aligned; add.f32 $0, $0, $4; wgmma.wait_group.sync.aligned 0; }",
        "=f,=f,=f,=f,f", [tl.load(Delta + rows)], dtype=(tl.float32,) * 4, is_pure=False, pack=1)
    tl.store(Delta + rows, sums[0] + sums[1] + sums[2] + sums[3])
    tl.store""",
)
WAITING = "from triton.language.extra.cuda import gdc_wait\n" + GOOD.replace(
    "    tl.store", "    gdc_wait()\n    tl.store"
)
HALF_BROKEN = GOOD.replace("0.0)", "0.0 if BLOCK_M == 32 else undefined_name)")


def spec(arch: str = "sm_90", block_m: int = 32, dtype: str = "bf16") -> ImageSpec:
    compile_options = {"num_warps": 4, "num_stages": 1} | ({"waves_per_eu": 0} if arch == "gfx942" else {})
    functional = KERNEL.functional(arch, T=dtype, BLOCK_DMODEL=32, ADDRESSING="general")
    return ImageSpec.of(functional, {"BLOCK_M": block_m}, compile_options)


class Tree:
    """A copy of the project whose only kernel is made up, a store, and runs of the service in separate processes."""

    def __init__(self, folder: Path, kernel: str = GOOD) -> None:
        self.folder, self.store, self.out = folder, folder / "store", folder / "out"
        for name in ("rules", "codegen"):
            shutil.copytree(
                ROOT / name, folder / "aotriton" / name, ignore=shutil.ignore_patterns("__pycache__", "*.sqlite3")
            )
        (folder / "aotriton" / "tritonsrc" / "flash" / "kernels").mkdir(parents=True)
        (folder / "aotriton" / "tritonsrc" / "flash" / "lib").mkdir()
        for package in (".", "tritonsrc", "tritonsrc/flash", "tritonsrc/flash/kernels", "tritonsrc/flash/lib"):
            (folder / "aotriton" / package / "__init__.py").touch()
        shared = "tritonsrc/flash/lib/constants.py"  # which descriptions import
        shutil.copy(ROOT / shared, folder / "aotriton" / shared)
        (folder / "tmp").mkdir()
        self.out.mkdir()
        self.kernel(kernel)

    def kernel(self, body: str) -> None:
        (self.folder / "aotriton" / "tritonsrc" / "flash" / "kernels" / "attn_bwd_preprocess.py").write_text(
            HEADER + body
        )

    def popen(self, *code: str, **options: Any) -> subprocess.Popen[str]:
        environment = {**os.environ, "PYTHONPATH": str(self.folder), "TMPDIR": str(self.folder / "tmp")}
        command = [sys.executable, *code]
        return subprocess.Popen(command, cwd=self.folder, env=environment, text=True, stdout=-1, stderr=-1, **options)

    def results(self, blocks: list[int], **options: float) -> dict[int, dict[str, Any]]:
        """What compile_images gives for these values of BLOCK_M: a message, or the metadata."""
        requests = [request_of(spec(block_m=block)) for block in blocks]
        process = self.popen(
            "-c",
            "import json\n"
            "from aotriton.codegen.compile import *\nfrom aotriton.codegen.compile_pool import spec_of\n"
            f"specs, store = map(spec_of, {requests!r}), ImageStore({str(self.store)!r})\n"
            f"for spec, result in compile_images(specs, store, 1, **{options!r}):\n"
            "    shown = vars(result) if isinstance(result, CompileFailure) else result.metadata\n"
            "    print(json.dumps([dict(spec.tunables)['BLOCK_M'], shown]))\n",
        )
        out, err = process.communicate(timeout=60)
        assert process.returncode == 0, err
        return dict(json.loads(line) for line in out.splitlines())

    def build(self, blocks: list[int], jobs: int = 1, arch: str = "sm_90") -> subprocess.Popen[str]:
        """The program, on a list of these values of BLOCK_M."""
        requests = [request_of(spec(arch, block)) for block in blocks]
        names = f"print(*(spec_of(request).name for request in {requests!r}))"
        name = f"from aotriton.codegen.compile_pool import spec_of\n{names}"
        named = self.popen("-c", name).communicate()[0].split()
        images = [{"name": name, **request} for name, request in zip(named, requests, strict=True)]
        packs = [{"family": "flash", "kernel": KERNEL.name, "arch": arch, "images": images}]
        (self.out / "images.json").write_text(json.dumps({"packs": packs}))
        arguments = ["--list", self.out / "images.json", "--out", self.out, "--store", self.store, "--jobs", jobs]
        return self.popen("-m", "aotriton.codegen.compile", *map(str, arguments))

    def leftovers(self) -> list[str]:
        """Temporary files, wherever they may be, and store entries without their pair."""
        stored = [path.name for path in self.store.iterdir() if path.name != ".lock"] if self.store.exists() else []
        halves = [name for name in stored if name.endswith(".json") and name[:-4] + "cubin" not in stored]
        return (
            [name for name in stored if name.startswith(".")]
            + halves
            + [p.name for p in (self.folder / "tmp").iterdir()]
        )


@pytest.mark.parametrize("arch", ["sm_90", "gfx942"])
def test_real_compile(arch: str, tmp_path: Path) -> None:
    """A real kernel compiles for each arch without its GPU; the metadata tells what a launch and a pruner need. What it
    took is told once: the second time it is in the store.
    """
    ((given, image),) = compile_images([spec(arch), spec(arch)], ImageStore(tmp_path), 1)
    assert isinstance(image, CompiledImage), image
    ((_, stored),) = compile_images([given], ImageStore(tmp_path), 1)
    assert (stored, stored.seconds) == (image, 0)
    assert image.seconds > 0.05  # a compiler takes at least that
    assert image.binary[:4] == b"\x7fELF"
    assert image.path.suffix == {"sm_90": ".cubin", "gfx942": ".hsaco"}[arch]
    made = image.metadata
    assert (made["name"], made["kernel"], made["arch"], made["entry"]) == (
        spec(arch).name,
        KERNEL.name,
        arch,
        KERNEL.name,
    )
    assert (made["functional"], made["config"]) == (str(given.functional), given.config)
    assert made["threads"] == 4 * given.functional.arch_spec.warp_size
    assert 0 < made["registers"] <= 512
    assert made["spills"] == made["stack"] == made["global_scratch"] == 0
    assert made["descriptors"] == []
    assert made["triton"] == TRITON_VERSION


def test_descriptors_are_recorded(tmp_path: Path) -> None:
    """An image lists rank, swizzle and box of each TMA descriptor, in argument order, as the compiler chose them."""
    functional = ATTN_FWD.functional("sm_90", T="bf16", BLOCK_DMODEL=128, CAUSAL=False, ADDRESSING="descriptor")
    given = ImageSpec.of(functional, {"BLOCK_M": 64, "BLOCK_N": 32}, {"num_warps": 4, "num_stages": 2})
    ((_, image),) = compile_images([given], ImageStore(tmp_path), 1)
    assert isinstance(image, CompiledImage), image
    rows = [descriptor["block"] for descriptor in image.metadata["descriptors"]]
    # 128 bytes is the widest swizzle: a row of 128 bf16 is moved in two boxes of 64.
    assert rows == [[1, 1, 64, 64], [1, 1, 32, 64], [1, 1, 32, 64], [1, 1, 64, 64]]
    assert {(descriptor["rank"], descriptor["swizzle"]) for descriptor in image.metadata["descriptors"]} == {(4, 3)}


def test_a_gluon_kernel_compiles(tmp_path: Path) -> None:
    """Its threads count every consumer and the producer with padding; its descriptors have 64 rows or BLOCK_N."""
    kernel = ATTN_FWD_HOPPER
    functional = kernel.functional("sm_90", T="fp16", BLOCK_DMODEL=64, CAUSAL=True, ADDRESSING="descriptor")
    smallest = {name: values[0] for name, values in kernel.tunable_values("cuda").items()}
    tunables = {**smallest, "BLOCK_N": 128, "CONSUMERS": 2, "GROUP_ROUNDS": 1}
    ((_, image),) = compile_images(
        [ImageSpec.of(functional, tunables, {"num_warps": 4, "maxnreg": 168})], ImageStore(tmp_path), 1
    )
    assert isinstance(image, CompiledImage), image
    assert (image.metadata["threads"], image.metadata["spills"], image.metadata["registers"]) == (12 * 32, 0, 168)
    assert [row["block"][2] for row in image.metadata["descriptors"]] == [64, 128, 128, 64]


def test_columns_in_two_parts_compile(tmp_path: Path) -> None:
    """A head dim of 192 has a box of 128 columns, moved as two of 64, and one of 64; its image does not spill."""
    kernel = ATTN_FWD_HOPPER_SLIM
    functional = kernel.functional("sm_90", T="bf16", BLOCK_DMODEL=192, CAUSAL=True, ADDRESSING="descriptor")
    smallest = {name: values[0] for name, values in kernel.tunable_values("cuda").items()}
    given = ImageSpec.of(functional, {**smallest, "CONSUMERS": 2, "GROUP_ROUNDS": 1}, {"num_warps": 4, "maxnreg": 168})
    assert given.compiler_request()["signature"]["KRest"].startswith("tensordesc<bf16[1,1,64,64],")
    ((_, image),) = compile_images([given], ImageStore(tmp_path), 1)
    assert isinstance(image, CompiledImage), image
    assert (image.metadata["threads"], image.metadata["spills"]) == (12 * 32, 0)
    queries, keys = [64, 1, 64], [64, 64]  # those of queries and the result are of packed heads
    assert [row["block"][2:] for row in image.metadata["descriptors"]] == [queries, keys, keys, queries] * 2


@pytest.mark.parametrize(
    ("kernel", "head_dim", "tunables", "columns"),
    [
        (ATTN_BWD_HOPPER_PAIR_SLIM, 96, {"BLOCK_M": 64, "K_IN_REGISTERS": 1, "V_IN_REGISTERS": 1}, [64, 32]),
        (ATTN_BWD_HOPPER_DK_DV, 192, {"BLOCK_M": 64}, [128, 64]),
        (ATTN_BWD_HOPPER_DK_DV, 256, {"BLOCK_M": 64}, [128, 128]),
        (ATTN_BWD_HOPPER_DK_DV_PARTS, 192, {"BLOCK_M": 64}, [128, 64]),
        (ATTN_BWD_HOPPER_DK_DV_PARTS, 256, {"BLOCK_M": 64}, [128, 128]),
        (ATTN_BWD_HOPPER_DQ_SLIM, 192, {"BLOCK_N": 64}, [128, 64]),
    ],
    ids=["pair", "dk_dv", "dk_dv at 256", "dk_dv in parts", "dk_dv in parts at 256", "dq"],
)
def test_backwards_of_columns_in_two_parts_do_not_spill(
    tmp_path: Path, kernel: KernelDescription, head_dim: int, tunables: dict[str, int], columns: list[int]
) -> None:
    """Causal, with all that they keep in registers; each tensor has a descriptor of both parts."""
    functional = kernel.functional("sm_90", T="bf16", BLOCK_DMODEL=head_dim, CAUSAL=True, ADDRESSING="descriptor")
    compile_options = {name: values[0] for name, values in kernel.compile_option_values("cuda").items()}
    given = ImageSpec.of(functional, tunables, compile_options)
    signature = given.compiler_request()["signature"]
    boxes = [signature[name].split("[")[1].split("]")[0] for name in ("K", "KRest")]
    assert [int(box.split(",")[3]) for box in boxes] == columns
    ((_, image),) = compile_images([given], ImageStore(tmp_path), 1)
    assert isinstance(image, CompiledImage), image
    assert (image.metadata["threads"], image.metadata["spills"], image.serialised) == (12 * 32, 0, ())


@pytest.mark.parametrize("causal", [False, True])
def test_hopper_backwards_neither_spill_nor_wait(tmp_path: Path, causal: bool) -> None:
    """Whatever tile a head dim of theirs may have."""
    specs = []
    for kernel, tiles in {
        ATTN_BWD_HOPPER_PAIR: ((32, 64), (32, 128), (64, 64), (64, 128), (128, 64)),
        ATTN_BWD_HOPPER_PARTS: ((64, 128), (128, 64)),
        ATTN_BWD_HOPPER_DK_DV: ((256, 64),),
        ATTN_BWD_HOPPER_DK_DV_PARTS: ((256, 64),),
        ATTN_BWD_HOPPER_DQ: ((256, 64),),
    }.items():
        compile_options = {name: values[0] for name, values in kernel.compile_option_values("cuda").items()}
        for head_dim, rows in tiles:
            given: dict[str, Any] = {
                "T": "bf16",
                "BLOCK_DMODEL": head_dim,
                "CAUSAL": causal,
                "ADDRESSING": "descriptor",
            }
            specs.append(
                ImageSpec.of(kernel.functional("sm_90", **given), {kernel.tunable_names[0]: rows}, compile_options)
            )
    for one, image in compile_images(specs, ImageStore(tmp_path), 2):
        assert isinstance(image, CompiledImage), image
        assert (image.metadata["threads"], image.spills, image.serialised) == (12 * 32, False, ()), one


@pytest.mark.parametrize("arch", ["sm_90", "gfx942"])
def test_by_pointer_a_divisor_of_the_head_dim_changes_nothing(arch: str) -> None:
    """So the image is right of head dims without it, too, which take general addressing."""
    compile_options = {name: values[0] for name, values in KERNEL.compile_option_values(arch_spec(arch).vendor).items()}
    made = []
    for divisor in (8, 1):
        arguments = [replace(one, multiple_of=divisor) if one == WIDTH_V else one for one in KERNEL.arguments]
        functional = replace(KERNEL, arguments=tuple(arguments)).functional(
            arch, T="bf16", BLOCK_DMODEL=64, ADDRESSING="general"
        )
        spec = ImageSpec.of(functional, {"BLOCK_M": 64}, compile_options)
        assert ("head_dim" in spec.compiler_request()["attrs"]) == (divisor == 8)
        made.append(compile_here(spec)[0])
    assert made[0] == made[1]


def test_requests_make_equal_specs() -> None:
    """A spec survives being written as plain data and read back, name included."""
    for arch in ("sm_90", "gfx942"):
        given = spec(arch)
        again = spec_of(json.loads(json.dumps(request_of(given))))
        assert again == given
        assert again.name == given.name


def test_store_refuses_damage(tmp_path: Path) -> None:
    """An entry whose binary or json was damaged, truncated, or half deleted does not exist, and can be stored again."""
    store = ImageStore(tmp_path)

    def put() -> CompiledImage:
        return store.put("image", "cubin", b"binary" * 100, {"kernel": "k"})

    assert put().metadata["kernel"] == "k"
    assert store.get("image") == put()
    damage: list[Callable[[], object]] = [
        lambda: (tmp_path / "image.cubin").write_bytes(b"binary" * 99 + b"binarx"),
        lambda: (tmp_path / "image.cubin").write_bytes(b"binary"),
        lambda: (tmp_path / "image.cubin").unlink(),
        lambda: (tmp_path / "image.json").write_text('{"name": "image", '),
        lambda: (tmp_path / "image.json").write_text("{}"),
        lambda: (tmp_path / "image.json").write_text("[]"),
        lambda: (tmp_path / "image.json").unlink(),
        lambda: (tmp_path / "image.json").write_bytes(b"\xff\xfe"),
    ]
    for harm in damage:
        harm()
        assert store.get("image") is None
        assert put().binary == b"binary" * 100
        assert store.get("image") is not None


def test_first_writer_wins(tmp_path: Path) -> None:
    """An entry never changes: a second binary for a stored name is dropped, and its writer gets the stored one."""
    store = ImageStore(tmp_path)
    store.put("image", "cubin", b"first", {})
    assert store.put("image", "cubin", b"second", {}).binary == b"first"


def test_two_wishes_share_a_store(tmp_path: Path) -> None:
    """Binaries of one name that different databases want stand side by side, in whatever order and however often they
    are asked for; a binary that nobody wants never takes the place of one that is there.
    """
    first, second = (hashlib.sha256(binary).hexdigest() for binary in (b"first", b"second"))
    store = ImageStore(tmp_path)
    assert store.put("image", "cubin", b"first", {}, first).binary == b"first"
    assert store.get("image", second) is None
    assert store.put("image", "cubin", b"third", {}, second).binary == b"first"
    assert store.put("image", "cubin", b"second", {}, second).binary == b"second"
    before = {path.name: path.stat().st_mtime_ns for path in tmp_path.iterdir() if path.name != ".lock"}
    for _ in range(2):
        for binary, wanted in ((b"first", first), (b"second", second)):
            found = store.get("image", wanted)
            assert found
            assert (found.binary, found.name) == (binary, "image")
            assert store.put("image", "cubin", binary, {}, wanted) == found
            assert store.put("image", "cubin", b"third", {}, wanted) == found
    assert store.get("image") == store.get("image", first)
    assert {path.name: path.stat().st_mtime_ns for path in tmp_path.iterdir() if path.name != ".lock"} == before


def put_often(folder: Path, binary: bytes, wanted: str) -> None:
    store = ImageStore(folder)
    for _ in range(200):
        assert store.put("image", "cubin", binary, {}, wanted).metadata["sha256"] == wanted
        found = store.get("image", wanted)
        assert found
        assert found.binary == binary


def test_two_writers_of_one_name_lose_nothing(tmp_path: Path) -> None:
    """Processes that want different binaries of one name, at once: each has its own, all the time."""
    context = multiprocessing.get_context("spawn")
    binaries = (b"first", b"second", b"third")
    made = [(tmp_path, binary, hashlib.sha256(binary).hexdigest()) for binary in binaries]
    writers = [context.Process(target=put_often, args=args) for args in made]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert [writer.exitcode for writer in writers] == [0, 0, 0]


def test_default_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a path the store is $AOTRITON_IMAGE_STORE, and without that aotriton/images in the user's cache folder:
    $XDG_CACHE_HOME if that is a whole path, or .cache at home.
    """
    monkeypatch.setenv("AOTRITON_IMAGE_STORE", str(tmp_path / "here"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("HOME", str(tmp_path))
    assert ImageStore().path == tmp_path / "here"
    monkeypatch.delenv("AOTRITON_IMAGE_STORE")
    assert ImageStore().path == tmp_path / "cache" / "aotriton" / "images"
    for ignored in ("", "cache"):
        monkeypatch.setenv("XDG_CACHE_HOME", ignored)
        assert ImageStore().path == tmp_path / ".cache" / "aotriton" / "images"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert ImageStore().path == tmp_path / ".cache" / "aotriton" / "images"


def test_killed_worker_is_one_failure(tmp_path: Path) -> None:
    """A worker that is killed fails the image under way, saying by which signal; the next image gets a new worker."""
    tree = Tree(
        tmp_path,
        "if not os.path.exists('died'):\n    open('died', 'w').close()\n    os.kill(os.getpid(), signal.SIGKILL)\n"
        + GOOD,
    )
    results = tree.results([32, 64])
    assert results[32]["message"] == "the compiler process was killed by SIGKILL"
    assert results[64]["entry"] == KERNEL.name
    assert tree.leftovers() == []


def test_hanging_compile_is_one_failure(tmp_path: Path) -> None:
    """An image that is not done within the time limit is a failure that says so; its process is ended and replaced."""
    hang = "if not os.path.exists('hung'):\n    open('hung', 'w').close()\n    time.sleep(3600)\n"
    hang = "print('thinking', flush=True)\n" + hang
    results = Tree(tmp_path, hang + GOOD).results([32, 64], time_limit=8.0)
    assert results[32]["message"] == "not compiled within 8 s:\nthinking"
    assert results[32]["seconds"] >= 8
    assert results[64]["entry"] == KERNEL.name


def test_wrong_description_is_a_failure(tmp_path: Path) -> None:
    """A kernel whose arguments are not those of its description is refused, with both lists."""
    results = Tree(tmp_path, GOOD.replace("num_heads_q", "heads")).results([32])
    assert "'num_heads_q'" in results[32]["message"]
    assert "'heads'" in results[32]["message"]


def test_an_error_in_a_called_function_says_what_is_wrong_there(tmp_path: Path) -> None:
    """And where it is called: Triton's own message of a call says only the latter."""
    inner = "@triton.jit\ndef inner(x):\n    return x.no_such_field\n\n\n"
    calling = GOOD.replace("    tl.store", "    inner(Delta)\n    tl.store")
    message = Tree(tmp_path, inner + calling).results([32])[32]["message"]
    assert "inner(" in message
    assert "no_such_field" in message


def test_a_kernel_that_begins_early_and_does_not_wait_is_a_failure(tmp_path: Path) -> None:
    """The kernel before it may still write what it reads."""
    tree = Tree(tmp_path)
    description = tree.folder / "aotriton" / "rules" / "kernel.py"
    early = description.read_text().replace("begins_early: bool = False", "begins_early: bool = True")
    description.write_text(early)
    operators = tree.folder / "aotriton" / "rules" / "operators.py"  # which refuse that of a backend's first kernel
    operators.write_text(operators.read_text().replace(").begins_early:", ").begins_early and False:"))
    assert "it begins early and waits for no kernel before it" in tree.results([32])[32]["message"]
    tree.kernel(WAITING)
    assert tree.results([32])[32]["entry"] == KERNEL.name


def test_another_triton_is_refused(tmp_path: Path) -> None:
    """Images come from the pinned Triton only: with another one every image fails, naming both versions."""
    results = Tree(tmp_path, "triton.__version__ = '9.9.9'\n" + GOOD).results([32, 64])
    assert f"Triton {TRITON_VERSION} is needed, this is 9.9.9" in results[64]["message"]


def test_failure_stops_the_build_and_it_resumes(tmp_path: Path) -> None:
    """A failed image ends the program with functional, config and compiler message; what was done is not redone."""
    tree = Tree(tmp_path, HALF_BROKEN)
    process = tree.build([32, 64])
    _, err = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "attn_bwd_preprocess sm_90 F15 (T=bf16 BLOCK_DMODEL=32 ADDRESSING=general)" in err
    assert "BLOCK_M=64 num_warps=4 num_stages=1 did not compile" in err
    assert "undefined_name is not defined" in err
    assert not list(tree.out.glob("*.cc"))
    done = {path.name: path.stat().st_mtime_ns for path in tree.store.glob("attn*")}
    assert len(done) == 2
    assert tree.leftovers() == []

    process = tree.build([32])
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    assert "images 1/1" in out
    assert {path.name: path.stat().st_mtime_ns for path in tree.store.glob("attn*")} == done
    assert (tree.out / "attn_bwd_preprocess.sm_90.images.cc").exists()


@pytest.mark.parametrize("arch", ["sm_90", "gfx942"])
def test_an_image_that_spills_stops_the_build(arch: str, tmp_path: Path) -> None:
    """The program names it and packs nothing; the image itself says how much it spills."""
    tree = Tree(tmp_path, SPILLING)
    process = tree.build([32], arch=arch)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 1
    assert f"attn_bwd_preprocess {arch} F15 " in err
    assert f"{spec(arch).config} spills registers" in err
    assert not list(tree.out.glob("*.cc"))
    (binary,) = [path.read_bytes() for path in tree.store.glob("attn*") if path.suffix != ".json"]
    found = resources(arch_spec(arch).vendor, binary)
    assert found["spills"] > 0
    assert found["stack"] > 0


def test_an_image_whose_products_wait_for_each_other_stops_the_build(tmp_path: Path) -> None:
    """As one that spills, with the code of ptxas' message; to the tuner it is pruned, and an image of an older store,
    which does not tell, is not.
    """
    tree = Tree(tmp_path, SERIALISED)
    process = tree.build([32])
    _, err = process.communicate(timeout=60)
    assert process.returncode == 1
    assert f"{spec().config} has products that wait for each other: ptxas says C7517" in err
    assert not list(tree.out.glob("*.cc"))
    (found,) = tree.results([32]).values()
    assert (found["serialised"], found["spills"]) == (["C7517"], 0)
    image = CompiledImage("one", found, tmp_path)
    assert unfit(spec(), image) == "serialised products: ptxas says C7517"
    older = {name: value for name, value in found.items() if name != "serialised"}
    assert unfit(spec(), CompiledImage("one", older, tmp_path)) is None


def test_two_builds_at_once(tmp_path: Path) -> None:
    """Two builds of the same images into one store both succeed and embed the same bytes."""
    tree = Tree(tmp_path)
    first = tree.build([32, 64])
    time.sleep(0.05)
    second = tree.build([32, 64])
    for process in (first, second):
        assert process.wait(60) == 0, process.stderr.read() if process.stderr else ""
    store = ImageStore(tree.store)
    assert sum(store.get(path.stem) is not None for path in tree.store.glob("*.json")) == 2
    assert tree.leftovers() == []


def test_interrupt_leaves_nothing_half(tmp_path: Path) -> None:
    """Ctrl-C during a compile ends the program and its workers, leaves no temporary file, and keeps what was done."""
    tree = Tree(
        tmp_path,
        "if os.path.exists('slow'):\n    open('started', 'w').write(str(os.getpid()))\n    time.sleep(3600)\n" + GOOD,
    )
    (tmp_path / "slow").touch()
    process = tree.build([32, 64], jobs=2)
    deadline = time.monotonic() + 30
    while not ((tmp_path / "started").exists() and (tmp_path / "started").read_text()) and time.monotonic() < deadline:
        time.sleep(0.02)
    worker = int((tmp_path / "started").read_text())
    process.send_signal(signal.SIGINT)
    assert process.wait(20) == 130
    with pytest.raises(ProcessLookupError):
        os.kill(worker, 0)
    assert tree.leftovers() == []
    (tmp_path / "slow").unlink()
    assert tree.build([32, 64]).wait(60) == 0


def test_stale_list_is_refused(tmp_path: Path) -> None:
    """A list made before the kernel's source changed is refused: the tables name other images than would be packed."""
    tree = Tree(tmp_path)
    assert tree.build([32]).wait(60) == 0
    listed = json.loads((tree.out / "images.json").read_text())
    tree.kernel(GOOD.replace("0.0", "1.0"))
    arguments = ["--list", str(tree.out / "images.json"), "--out", str(tree.out), "--store", str(tree.store)]
    process = tree.popen("-m", "aotriton.codegen.compile", *arguments)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 1
    assert listed["packs"][0]["images"][0]["name"] in err
    assert "run cmake again" in err


def test_a_wanted_binary_is_compiled_until_it_comes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An image with another checksum than the wanted one is compiled again, and in the end given as it is."""
    monkeypatch.setattr(compile_pool, "TRIES", 3)
    one = spec()
    ((_, usual),) = compile_images([one], ImageStore(tmp_path / "usual"), 1)
    assert isinstance(usual, CompiledImage)
    ((_, wanted),) = compile_images([one], ImageStore(tmp_path), 1, checksums={one.name: usual.metadata["sha256"]})
    assert isinstance(wanted, CompiledImage)
    assert wanted.binary == usual.binary
    begun: list[str] = []
    begin = compile_pool._Worker.begin

    def noted(self: Any, *request: Any) -> None:
        begun.append(request[0]["name"])
        begin(self, *request)

    monkeypatch.setattr(compile_pool._Worker, "begin", noted)
    ((_, other),) = compile_images([one], ImageStore(tmp_path), 1, checksums={one.name: "another"})
    assert isinstance(other, CompiledImage)
    assert begun == [one.name] * 3


def test_the_users_settings_do_not_reach_the_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever of Triton, LLVM and ptxas is set where the build runs, the image is the same."""
    one = spec()
    ((_, usual),) = compile_images([one], ImageStore(tmp_path / "usual"), 1)
    assert isinstance(usual, CompiledImage)
    for name, value in {
        "TRITON_INTERPRET": "1",
        "TRITON_DEBUG": "1",
        "TRITON_ALWAYS_COMPILE": "0",
        "TRITON_KERNEL_OVERRIDE": "1",
        "TRITON_DEFAULT_FP_FUSION": "0",
        "TRITON_OVERRIDE_ARCH": "sm80",
        "TRITON_DISABLE_LINE_INFO": "0",
        "TRITON_PTXAS_PATH": str(tmp_path / "none"),
        "TRITON_CACHE_DIR": str(tmp_path / "cache"),
        "TRITON_KERNEL_DUMP": "1",
        "TRITON_DUMP_DIR": str(tmp_path / "dump"),
        "TRITON_STORE_BINARY_ONLY": "1",
        "DISABLE_PTXAS_OPT": "1",
        "DISABLE_LLVM_OPT": "1",
        "PTXAS_OPTIONS": "-O0",
        "LLVM_PASS_PLUGIN_PATH": str(tmp_path / "none.so"),
        "MLIR_ENABLE_DUMP": "1",
        "AMDGCN_ENABLE_DUMP": "1",
        "USE_IR_LOC": "ttir",
    }.items():
        monkeypatch.setenv(name, value)
    ((_, image),) = compile_images([one], ImageStore(tmp_path / "other"), 1)
    assert isinstance(image, CompiledImage), image
    assert image.metadata == usual.metadata
    assert {path.name for path in tmp_path.iterdir()} == {"usual", "other"}


def test_every_variable_of_triton_is_known(tmp_path: Path) -> None:
    """Each variable that Triton's settings read is kept from the compiler, but for those of the host's tools."""
    code = "import inspect, triton.knobs; print(inspect.getsource(triton.knobs))"
    source = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    found = set(re.findall(r'"([A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+)"', source))
    assert len(found) > 40
    assert {name for name in found if not compile_pool.COMPILER_VARIABLES.fullmatch(name)} == set()
    for kept in ("PATH", "HOME", "LD_LIBRARY_PATH", "PYTHONPATH", "AOTRITON_FAMILIES", "LANG", "CC"):
        assert not compile_pool.COMPILER_VARIABLES.fullmatch(kept)


def test_scratch_is_freed_as_it_goes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """When an image is begun, nothing of the one before is left; at the end nothing at all."""
    left: list[int] = []
    free = compile_pool._Worker._free

    def watched(self: compile_pool._Worker) -> None:
        free(self)
        left.append(sum(len(names) for folder, _, names in os.walk(self.scratch) if "triton" in folder))

    monkeypatch.setattr(compile_pool._Worker, "_free", watched)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    (tmp_path / "tmp").mkdir()
    specs = [spec(block_m=block) for block in (32, 64, 128)]
    assert all(isinstance(one, CompiledImage) for _, one in compile_images(specs, ImageStore(tmp_path / "store"), 1))
    assert left == [0, 0, 0]
    assert list((tmp_path / "tmp").iterdir()) == []


def test_a_build_insists_on_what_was_measured(tmp_path: Path) -> None:
    """An image that does not come out with the checksum of the list ends the program, which names it and the way out.
    Where that is taken, the image is packed and listed, beside those that were listed before.
    """
    tree = Tree(tmp_path)
    assert tree.build([32]).wait(60) == 0
    for path in tree.out.glob("*.images.*"):
        path.unlink()
    listed = json.loads((tree.out / "images.json").read_text())
    (row,) = listed["packs"][0]["images"]
    row["measured_sha256"] = "0" * 64
    row["certificates"] = [{"product": 0, "day": 20261124, "problems": 1, "checks": 1, "error": 0.5, "allowed": 0.75}]
    (tree.out / "images.json").write_text(json.dumps(listed))
    few = (
        "import sys; from aotriton.codegen import compile, compile_pool; compile_pool.TRIES = compile.TRIES = 3\n"
        "sys.exit(compile.main(sys.argv[1:]))"
    )
    arguments = ["--list", tree.out / "images.json", "--out", tree.out, "--store", tree.store]
    process = tree.popen("-c", few, *map(str, arguments))
    _, err = process.communicate(timeout=60)
    assert process.returncode == 1
    assert f"not the binary that was measured, in 3 tries each: {row['name']}" in err
    assert "-DAOTRITON_ALLOW_REBUILT=ON" in err
    assert not list(tree.out.glob("*.images.*"))
    rebuilt = tree.out / "rebuilt.txt"
    rebuilt.write_text("another\n")
    process = tree.popen("-c", few, *map(str, arguments), "--allow-rebuilt", str(rebuilt))
    _, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    assert rebuilt.read_text().split() == sorted(["another", row["name"]])
    assert len(list(tree.out.glob("*.images.*"))) == 2
    (source,) = tree.out.glob("*.images.cc")
    assert "20261124" not in source.read_text(), "another binary was checked"
    row["measured_sha256"] = hashlib.sha256(next(tree.store.rglob("*.cubin")).read_bytes()).hexdigest()
