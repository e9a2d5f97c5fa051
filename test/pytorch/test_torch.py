"""torch.ops.aotriton on tensors of a CPU, where it computes as the formula reads: values, layouts, errors, autograd,
autocast and vmap. What torch makes of it on a GPU is in test/gpu/test_torch.py.
"""

from __future__ import annotations

import contextlib
import math
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="torch is not installed: the preset torch has it")
pytest.importorskip(
    "aotriton.torch", reason="libaotriton_torch.so is not built: the preset torch does", exc_type=ImportError
)

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

import aotriton
from aotriton.torch import attention, gemm
from aotriton.torch.library import AUTOGRAD, NAME, find

OPS = torch.ops.aotriton
LEAST = float(torch.finfo(torch.float32).min)  # AOTRITON_DEFAULT_SCALE of c.h, which says there that none is given
NO_SCALE = "which must be finite, and not negative"
EPS = {torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8}  # of one rounding


def tensor(*sizes: int, dtype: Any = torch.bfloat16, seed: int = 0) -> Any:
    return torch.randn(sizes, generator=torch.Generator().manual_seed(seed + sum(sizes))).to(dtype)


def transposed(*sizes: int, **how: Any) -> Any:
    """Heads and rows exchanged in memory, as a model's projections leave them."""
    batch, heads, rows, columns = sizes
    return tensor(batch, rows, heads, columns, **how).transpose(1, 2)


def hidden(rows: int, keys: int, causal: bool, variant: str = "top_left", left: int = -1, right: int = -1) -> Any:
    """Keys that rows do not see."""
    own = torch.arange(rows)[:, None] + (keys - rows if variant == "bottom_right" else 0)
    key = torch.arange(keys)
    beyond = (key > own) if causal else torch.zeros(rows, keys, dtype=torch.bool)
    return beyond | ((own - key > left) & (left >= 0)) | ((key - own > right) & (right >= 0))


