"""The image service: from image specs to compiled images; as a program, from an image list to packed images.

The only file here that imports Triton, and only in a worker process.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import io
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import redirect_stdout, suppress
from pathlib import Path
from typing import Any

from aotriton.codegen.compile_pool import (
    OTHER_SOURCE,
    TRIES,
    WarmCompiler,
    compile_images,
    cpu_count,
    named_request,
    request_of,
    spec_of,
)
from aotriton.codegen.missing_winners import where
from aotriton.codegen.ptxas import serialised
from aotriton.codegen.store import CompiledImage, CompileFailure, ImageStore
from aotriton.rules.family import source_module
from aotriton.rules.image import TRITON_VERSION, ImageSpec, source_file
from aotriton.rules.provider import Compiler, Provider

__all__ = [
    "OTHER_SOURCE",
    "CompileFailure",
    "CompiledImage",
    "ImageStore",
    "WarmCompiler",
    "compile_images",
    "cpu_count",
    "main",
    "named_request",
    "request_of",
    "spec_of",
]

WORKSPACE_ALIGNMENT = 256  # bytes; kWorkspaceAlignment in v2src/call/call.h


def serve() -> None:
    """Runs a worker: reads requests from stdin and answers them on the original stdout, until stdin closes.

    The output of libraries goes to stderr, so that it cannot mix with the answers.
    """
    with os.fdopen(os.dup(1), "w") as answers:
        os.dup2(2, 1)
        with suppress(ImportError):  # before the first image asks for it; what is missing, its error says
            importlib.import_module("triton.experimental.gluon")
        for line in sys.stdin:
            request = json.loads(line)
            try:
                spec = spec_of(request)
                if spec.name != request["name"]:
                    raise RuntimeError(OTHER_SOURCE)
                provider = spec.functional.kernel.provider
                binary, metadata = _provided(spec, provider) if provider else _compile(spec)
                Path(request["binary"]).write_bytes(binary)
                answer: dict[str, Any] = {"metadata": metadata}
            except Exception as error:  # any exception of the compiler is this image's result
                answer = {"error": _said(error)}
            answers.write(json.dumps(answer) + "\n")
            answers.flush()


def _said(error: BaseException) -> str:
    """What an error says, and the first of those that it came from: of a call of a call Triton's says only where."""
    first = error
    while first.__cause__:
        first = first.__cause__
    lines = [f"{type(one).__name__}: {one}" for one in (error, first)]
    return "\n".join(dict.fromkeys(lines))


def _compile(spec: ImageSpec) -> tuple[bytes, dict[str, Any]]:
    """The binary of ``spec`` and its metadata."""
    import triton
    from triton import knobs
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource
    from triton.experimental.gluon._runtime import GluonASTSource

    if triton.__version__ != TRITON_VERSION:
        raise RuntimeError(
            f"Triton {TRITON_VERSION} is needed, this is {triton.__version__}: measurements are tied to it"
        )
    functional, arch, request = spec.functional, spec.functional.arch_spec, spec.compiler_request()
    kernel = functional.function
    function = getattr(importlib.import_module(source_module(functional.kernel, kernel)), kernel)
    place = {name: (index,) for index, name in enumerate(function.arg_names)}
    if list(place) != list(request["signature"]):
        raise RuntimeError(f"{kernel} takes {list(place)}, its description says {list(request['signature'])}")
    source = GluonASTSource if function.is_gluon() else ASTSource
    knobs.nvidia.dump_ptxas_log = True  # to stdout
    said = io.StringIO()
    try:
        with redirect_stdout(said):
            compiled = triton.compile(
                source(
                    fn=function,
                    signature=request["signature"],
                    constexprs={place[name]: _constant(value) for name, value in request["constexprs"].items()},
                    attrs={place[name]: pairs for name, pairs in request["attrs"].items()},
                ),
                target=GPUTarget(arch.vendor, arch.compiler_target, arch.warp_size),
                options=request["options"],
            )
    finally:
        print(said.getvalue(), end="", flush=True)
    binary, made = compiled.asm[arch.image_suffix], compiled.metadata._asdict()
    scratch = made.get("global_scratch_size") or 0
    if scratch and not functional.kernel.scratch:
        raise RuntimeError(
            f"it needs {scratch} bytes of scratch memory for each program, as a kernel that makes tensor descriptors"
            f" does on {arch.arch}: its description must say scratch=True, so that calls bring a workspace"
        )
    if scratch and made["global_scratch_align"] > WORKSPACE_ALIGNMENT:
        raise RuntimeError(
            f"it needs scratch memory that is aligned to {made['global_scratch_align']} bytes, and a workspace is to"
            f" {WORKSPACE_ALIGNMENT}"
        )
    ptx = compiled.asm.get("ptx")  # on CUDA, where kernels may begin early
    if functional.kernel.begins_early and ptx is not None and "griddepcontrol.wait" not in ptx:
        raise RuntimeError("it begins early and waits for no kernel before it: gdc_wait() is missing")
    return binary, {
        **_told(spec),
        "entry": made["name"],
        "threads": arch.warp_size * made["num_warps"],
        "shared": made["shared"],
        "global_scratch": scratch,
        "descriptors": [
            {"rank": len(row["block_size"]), "swizzle": row["swizzle"], "block": list(row["block_size"])}
            for row in made.get("tensordesc_meta") or []
        ],
        **resources(arch.vendor, binary),
        "serialised": serialised(said.getvalue()),
        "triton": triton.__version__,
    }


