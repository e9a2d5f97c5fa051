"""The only table of archs: what the compiler, the tuner, the code generator and the runtime must know of each."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Target:
    """One GPU architecture. Sizes are in bytes, register counts are per multiprocessor and 32 bits wide."""

    arch: str
    vendor: str  # "cuda" or "hip": the driver that loads the images
    warp_size: int
    image_suffix: str
    shared_limit: int  # dynamic shared memory that one program may ask for
    product: str  # the usual one, as its driver names it
    multiprocessors: int  # of that product, for an explanation when no GPU is present
    addressing: tuple[str, ...]  # the values of the ADDRESSING choice that this arch has

    def __post_init__(self) -> None:
        if self.vendor not in ("cuda", "hip"):
            raise ValueError(f"{self.arch}: vendor must be 'cuda' or 'hip', not {self.vendor!r}")
        if not set(self.addressing) <= set(ADDRESSING):
            raise ValueError(f"{self.arch}: addressing must be among {ADDRESSING}, not {self.addressing}")


REGISTERS = {"cuda": 255, "hip": 512}  # 32-bit ones that a thread can have; on gfx942 with the accumulation ones

# Element types of tensors, in the order of the C++ enumeration.
DTYPES = ("none", "fp16", "bf16", "fp32")
DTYPE_BYTES = {"fp16": 2, "bf16": 2, "fp32": 4}

# How a kernel reaches its tensors, in the order of the C++ enumeration.
#   general     64-bit offsets, any strides, any alignment
#   offset32    every tensor smaller than 2 GiB and 16-byte aligned rows: AMD buffer instructions
#   descriptor  TMA tensor maps, 16-byte aligned rows
ADDRESSING = ("general", "offset32", "descriptor")

TARGETS = (
    # 227 KiB per block is the sm_90 limit; 1 KiB of it is taken by the static part of every image.
    Target("sm_90", "cuda", 32, "cubin", 226 * 1024, "NVIDIA H100 80GB HBM3", 132, ("general", "descriptor")),
    Target("gfx942", "hip", 64, "hsaco", 64 * 1024, "AMD Instinct MI300X", 304, ("general", "offset32")),
)


def target(arch: str) -> Target:
    """The row of ``arch``; ValueError names the archs that exist."""
    for row in TARGETS:
        if row.arch == arch:
            return row
    raise ValueError(f"unknown arch {arch!r}: choose from {', '.join(row.arch for row in TARGETS)}")
