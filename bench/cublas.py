"""cuBLAS as a peer: cublasLt's matrix product through ctypes, with every algorithm that its heuristics propose.

The library is the one that torch brings along. A benchmark makes one `CublasLt`, asks it for the `Algorithm`s of a
problem, times them and keeps the fastest: a fair peer is its best, not the first of its list.
"""

from __future__ import annotations

import ctypes
import glob
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

_COMPUTE_32F = 68
_TYPES = {"torch.float32": 0, "torch.float16": 2, "torch.bfloat16": 14}
_TRANSA, _TRANSB = 3, 4
_BATCH_COUNT, _BATCH_STRIDE = 5, 6
_MAX_WORKSPACE = 1


class _Result(ctypes.Structure):
    """cublasLtMatmulHeuristicResult_t."""

    _fields_ = (
        ("algorithm", ctypes.c_uint64 * 8),
        ("workspace", ctypes.c_size_t),
        ("state", ctypes.c_int),
        ("waves", ctypes.c_float),
        ("reserved", ctypes.c_int * 4),
    )


def _library() -> ctypes.CDLL:
    """libcublasLt as torch has loaded it, or from the packages beside torch."""
    import torch

    site = os.path.dirname(os.path.dirname(torch.__file__))
    names = [f"libcublasLt.so.{torch.version.cuda.split('.')[0]}"]
    names += sorted(glob.glob(os.path.join(site, "nvidia", "*", "lib", "libcublasLt.so.*")))
    for name in names:
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    raise OSError(f"no libcublasLt among {names}")


@dataclass(frozen=True)
class Algorithm:
    """One way of cublasLt to compute one product on given tensors; calling it enqueues it on torch's current stream."""

    peer: CublasLt
    rank: int  # place in the list of the heuristics
    workspace: int  # bytes
    arguments: Sequence[Any]

    def __call__(self) -> None:
        import torch

        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        self.peer.check(self.peer.library.cublasLtMatmul(*self.arguments, stream))


class CublasLt:
    """A handle of cublasLt and `workspace` bytes on the current device."""

    def __init__(self, workspace: int = 64 << 20) -> None:
        import torch

        self.library = _library()
        self.library.cublasLtGetVersion.restype = ctypes.c_size_t
        self.version = int(self.library.cublasLtGetVersion())
        self._handle = ctypes.c_void_p()
        self.check(self.library.cublasLtCreate(ctypes.byref(self._handle)))
        self._workspace = torch.empty(workspace, dtype=torch.uint8, device="cuda")
        self._one, self._zero = ctypes.c_float(1.0), ctypes.c_float(0.0)

    @staticmethod
    def check(status: int) -> None:
        if status != 0:
            raise RuntimeError(f"cublasLt: status {status}")

    def algorithms(self, a: Any, b: Any, d: Any, most: int = 16) -> list[Algorithm]:
        """Up to `most` algorithms for d = a @ b, best guess first.

        a [batch, M, K], b [batch, K, N], d [batch, M, N]: torch tensors of one 16-bit type. Rows or columns of a and b
        are contiguous, rows of d are.
        """
        batch, m, k = a.shape
        n = b.shape[2]
        # To cublasLt, matrices are stored by columns: it computes dᵀ [N, M] = bᵀ @ aᵀ.
        description = ctypes.c_void_p()
        self.check(self.library.cublasLtMatmulDescCreate(ctypes.byref(description), _COMPUTE_32F, 0))
        left, transpose_left = self._operand(b.transpose(1, 2), n, k)
        right, transpose_right = self._operand(a.transpose(1, 2), k, m)
        result = self._layout(d, n, m, d.stride(1), batch)
        for attribute, transposed in ((_TRANSA, transpose_left), (_TRANSB, transpose_right)):
            value = ctypes.c_int32(transposed)
            self.check(self.library.cublasLtMatmulDescSetAttribute(description, attribute, ctypes.byref(value), 4))
        preference = ctypes.c_void_p()
        self.check(self.library.cublasLtMatmulPreferenceCreate(ctypes.byref(preference)))
        limit = ctypes.c_size_t(self._workspace.numel())
        self.check(
            self.library.cublasLtMatmulPreferenceSetAttribute(preference, _MAX_WORKSPACE, ctypes.byref(limit), 8)
        )
        found, count = (_Result * most)(), ctypes.c_int(0)
        self.check(
            self.library.cublasLtMatmulAlgoGetHeuristic(
                self._handle, description, left, right, result, result, preference, most, found, ctypes.byref(count)
            )
        )
        self.library.cublasLtMatmulPreferenceDestroy(preference)
        pointers = [ctypes.c_void_p(tensor.data_ptr()) for tensor in (b, a, d)]
        return [
            Algorithm(
                self,
                rank,
                found[rank].workspace,
                (
                    self._handle, description, ctypes.byref(self._one), pointers[0], left, pointers[1], right,
                    ctypes.byref(self._zero), pointers[2], result, pointers[2], result,
                    ctypes.byref(found[rank].algorithm), ctypes.c_void_p(self._workspace.data_ptr()),
                    ctypes.c_size_t(self._workspace.numel()),
                ),
            )
            for rank in range(count.value)
            if found[rank].state == 0
        ]  # fmt: skip

    def _operand(self, x: Any, rows: int, columns: int) -> tuple[ctypes.c_void_p, bool]:
        """Layout of x [batch, rows, columns] as it is stored by columns, and whether that is transposed."""
        transposed = x.stride(1) != 1
        if transposed:
            return self._layout(x, columns, rows, x.stride(1), x.shape[0]), True
        return self._layout(x, rows, columns, x.stride(2), x.shape[0]), False

    def _layout(self, x: Any, rows: int, columns: int, leading: int, batch: int) -> ctypes.c_void_p:
        layout = ctypes.c_void_p()
        self.check(
            self.library.cublasLtMatrixLayoutCreate(
                ctypes.byref(layout), _TYPES[str(x.dtype)],
                ctypes.c_uint64(rows), ctypes.c_uint64(columns), ctypes.c_int64(leading),
            )
        )  # fmt: skip
        count, stride = ctypes.c_int32(batch), ctypes.c_int64(x.stride(0))
        self.check(self.library.cublasLtMatrixLayoutSetAttribute(layout, _BATCH_COUNT, ctypes.byref(count), 4))
        self.check(self.library.cublasLtMatrixLayoutSetAttribute(layout, _BATCH_STRIDE, ctypes.byref(stride), 8))
        return layout