def _constant(given: Any) -> Any:
    """The value of a constexpr of a compiler request; types are Triton's."""
    from triton import language as tl

    if not isinstance(given, dict):
        return given
    text = given["spelled"]
    kind = re.fullmatch(r"tl\.dtype\('(\w+)'\)", text)
    return tl.dtype(kind[1]) if kind else ast.literal_eval(text)


def _provided(spec: ImageSpec, provider: Provider) -> tuple[bytes, dict[str, Any]]:
    """The binary and metadata of a kernel that is not Triton's."""
    compiler: Compiler = importlib.import_module(provider.module)
    if compiler.version() != provider.version:
        raise RuntimeError(
            f"{provider.module} {provider.version} is needed, this is {compiler.version()}: measurements are tied to it"
        )
    binary, made = compiler.compile(spec, source_file(spec.functional))
    told = {"global_scratch": 0, "descriptors": [], provider.module: provider.version}
    return binary, {**_told(spec), **told, **made}


def _told(spec: ImageSpec) -> dict[str, Any]:
    """The first fields of every image's metadata."""
    functional = spec.functional
    return {
        "kernel": functional.kernel.name,
        "arch": functional.arch,
        "functional": str(functional),
        "config": spec.config,
        **({"level": functional.level} if functional.level else {}),
    }


def resources(vendor: str, binary: bytes) -> dict[str, int]:
    """The registers, spills and bytes of stack of one thread, read from the image itself."""
    return _cubin_resources(binary) if vendor == "cuda" else _hsaco_resources(binary)


def _cubin_resources(cubin: bytes) -> dict[str, int]:
    """The registers, spills and stack of a cubin. Spills are bytes, and the whole stack counts."""
    import triton

    tool = Path(triton.__file__ or "").parent / "backends/nvidia/bin/cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        usage = subprocess.run([tool, "-res-usage", file.name], capture_output=True, text=True, check=True).stdout
    found = re.search(r"REG:(\d+) STACK:(\d+)", usage)
    if not found:
        raise RuntimeError(f"cuobjdump -res-usage gave no register count: {usage!r}")
    return {"registers": int(found[1]), "spills": int(found[2]), "stack": int(found[2])}


def _hsaco_resources(hsaco: bytes) -> dict[str, int]:
    """Registers are VGPRs with AGPRs, spills count vector and scalar registers in memory.

    Without a stack, scalar registers that are spilled lie in lanes of vector registers, which takes no memory.

    The metadata note is in MessagePack: a short string's length is in the byte before it, a number is one byte or
    marked by its size.
    """

    def note(field: str) -> int:
        key = re.escape(bytes([0xA0 | len(field)]) + field.encode())
        found = re.findall(key + rb"(?:([\x00-\x7f])|\xcc(.)|\xcd(..)|\xce(....))", hsaco, re.DOTALL)
        if len(found) != 1:
            raise RuntimeError(f"the metadata note has {field} {len(found)} times")
        return int.from_bytes(b"".join(found[0]), "big")

    stack = note(".private_segment_fixed_size")
    spills = note(".vgpr_spill_count") + note(".sgpr_spill_count") if stack else 0
    return {"registers": note(".vgpr_count"), "spills": spills, "stack": stack}


