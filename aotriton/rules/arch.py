"""GPU architectures: one record each, with all facts that compiler, tuner, generator and runtime need."""

from __future__ import annotations

from dataclasses import dataclass

# The features that a kernel may need and that not all GPUs have.
#   tma     tensor maps, and copies of boxes between global and shared memory (PTX: cp.async.bulk.tensor)
#   wgmma   matrix products of four warps out of shared memory (PTX: wgmma.mma_async)
#   buffer  instructions that reach 2 GiB from a base with 32-bit offsets, and drop what is beyond (AMD: buffer_load)
CAPABILITIES = ("tma", "wgmma", "buffer")

# Element types of tensors, in the order of the C++ enumeration.
DTYPES = ("none", "fp16", "bf16", "fp32", "i32", "i64", "i1", "i8", "u8", "fp8e4nv", "fp8e5", "fp8e4b8")
DTYPE_BYTES = {"fp16": 2, "bf16": 2, "fp32": 4, "i32": 4, "i64": 8} | dict.fromkeys(DTYPES[6:], 1)
FLOATS = ("fp16", "bf16", "fp32")  # in which operators compute; the others are indices, flags and what is quantised

# How a kernel accesses its tensors, in the order of the C++ enumeration.
#   general     64-bit offsets, any strides, any alignment
#   offset32    every tensor smaller than 2 GiB and 16-byte aligned rows: AMD buffer instructions
#   descriptor  TMA tensor maps, 16-byte aligned rows
ADDRESSING = ("general", "offset32", "descriptor")


@dataclass(frozen=True)
class Multiprocessor:
    """The capacity of one multiprocessor, or compute unit. Sizes are in bytes, registers have 32 bits."""

    registers: int
    register_granule: int  # registers of a thread are allocated in multiples of it
    warps: int
    programs: int
    shared: int  # including the system's part
    system_shared: int  # of the system, for each program


@dataclass(frozen=True)
class ComputeUnit:
    """Rates of a compute unit, per cycle unless stated otherwise, for estimates without a GPU."""

    cycles: int  # in a microsecond
    simds: int
    registers: int  # of a lane, vector and accumulation registers together; the waves of a SIMD share them
    register_granule: int
    most_waves: int  # of a SIMD
    matrix_flops: int  # of a SIMD
    vector_lanes: int  # of a SIMD
    shared_bytes: int  # from local memory
    cache_bytes: int  # from the L2 cache
    memory_bytes: int  # from memory, this unit's share
    latency: int  # cycles from a load to its use, barriers included, in a loop that prefetches nothing


@dataclass(frozen=True)
class ArchSpec:
    """One GPU architecture. Sizes are in bytes, registers have 32 bits."""

    arch: str
    vendor: str  # "cuda" or "hip": the driver that loads the images
    compiler_target: int | str  # as Triton's GPUTarget has it
    warp_size: int
    image_suffix: str
    capabilities: frozenset[str]
    addressing: tuple[str, ...]  # the values of the ADDRESSING choice that this arch has, the fastest last
    shared_limit: int  # dynamic shared memory that one program may ask for
    thread_registers: int  # that a thread can have
    fp8: str  # its 8-bit element type with 3 bits of mantissa, among DTYPES
    product: str  # the usual one, as its driver names it
    multiprocessors: int  # of that product, for an explanation when no GPU is present
    multiprocessor: Multiprocessor | None = None  # None: occupancy follows from the compute unit
    compute_unit: ComputeUnit | None = None  # of the static model; None: winners are measured

    def __post_init__(self) -> None:
        if self.vendor not in ("cuda", "hip"):
            raise ValueError(f"{self.arch}: vendor must be 'cuda' or 'hip', not {self.vendor!r}")
        if not set(self.addressing) <= set(ADDRESSING):
            raise ValueError(f"{self.arch}: addressing must be among {ADDRESSING}, not {self.addressing}")
        if not self.capabilities <= set(CAPABILITIES):
            raise ValueError(f"{self.arch}: capabilities must be among {CAPABILITIES}, not {sorted(self.capabilities)}")
        if (self.multiprocessor is None) == (self.compute_unit is None):
            raise ValueError(f"{self.arch}: either a multiprocessor's limits are known, or a compute unit's rates")


# Limits of compute capability 9.0: CUDA C++ Programming Guide, "Compute Capabilities". A block gets 227 KiB of 228, and
# 1 KiB of that is taken by the static part of every image.
SM_90 = ArchSpec(
    arch="sm_90",
    vendor="cuda",
    compiler_target=90,
    warp_size=32,
    image_suffix="cubin",
    capabilities=frozenset({"tma", "wgmma"}),
    addressing=("general", "descriptor"),
    shared_limit=226 * 1024,
    thread_registers=255,
    fp8="fp8e4nv",
    product="NVIDIA H100 80GB HBM3",
    multiprocessors=132,
    multiprocessor=Multiprocessor(
        registers=65536, register_granule=8, warps=64, programs=32, shared=228 * 1024, system_shared=1024
    ),
)

# A thread's registers with the accumulation ones. The compute unit of an MI300X at 2.1 GHz, after AMD's CDNA 3 white
# paper: 5.3 TB/s among 304 units.
GFX942 = ArchSpec(
    arch="gfx942",
    vendor="hip",
    compiler_target="gfx942",
    warp_size=64,
    image_suffix="hsaco",
    capabilities=frozenset({"buffer"}),
    addressing=("general", "offset32"),
    shared_limit=64 * 1024,
    thread_registers=512,
    fp8="fp8e4b8",
    product="AMD Instinct MI300X",
    multiprocessors=304,
    compute_unit=ComputeUnit(
        cycles=2100,
        simds=4,
        registers=512,
        register_granule=8,
        most_waves=8,
        matrix_flops=512,
        vector_lanes=16,
        shared_bytes=128,
        cache_bytes=64,
        memory_bytes=8,
        latency=1000,
    ),
)

ARCHS = (SM_90, GFX942)  # in the order of the runtime's tables


STATIC = tuple(one.arch for one in ARCHS if one.compute_unit)  # that the static model describes


def arch_spec(arch: str) -> ArchSpec:
    """The record of ``arch``; ValueError names the archs that exist."""
    for one in ARCHS:
        if one.arch == arch:
            return one
    raise ValueError(f"unknown arch {arch!r}: choose from {', '.join(one.arch for one in ARCHS)}")