def scores_of(q: Any, k: Any, causal: bool, scale: float | None, *mask: Any) -> Any:
    k = k.double().repeat_interleave(q.shape[1] // k.shape[1], 1)
    scores = q.double() @ k.mT * (q.shape[3] ** -0.5 if scale is None else scale)
    rows, keys = scores.shape[-2:]
    return scores.masked_fill(hidden(rows, keys, causal, *mask), -math.inf)


def truth(q: Any, k: Any, v: Any, causal: bool = False, scale: float | None = None, *mask: Any) -> Any:
    """A row that sees no key is zero."""
    weights = scores_of(q, k, causal, scale, *mask).softmax(-1).nan_to_num()
    return weights @ v.double().repeat_interleave(q.shape[1] // v.shape[1], 1)


def gradients(q: Any, k: Any, v: Any, dout: Any, causal: bool, scale: float | None = None, *mask: Any) -> list[Any]:
    leaves = a, b, c = [x.double().requires_grad_() for x in (q, k, v)]
    return [x.nan_to_num() for x in torch.autograd.grad(truth(a, b, c, causal, scale, *mask), leaves, dout.double())]


def close(got: Any, expected: Any, roundings: float = 1) -> None:
    """Within so many roundings of the largest element."""
    assert got.shape == expected.shape
    worst = (got.double() - expected).abs().max().item() if got.numel() else 0
    assert worst <= roundings * EPS[got.dtype] * expected.abs().max().item() + 1e-6, worst


@pytest.mark.parametrize("make", [tensor, transposed])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("scale", [None, 0.3, 0.0, 1e-60])
@pytest.mark.parametrize(("heads", "heads_k"), [(2, 2), (4, 2), (3, 1)])
@pytest.mark.parametrize("dtype", list(EPS))
def test_attention_is_what_the_formula_says(
    make: Callable[..., Any], causal: bool, scale: float | None, heads: int, heads_k: int, dtype: Any
) -> None:
    """out and logsumexp are within a rounding of the formula, whatever the scale, groups and strides; out has q's
    strides.
    """
    q, k, v = (make(2, h, 19, 24, dtype=dtype, seed=i) for i, h in enumerate((heads, heads_k, heads_k)))
    out, logsumexp = OPS.attn_fwd(q, k, v, sm_scale=scale, causal=causal)
    close(out, truth(q, k, v, causal, scale))
    assert out.stride() == q.stride()
    torch.testing.assert_close(logsumexp.double(), scores_of(q, k, causal, scale).logsumexp(-1), rtol=0, atol=1e-5)
    assert torch.equal(attention(q, k, v, causal=causal, scale=scale), out)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("scale", [0.3, 0.0, 1e-60, None])
@pytest.mark.parametrize("dtype", list(EPS))
def test_gradients_are_what_the_formula_says(causal: bool, scale: float | None, dtype: Any) -> None:
    """dq, dk and dv of grouped heads are within a few roundings of the formula, and lie as q, k and v do."""
    q, k, v, dout = (transposed(2, h, 19, 24, dtype=dtype, seed=i) for i, h in enumerate((4, 2, 2, 4)))
    out, logsumexp = OPS.attn_fwd(q, k, v, sm_scale=scale, causal=causal)
    found = OPS.attn_bwd(q, k, v, out, dout, logsumexp, sm_scale=scale, causal=causal)
    for got, expected, of in zip(found, gradients(q, k, v, dout, causal, scale), (q, k, v), strict=True):
        close(got, expected, 4)
        assert got.stride() == of.stride()


def test_unequal_lengths_and_rows_that_are_not_contiguous() -> None:
    """Without a mask any lengths do; a tensor whose last dimension is not contiguous is as good as its copy."""
    q, k, v = tensor(1, 2, 5, 8), tensor(1, 2, 11, 8, seed=1), tensor(1, 2, 8, 11, seed=2).mT
    out, logsumexp = OPS.attn_fwd(q.mT.contiguous().mT, k, v)
    close(out, truth(q, k, v))
    assert torch.equal(out, OPS.attn_fwd(q, k, v.contiguous())[0])
    ones = torch.ones(()).bfloat16().expand(out.shape)
    for got, expected in zip(OPS.attn_bwd(q, k, v, out, ones, logsumexp), gradients(q, k, v, ones, False), strict=True):
        close(got, expected, 8)


MASKS = [
    (causal, variant, left, right)
    for causal in (False, True)
    for variant in ("top_left", "bottom_right")
    for left, right in ((-1, -1), (3, -1), (-1, 2), (0, 5), (4, 0), (3, 9))
]


@pytest.mark.parametrize("mask", MASKS, ids=str)
@pytest.mark.parametrize(("rows", "keys"), [(9, 9), (5, 12), (12, 5)])
def test_masks_are_what_the_formula_says(rows: int, keys: int, mask: tuple[bool, str, int, int]) -> None:
    """Windows and causal masks of both variants, of any lengths: out, logsumexp and gradients, autograd's too, where a
    row sees no key zeros and minus infinity.
    """
    causal, variant, left, right = mask
    q, dout = transposed(1, 4, rows, 16), transposed(1, 4, rows, 16, seed=3)
    k, v = (transposed(1, 2, keys, 16, seed=seed) for seed in (1, 2))
    how: dict[str, Any] = {"causal": causal, "causal_variant": variant, "window_left": left, "window_right": right}
    out, logsumexp = OPS.attn_fwd(q, k, v, sm_scale=0.3, **how)
    close(out, truth(q, k, v, causal, 0.3, variant, left, right))
    expected = scores_of(q, k, causal, 0.3, variant, left, right).logsumexp(-1)
    torch.testing.assert_close(logsumexp.double(), expected, rtol=0, atol=1e-5)
    found = OPS.attn_bwd(q, k, v, out, dout, logsumexp, sm_scale=0.3, **how)
    true = gradients(q, k, v, dout, causal, 0.3, variant, left, right)
    for got, exact in zip(found, true, strict=True):
        close(got, exact, 6)
    leaves = [x.clone().requires_grad_() for x in (q, k, v)]
    by_autograd = torch.autograd.grad(attention(*leaves, scale=0.3, **how), leaves, dout)
    assert all(torch.equal(a, b) for a, b in zip(by_autograd, found, strict=True))


def test_no_keys() -> None:
    """Without keys the result is zeros and logsumexp minus infinity; without queries there is nothing."""
    q, none = tensor(1, 2, 3, 8), tensor(1, 2, 0, 8)
    out, logsumexp = OPS.attn_fwd(q, none, none)
    assert not out.any()
    assert (logsumexp == -math.inf).all()
    assert OPS.attn_fwd(none, q, q)[0].shape == none.shape


@pytest.mark.parametrize("activation", ["none", "relu", "gelu", "silu"])
@pytest.mark.parametrize("batch", [(), (3,)])
@pytest.mark.parametrize("dtype", list(EPS))
def test_gemm_is_what_the_formula_says(activation: str, batch: tuple[int, ...], dtype: Any) -> None:
    """activation(alpha a b + bias) within a rounding, of matrices and of batches, with b by rows and by columns."""
    a, b, bias = tensor(*batch, 5, 16, dtype=dtype), tensor(*batch, 16, 7, dtype=dtype), tensor(7, dtype=dtype)
    before = a.double() @ b.double() * 0.5 + bias.double()
    functions = {
        "none": lambda x: x,
        "relu": torch.relu,
        "gelu": torch.nn.functional.gelu,
        "silu": torch.nn.functional.silu,
    }
    got = OPS.gemm(a, b, bias, alpha=0.5, activation=activation)
    close(got, functions[activation](before))
    assert got.is_contiguous()
    assert torch.equal(gemm(a, b.mT.contiguous().mT, bias, alpha=0.5, activation=activation), got)


Q, K, A, B = tensor(2, 4, 6, 8), tensor(2, 2, 6, 8), tensor(5, 16), tensor(16, 7)
WRONG = [
    (lambda: OPS.attn_fwd(Q.float(), K, K), "attn_fwd: k has dtype bfloat16, others have float32"),
    (lambda: OPS.attn_fwd(Q, K, K.half()), "attn_fwd: v has dtype float16, others have bfloat16"),
    (
        lambda: OPS.attn_fwd(Q, K, K, causal=True, causal_variant="left"),
        "attn_fwd: causal_variant is 'left', which must be one of top_left, bottom_right",
    ),
    (lambda: OPS.attn_fwd(Q[0], K, K), "attn_fwd: q has 3 dimensions, which must be 4"),
    (lambda: OPS.attn_fwd(Q, K, K[0]), "attn_fwd: v has 3 dimensions, which must be 4"),
    (lambda: OPS.attn_fwd(Q[:, :3], K, K), "attn_fwd: q has 3 heads, which must be a multiple of the 2 of k"),
    (lambda: OPS.attn_fwd(Q, K, K, sm_scale=-1.0), "attn_fwd: sm_scale is -1, which must be finite, and not negative"),
    (
        lambda: OPS.attn_fwd(Q, K, K, sm_scale=-1e300),
        "attn_fwd: sm_scale is -inf, which must be finite, and not negative",
    ),
    (
        lambda: OPS.attn_fwd(Q, K, K, sm_scale=LEAST),
        "attn_fwd: sm_scale is -inf, which must be finite, and not negative",
    ),
    (lambda: OPS.attn_bwd(Q, K, K, Q, Q, Q), "attn_bwd: logsumexp has 4 dimensions, which must be 3"),
    (lambda: OPS.attn_bwd(Q, K, K, Q, K, Q[..., 0].float()), "attn_bwd: dout has heads_q 2, q has 4"),
    (lambda: OPS.gemm(A, B, activation="tanh"), 'gemm: activation is "tanh", which must be none, relu, gelu or silu'),
    (lambda: OPS.gemm(A[0], B), "gemm: a has 1 dimensions, which must be 2 or 3"),
    (lambda: OPS.gemm(A, B[None]), "gemm: b has 3 dimensions, which must be 2"),
    (lambda: OPS.gemm(A, A), "gemm: b has k 5, a has 16"),
    (lambda: OPS.gemm(A, B, B), "gemm: bias has 2 dimensions, which must be 1"),
    (lambda: OPS.gemm(A, B, alpha=0.0), "gemm: alpha is 0, which must be finite, and not 0"),
]


@pytest.mark.parametrize(("call", "message"), WRONG, ids=[message for _, message in WRONG])
def test_errors_name_the_argument(call: Callable[[], Any], message: str) -> None:
    """What cannot be computed on a GPU is refused on a CPU, too, in the library's words."""
    with pytest.raises(RuntimeError) as raised:
        call()
    assert str(raised.value).splitlines()[0] == message


def test_attention_has_gradients() -> None:
    """autograd's gradients are attn_bwd's, of those inputs that ask for one; logsumexp has none."""
    q, k, v, dout = (tensor(1, h, 9, 16, seed=i) for i, h in enumerate((4, 2, 2, 4)))
    q.requires_grad_(), v.requires_grad_()
    out, logsumexp = OPS.attn_fwd(q, k, v, sm_scale=0.3, causal=True)
    assert not logsumexp.requires_grad
    dq, dv = torch.autograd.grad(out, (q, v), dout)
    expected = OPS._attn_bwd(q, k, v, out, dout, logsumexp, sm_scale=0.3, causal=True)
    assert torch.equal(dq, expected[0])
    assert torch.equal(dv, expected[2])
    with torch.no_grad():
        assert not OPS.attn_fwd(q, k, v)[0].requires_grad


@pytest.mark.parametrize("asking", ["q", "k", "v", "qk", "kv", "qkv"])
@pytest.mark.parametrize("hints", ["", "schedule=dfs"])
def test_some_inputs_ask_for_a_gradient(asking: str, hints: str) -> None:
    """Whichever inputs ask for a gradient get attn_bwd's, and the others none."""
    given = {name: tensor(1, 2, 9, 16, seed=i).requires_grad_(name in asking) for i, name in enumerate("qkv")}
    dout = tensor(1, 2, 9, 16, seed=3)
    out, logsumexp = OPS.attn_fwd(*given.values(), sm_scale=0.3, causal=True, hints=hints)
    out.backward(dout)
    with torch.no_grad():
        expected = OPS.attn_bwd(*given.values(), out, dout, logsumexp, sm_scale=0.3, causal=True)
    for (name, one), gradient in zip(given.items(), expected, strict=True):
        assert torch.equal(one.grad, gradient) if name in asking else one.grad is None


@pytest.mark.parametrize("skipped", range(8))
@pytest.mark.parametrize("features", [{}, {"sinks": torch.tensor([0.5, -1.0])}], ids=["plain", "features"])
def test_gradients_that_are_skipped_have_no_elements(skipped: int, features: dict[str, Any]) -> None:
    """The others are as ever; vmap, too, knows that there are none."""
    q, k, v, dout = (tensor(1, 2, 9, 16, seed=i) for i in range(4))
    out, logsumexp = OPS.attn_fwd(q, k, v, causal=True, **features)
    given = q, k, v, out, dout, logsumexp
    expected = OPS.attn_bwd(*given, causal=True, **features)[:3]
    results = OPS.attn_bwd(*given, causal=True, skip_gradients=skipped, **features)[:3]
    for i, (one, whole) in enumerate(zip(results, expected, strict=True)):
        assert one.shape == (0,) if skipped >> i & 1 else torch.equal(one, whole)
    mapped = torch.vmap(lambda dout: OPS.attn_bwd(q, k, v, out, dout, logsumexp, skip_gradients=skipped))
    for i, one in enumerate(mapped(torch.stack([dout, dout]))):
        assert one.shape == ((2, 0) if skipped >> i & 1 else (2, *q.shape))


@pytest.mark.parametrize("skipped", [-1, 8])
def test_only_three_gradients_can_be_skipped(skipped: int) -> None:
    with pytest.raises(RuntimeError, match=f"attn_bwd: skip_gradients is {skipped}, which must be from 0 to 7"):
        OPS.attn_bwd(Q, Q, Q, Q, Q, Q[..., 0].float(), skip_gradients=skipped)


@pytest.fixture
def ran() -> Iterator[set[str]]:
    """Names of this package's Python functions that run."""
    names: set[str] = set()
    folder = str(Path(aotriton.torch.__file__).parent)

    def note(frame: Any, event: str, _: Any) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(folder):
            names.add(frame.f_code.co_name)

    sys.setprofile(note)
    yield names
    sys.setprofile(None)


def autocast() -> Any:
    return torch.autocast("cpu", dtype=torch.bfloat16)


@pytest.mark.parametrize("operator", [OPS.attn_fwd.default, OPS.attn_fwd.features])
@pytest.mark.parametrize("hints", ["", "schedule=dfs"])
@pytest.mark.parametrize("recorded", [False, True])
def test_autograd_is_not_python(operator: Any, hints: str, recorded: bool, ran: set[str]) -> None:
    """A call in eager mode comes through autocast and autograd, forward and backward, without a Python function of
    ours, be a gradient recorded or not, with hints and without; for tensors of a GPU the kernels are the same.
    """
    q = Q.clone().requires_grad_(recorded)
    for context in (contextlib.nullcontext, torch.no_grad, torch.inference_mode, autocast):
        with context():
            out, _ = operator(q, K, K, hints=hints)
    out, _ = operator(q, K, K, hints=hints)
    if recorded:
        out.sum().backward()
        (gradient,) = torch.autograd.grad(operator(q, K, K, hints=hints)[0].sum(), q, create_graph=True)
        assert gradient.requires_grad
    sys.setprofile(None)
    assert not ran
    for name in (operator.name(), operator.name().replace("fwd", "bwd")):
        table = torch._C._dispatch_dump_table(name).splitlines()
        for key in ("AutogradCPU", "AutogradCUDA", *(("AutocastCPU", "AutocastCUDA") if "fwd" in name else ())):
            (line,) = (line for line in table if line.startswith(f"{key}:"))
            assert "autograd.cc" in line


def test_in_other_releases_autograd_is_python(tmp_path: Path) -> None:
    """Where the library of autograd was not built with the release of torch that runs, autograd's tests hold as well:
    its kernels are those in Python. Graphs then name the operators' twins, of which these tests say nothing.
    """
    (folder,) = {find([path]).parent for path in aotriton.__path__ if (Path(path) / NAME).is_file()}
    (tmp_path / "aotriton").mkdir()
    for path in folder.iterdir():
        if path.name != AUTOGRAD and path.suffix == ".so":
            (tmp_path / "aotriton" / path.name).symlink_to(path)
    paths = [str(tmp_path), *(path for path in sys.path if path and Path(path) != folder.parent)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths)}
    here = Path(__file__)
    program = "import aotriton.torch.library as l; assert not l.HAS_AUTOGRAD; print(l.find(l.aotriton.__path__))"
    command = [sys.executable, "-c", program]
    found = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
    assert found.strip() == str(tmp_path / "aotriton" / NAME)
    asked = "gradient or autocast or vmap or torch_func or checkpoint or checks_hold or thread or what_the_formula_says"
    features = here.with_name("test_torch_features.py")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(here), str(features), "-k", asked]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-3000:]