def main(arguments: list[str] | None = None) -> int:
    """Compiles and packs the images of the image list; returns 1 if an image failed, spills or is serialised."""
    from aotriton.codegen import pack  # needs jinja2, which a tuning machine may lack

    parser = argparse.ArgumentParser(prog="aotriton.codegen.compile", description=__doc__)
    parser.add_argument("--list", type=Path, required=True, help="images.json, as written by aotriton.codegen.generate")
    parser.add_argument("--out", type=Path, required=True, help="folder for <kernel>.<arch>.images.cc and .bin")
    parser.add_argument(
        "--store",
        type=Path,
        help="image store (default: $AOTRITON_IMAGE_STORE, or aotriton/images in the cache folder)",
    )
    parser.add_argument("--jobs", type=int, default=cpu_count(), help="worker processes (default: one a core)")
    parser.add_argument("--compress", choices=("zlib", "none"), default="zlib", help="how images are embedded")
    parser.add_argument(
        "--allow-rebuilt",
        type=Path,
        metavar="LIST",
        help="images that do not come out as they were measured are added to this file, and are no error",
    )
    options = parser.parse_args(arguments)

    packs = json.loads(options.list.read_text())["packs"]
    requests = [{**image, "kernel": row["kernel"], "arch": row["arch"]} for row in packs for image in row["images"]]
    specs = [spec_of(request) for request in requests]
    for spec, request in zip(specs, requests, strict=True):
        if spec.name != request["name"]:
            print(f"{options.list}: {request['name']} is {spec.name} by now; run cmake again", file=sys.stderr)
            return 1
    checksums = {request["name"]: request["measured_sha256"] for request in requests if "measured_sha256" in request}
    images: dict[str, CompiledImage] = {}
    show = _progress(len({spec.name for spec in specs}))
    for spec, result in compile_images(specs, ImageStore(options.store), options.jobs, checksums=checksums):
        if isinstance(result, CompileFailure):
            print(
                f"\nerror: {where(spec.functional)}: {spec.config} did not compile\n{result.message}", file=sys.stderr
            )
            return 1
        if result.spills and not spec.functional.may_spill:
            print(f"\nerror: {where(spec.functional)}: {spec.config} spills registers", file=sys.stderr)
            return 1
        if codes := result.serialised:
            print(
                f"\nerror: {where(spec.functional)}: {spec.config} has products that wait for each other: ptxas says"
                f" {', '.join(codes)}",
                file=sys.stderr,
            )
            return 1
        images[result.name] = result
        show(len(images))
    other = sorted(name for name in checksums if images[name].metadata["sha256"] != checksums[name])
    if other and not options.allow_rebuilt:
        print(
            f"\nerror: not the binary that was measured, in {TRIES} tries each: {', '.join(other)}\n"
            "-DAOTRITON_ALLOW_REBUILT=ON ships them all the same, and does not call them measured",
            file=sys.stderr,
        )
        return 1
    if options.allow_rebuilt:
        known = options.allow_rebuilt.read_text().split() if options.allow_rebuilt.is_file() else []
        options.allow_rebuilt.write_text("".join(f"{name}\n" for name in sorted({*known, *other})))
    # The checks were of the measured binaries.
    certificates = {one["name"]: one.get("certificates", []) for one in requests if one["name"] not in other}
    for row in packs:
        members = [images[name] for name in sorted({image["name"] for image in row["images"]})]
        try:
            of = row["family"], row["kernel"], row["arch"]
            pack.write(options.out, *of, members, options.compress == "zlib", certificates)
        except ValueError as error:
            print(f"\nerror: the image store is damaged: {error}", file=sys.stderr)
            return 1
    return 0


def _progress(total: int) -> Callable[[int], None]:
    """Prints how many images are done: on one line of a terminal, else at every tenth of the total."""
    terminal = sys.stdout.isatty()

    def show(done: int) -> None:
        if terminal:
            print(f"\rimages {done}/{total}", end="\n" if done == total else "", flush=True)
        elif done * 10 // total > (done - 1) * 10 // total:
            print(f"images {done}/{total}", flush=True)

    return show


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)  # stored images stay: the next run continues from there