def test_compiled_autograd() -> None:
    """What records a backward's graph, hooks too, has the gradients of eager mode."""
    bias = tensor(6, 6, seed=7)

    def loss(q: Any, b: Any) -> Any:
        return (attention(q, K, K, causal=True) + attention(q, K, K, bias=b)).float().square().sum()

    leaves = Q.clone().requires_grad_(), bias.clone().requires_grad_()
    expected = torch.autograd.grad(loss(*leaves), leaves)
    seen: list[Any] = []

    def see(graph: Any) -> Any:
        seen.append(graph)
        return graph

    with torch._dynamo.compiled_autograd._enable(see):
        loss(*leaves).backward()
    for leaf, gradient in zip(leaves, expected, strict=True):
        torch.testing.assert_close(leaf.grad, gradient)
    (graph,) = seen
    targets = {str(node.target) for node in graph.graph.nodes}
    assert {"aotriton.attn_bwd.default", "aotriton.attn_bwd.features"} <= targets


def test_compiled_autograd_of_other_calls() -> None:
    """A graph of backwards is not taken for one of calls that were told something else."""
    q = Q.clone().requires_grad_()
    for how in ({"causal": True}, {"causal": False}, {"scale": 0.3}, {"softcap": 0.7}, {"softcap": 1.5}):
        (expected,) = torch.autograd.grad(attention(q, K, K, **how).sum(), q)
        q.grad = None
        with torch._dynamo.compiled_autograd._enable(lambda graph: graph):
            attention(q, K, K, **how).sum().backward()
        torch.testing.assert_close(q.grad, expected)


def test_hooks_of_saved_tensors() -> None:
    """What hooks put in the place of saved tensors is what a backward takes."""
    q, bias, sinks = leaves = [Q.clone(), tensor(2, 4, 6, 6, seed=7), torch.ones(4)]
    for leaf in leaves:
        leaf.requires_grad_()
    with torch.autograd.graph.saved_tensors_hooks(lambda x: x, lambda x: 2 * x if x.shape == K.shape else x):
        out, logsumexp = OPS.attn_fwd(q, K, K, bias, None, sinks)
    got, dout = torch.autograd.grad(out.sum(), leaves), torch.ones_like(out)
    with torch.no_grad():
        given = q, 2 * K, 2 * K, out, dout, logsumexp, bias, None, sinks
        dq, _, _, dbias, dsinks = OPS.attn_bwd(*given, dbias=True, dsinks=True)
    for one, expected in zip(got, (dq, dbias, dsinks), strict=True):
        assert torch.equal(one, expected)


def test_a_backward_frees_what_was_saved() -> None:
    """After a backward nothing of a call is held, and a second one is refused as torch refuses it."""
    q = Q.clone().requires_grad_()
    for softcap in (0.0, 0.7):
        out = attention(q, K, K, softcap=softcap)
        out.sum().backward()
        with pytest.raises(RuntimeError, match="backward through the graph a second time"):
            out.backward(torch.ones_like(out))


TRACED = ["aotriton.attn_fwd.default", "aotriton.attn_bwd.default"]


class Seen(TorchDispatchMode):
    """Names of the operators that are called, of which one may be told to fail."""

    def __init__(self, failing: str = "") -> None:
        super().__init__()
        self.failing = failing
        self.names: list[str] = []

    def __torch_dispatch__(self, operator: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(str(operator))
        if str(operator) == self.failing:
            raise KeyError(self.failing)
        return operator(*args, **(kwargs or {}))


def test_a_mode_sees_this_librarys_operators() -> None:
    """A mode of torch's, as a tracer is one, sees attention as operators of this library, forward and backward, behind
    autocast and vmap; results are those without a mode.
    """
    x = torch.stack([Q, 2 * Q]).float()
    expected, given = x.clone().requires_grad_(), x.clone().requires_grad_()
    call = torch.vmap(lambda q: attention(q, q, q, causal=True))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        call(expected).float().square().sum().backward()
        with Seen() as seen:
            call(given).float().square().sum().backward()
    assert torch.equal(given.grad, expected.grad)
    assert [name for name in seen.names if "att" in name] == TRACED
    with torch.inference_mode(), Seen() as seen:
        assert torch.equal(attention(Q, K, K), attention(Q, K, K))


def test_a_subclass_sees_this_librarys_operators() -> None:
    """So does a class of tensors that has its own way with operators."""
    seen: list[str] = []

    class Wrapped(torch.Tensor):
        inner: Any

        @staticmethod
        def __new__(cls, inner: Any) -> Any:
            one = torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)
            one.inner = inner
            return one

        @classmethod
        def __torch_dispatch__(cls, operator: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(str(operator))
            inner = partial(tree_map_only, cls, lambda one: one.inner)
            return tree_map_only(torch.Tensor, cls, operator(*inner(args), **inner(kwargs or {})))

    q = Wrapped(Q).requires_grad_()
    attention(q, q, q, causal=True).sum().backward()
    expected = Q.clone().requires_grad_()
    attention(expected, expected, expected, causal=True).sum().backward()
    assert torch.equal(q.grad.inner, expected.grad)
    assert [name for name in seen if "att" in name] == TRACED


def test_exceptions_of_others_come_through() -> None:
    """What a mode, or a hook of tensors that are saved, raises in a call is what the caller catches; after a refused
    hint the next call is told none.
    """
    q = Q.clone().requires_grad_()

    def refuse(_: Any) -> Any:
        raise KeyError("a hook")

    with pytest.raises(KeyError, match="a hook"), torch.autograd.graph.saved_tensors_hooks(refuse, refuse):
        attention(q, q, q)
    with pytest.raises(KeyError, match="attn_fwd"), Seen("aotriton.attn_fwd.default"):
        attention(q, q, q)
    with pytest.raises(RuntimeError, match="sideways"):
        OPS.attn_fwd(q, q, q, hints="schedule=sideways")
    OPS.attn_fwd(q, q, q)


def test_torchs_checks_hold() -> None:
    """What was saved and changed since, and a derivative in the other direction, are refused."""
    leaf = Q.clone().requires_grad_()
    q = leaf * 1
    out = attention(q, q, q)
    q.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()
    with pytest.raises(NotImplementedError, match="forward AD"):
        torch.func.jvp(lambda x: attention(x, x, x), (Q,), (Q,))
    with pytest.raises(NotImplementedError, match="forward AD"):
        torch.func.jvp(lambda a: gemm(a, B), (A,), (A,))


def test_tensors_without_memory() -> None:
    """On the device meta, gradients have shapes."""
    q, k = Q.to("meta").requires_grad_(), K.to("meta").requires_grad_()
    attention(q, k, k, causal=True).sum().backward()
    assert q.grad.shape == Q.shape
    assert k.grad.shape == K.shape


def test_a_gradient_has_no_gradient() -> None:
    """Who asks for a second derivative is told that attention has none; to record a gradient is no such thing."""
    q = tensor(1, 2, 9, 16).requires_grad_()
    (expected,) = torch.autograd.grad(attention(q, q, q, scale=0.3).sum(), q)
    (gradient,) = torch.autograd.grad(attention(q, q, q, scale=0.3).sum(), q, create_graph=True)
    assert torch.equal(gradient, expected)
    with pytest.raises(NotImplementedError, match=r"^aotriton's attention has no second derivative: attn_fwd has"):
        torch.autograd.grad(gradient.sum(), q)
    outer = torch.func.grad(lambda y: torch.func.grad(lambda x: attention(x, x, x).sum())(y).sum())
    with pytest.raises(NotImplementedError, match=r"^aotriton's attention has no second derivative"):
        outer(q.detach())
    out, logsumexp = OPS.attn_fwd(q, q, q)
    gradients = OPS.attn_bwd(q, q, q, out, out, logsumexp)
    with pytest.raises(NotImplementedError, match=r"^aotriton's attention has no second derivative"):
        torch.autograd.grad(gradients[0].sum(), q)


@pytest.mark.parametrize("activation", ["none", "relu", "gelu", "silu"])
@pytest.mark.parametrize("batch", [(), (3,)])
def test_gemm_has_gradients(activation: str, batch: tuple[int, ...]) -> None:
    """The gradients of a, b and bias, through alpha and the activation, are within a few roundings of torch's."""
    given = [tensor(*batch, 5, 16), tensor(*batch, 16, 7), tensor(7)]
    leaves = [x.requires_grad_() for x in given]
    exact = [x.detach().double().requires_grad_() for x in given]
    functions = {
        "none": lambda x: x,
        "relu": torch.relu,
        "gelu": torch.nn.functional.gelu,
        "silu": torch.nn.functional.silu,
    }
    dd = tensor(*batch, 5, 7, seed=9)
    found = torch.autograd.grad(OPS.gemm(*leaves, alpha=0.5, activation=activation), leaves, dd)
    formula = functions[activation](exact[0] @ exact[1] * 0.5 + exact[2])
    for got, expected in zip(found, torch.autograd.grad(formula, exact, dd.double()), strict=True):
        close(got, expected, 4)
    without = leaves[:2]
    assert len(torch.autograd.grad(OPS.gemm(*without).sum(), without)) == 2


def test_checkpoint() -> None:
    """Under activation checkpointing, which stops the recomputation early by an exception, gradients are the same."""
    from torch.utils.checkpoint import checkpoint

    q = tensor(1, 2, 9, 16).requires_grad_()
    k = tensor(1, 2, 9, 16, seed=1)
    call = partial(attention, causal=True)
    (expected,) = torch.autograd.grad(call(q.sin(), k, k).sum(), q)
    (got,) = torch.autograd.grad(checkpoint(lambda x: call(x.sin(), k, k), q, use_reentrant=False).sum(), q)
    assert torch.equal(got, expected)


SAMPLES = [
    (OPS.attn_fwd, (Q, K, K), {"causal": True}),
    (OPS.attn_fwd, (transposed(2, 4, 6, 8), K, tensor(2, 2, 8, 6).mT), {"sm_scale": 0.3}),
    (OPS.attn_bwd, (Q, K, K, Q, Q, Q[..., 0].float()), {"deterministic": True}),
    (OPS.gemm, (A, B), {"alpha": 0.5}),
    (OPS.gemm, (A[None], B[None], B[0]), {"activation": "gelu"}),
]


@pytest.mark.parametrize(("operator", "args", "kwargs"), SAMPLES)
def test_opcheck(operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """torch's own check of an operator (schema, autograd, fake results, tracing with dynamic shapes) finds nothing,
    with and without gradients.
    """
    torch.library.opcheck(operator.default, args, kwargs)
    if operator is not OPS.attn_bwd:
        torch.library.opcheck(operator.default, tuple(arg.clone().requires_grad_() for arg in args), kwargs)


@pytest.mark.parametrize("dtype", list(EPS))
def test_autocast(dtype: Any) -> None:
    """Under autocast, fp32 tensors are computed in autocast's dtype, and their gradients come back as fp32."""
    q, a, b = Q.float().requires_grad_(), A.float().requires_grad_(), B.float()
    with torch.autocast("cpu", dtype=dtype):
        out, product = attention(q, q, q), gemm(a, b)
    assert torch.equal(out, attention(*[Q.float().to(dtype)] * 3))
    assert torch.equal(product, gemm(A.float().to(dtype), B.float().to(dtype)))
    (out.float().sum() + product.float().sum()).backward()
    assert q.grad.dtype == a.grad.dtype == torch.float32


def test_vmap_of_attention() -> None:
    """vmap folds what it maps into the batch: each result is the one of its own call; what is not mapped is shared."""
    q, k, v = tensor(3, 2, 4, 6, 8), tensor(2, 2, 3, 6, 8, seed=1), tensor(2, 2, 6, 8, seed=2)
    call = partial(attention, causal=True)
    got = torch.vmap(call, in_dims=(0, 2, None))(q, k, v)
    assert torch.equal(got, torch.stack([call(q[i], k[:, :, i], v) for i in range(3)]))


def test_vmap_of_gradients() -> None:
    """A batch of gradients at once is each of them by itself."""
    q = Q.clone().requires_grad_()
    out, douts = attention(q, K, K, causal=True), tensor(3, *Q.shape)
    (got,) = torch.autograd.grad(out, q, douts, is_grads_batched=True, retain_graph=True)
    assert torch.equal(got, torch.stack([torch.autograd.grad(out, q, d, retain_graph=True)[0] for d in douts]))


@pytest.mark.parametrize("batch", [(), (2,)])
@pytest.mark.parametrize("bias_dim", [None, 1])
def test_vmap_of_gemm(batch: tuple[int, ...], bias_dim: int | None) -> None:
    """As for attention, with a bias of its own for each, too."""
    a, b = tensor(3, *batch, 5, 16), tensor(*batch, 16, 7)
    bias = tensor(7) if bias_dim is None else tensor(7, 3)
    got = torch.vmap(gemm, in_dims=(0, None, bias_dim))(a, b, bias)
    each = [gemm(a[i], b, bias if bias_dim is None else bias[:, i]) for i in range(3)]
    assert torch.equal(got, torch.stack(each))
    assert torch.equal(torch.vmap(gemm, in_dims=(0, None))(a, b), torch.stack([gemm(x, b) for x in a]))


def test_the_library_is_found_by_folder(tmp_path: Path) -> None:
    """The first folder that has it counts; where none has, the error names them all."""
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "libaotriton_torch.so").touch()
    folders = [str(tmp_path / name) for name in ("none", "a", "b")]
    assert find(folders) == tmp_path / "a" / "libaotriton_torch.so"
    with pytest.raises(ImportError, match=f"in none of {folders[0]}. Built from source, a wheel has it where torch"):
        find(folders[:1])


def test_what_is_asked_for_by_name_is_there() -> None:
    """What the library takes from torch where it exists, outside of the headers of the stable ABI, this torch has; of
    CUDA, if it has CUDA. Nothing would fail without: calls would be deterministic, or SDPA's backend have no fallback.
    """
    import ctypes

    library = find(list(aotriton.__path__))
    listed = subprocess.run(
        ["nm", "-D", "--undefined-only", library], capture_output=True, text=True, check=True
    ).stdout
    names = [line.split()[1] for line in listed.splitlines() if line.split()[0] == "w"]
    names = [name for name in names if name.startswith(("aoti_torch_", "_ZN2at", "_ZNK2at", "_ZN3c10"))]
    assert len(names) == 15
    libtorch = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch.so"))
    missing = [name for name in names if not hasattr(libtorch, name)]
    later = [] if torch.__version__ >= "2.12" else ["aoti_torch_cuda__flash_attention_forward_v2"]
    assert missing == (later if torch.version.cuda else [name for name in names if "cuda" in name])
