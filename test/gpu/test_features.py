"""Attention's features through the library's dispatch, against float64: every pair of them, and random calls.

Which calls are refused, and how, needs no GPU: test/runtime/test_feature_calls.py.
"""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("numpy", reason="numpy is not installed")
aotriton = pytest.importorskip("aotriton._binding", reason="the binding is not on PYTHONPATH: build it first")

import torch  # noqa: E402 - where it is installed
from attention_cases import Case, covering, inputs, random_cases  # noqa: E402
from attention_truth import Call, check, kept, ordinary, threshold, truth  # noqa: E402
from gpu import gpu_problem  # noqa: E402
from gpu.gpu_problem import DTYPES, Guarded, bits  # noqa: E402
from gpu.test_arguments import Arguments, backward_arguments, forward_arguments, refused, tensor  # noqa: E402

LAYOUTS = {"heads": "bhsd", "rows": "bshd", "odd": "odd_rows"}  # of matrices
FLOATS, WHOLE = ("alibi_slopes", "sinks"), ("cu_seqlens_q", "cu_seqlens_k", "seqused_q", "seqused_k")
FORWARD, BACKWARD = ("out", "logsumexp"), ("dq", "dk", "dv", "dbias", "dsinks")


class Prepared:
    """A case's operands inside of guarded memory, and its results: not numbers before the launch, with ones around."""

    def __init__(self, case: Case) -> None:
        self.case, self.dtype = case, DTYPES[case.dtype]
        given = {name: torch.from_numpy(array) for name, array in self.given(case).items()}
        self.operands: dict[str, torch.Tensor] = {}
        for name, values in given.items():
            dtype = torch.float32 if name in FLOATS else torch.int32 if name in WHOLE else self.dtype
            guarded = self._guarded(tuple(values.shape), dtype, 1 << 30 if name in WHOLE else float("nan"))
            guarded.view.copy_(values)
            self.operands[name] = guarded.view
        if case.packed and case.lengths_q == case.lengths_k:
            self.operands["cu_seqlens_k"] = self.operands["cu_seqlens_q"]  # as in self-attention
        self.shared = {"bias": case.bias_shape, "alibi_slopes": (case.batch, case.heads_q)}
        for name, shape in self.shared.items():
            if name in self.operands:
                self.operands[name] = self.operands[name].expand(shape)
        on_device = {"dtype": torch.int64, "device": gpu_problem.DEVICE}
        self.seeds = {"dropout_seed": torch.tensor([case.seed], **on_device)} if case.dropout else {}
        self.seeds |= {"dropout_offset": torch.tensor([case.offset], **on_device)} if case.dropout else {}
        lengths = {name: values.int() for name, values in given.items() if name in WHOLE}  # read on the host
        scalars: dict[str, Any] = {name: one for name, one in case.scalars.items() if not name.startswith("max_seqlen")}
        self.call = Call(
            **self.operands | lengths, **scalars, sm_scale=case.sm_scale,
            dropout_seed=case.seed, dropout_offset=case.offset,
        )  # fmt: skip
        self.exact = truth(self.call)
        self.ordinary = ordinary(self.call)
        self.results = self.outputs()

    def given(self, case: Case) -> dict[str, Any]:
        """The operands by name, in float64 or int32."""
        return inputs(case)

    def _guarded(self, shape: tuple[int, ...], dtype: torch.dtype, fill: float) -> Guarded:
        return Guarded(shape, dtype, LAYOUTS[self.case.layout], fill)

    def outputs(self) -> dict[str, Guarded]:
        case, rows = self.case, (self.case.batch, self.case.heads_q, self.case.rows_q)
        shapes = {"out": case.out_shape, "dq": case.q_shape, "dk": case.k_shape, "dv": case.v_shape}
        made = {name: self._guarded(shape, self.dtype, 1.0) for name, shape in shapes.items()}
        made["logsumexp"] = self._guarded(rows, torch.float32, 1.0)
        if case.bias:
            made["dbias"] = self._guarded(case.bias_shape, self.dtype, 1.0)
        if case.sinks:
            made["dsinks"] = self._guarded((case.heads_q,), torch.float32, 1.0)
        for guarded in made.values():
            guarded.view.fill_(float("nan"))
        return made

    @property
    def features(self) -> dict[str, Any]:
        """All arguments but results."""
        return self.operands | self.seeds | self.case.scalars | {"sm_scale": self.case.sm_scale}

    def forward(self, **hints: object) -> None:
        """A forward on torch's current stream."""
        given = {name: one for name, one in self.features.items() if name != "dout"}
        aotriton.attn_fwd(**given, **{name: self.results[name].view for name in FORWARD}, hints=hints)

    def backward(self, **hints: object) -> None:
        """A backward with what a forward wrote, likewise."""
        views, features = {name: self.results[name].view for name in self.results if name != "workspace"}, self.features
        size = aotriton.attn_bwd_workspace_size(**features, **views, hints=hints)
        self.results["workspace"] = Guarded((-(-size // 4),), torch.float32, "contiguous", 1.0)
        self.results["workspace"].view.fill_(float("nan"))
        workspace = self.results["workspace"].view.view(torch.uint8)
        aotriton.attn_bwd(**features, **views, workspace=workspace, hints=hints)

    def launch(self) -> None:
        """Both."""
        self.forward()
        self.backward()

    def check(self, *names: str) -> None:
        """The results of these names, or all."""
        rows_q, rows_k = self.call.owned
        for name in names or self.results:
            guarded = self.results[name]
            guarded.assert_untouched_outside(name)
            if name == "workspace":
                continue
            result = guarded.view
            if self.case.packed and name != "dsinks":
                result = result.clone()
                count = rows_k if name in ("dk", "dv") else rows_q
                assert result[:, :, count:].isnan().all(), f"{name}: rows of no sequence were written"
                result[:, :, count:] = float("-inf") if name == "logsumexp" else 0.0
            check(name, result, self.exact, self.ordinary, self.case.dtype)


# Half of the random calls are as short as a tile, and many sequences: what begins and ends somewhere is most of them.
CASES = [*covering(140), *random_cases(200, seed=11, longest=40), *random_cases(200, seed=12, longest=200)]
UNEVEN = [
    Case((1, 0, 700, 3, 0, 129), (900, 5, 1, 64, 0, 129), packed=True, beyond=9, group=4, head_dim=d, dtype=dtype,
         causal=causal, causal_variant="bottom_right", dropout=dropout, sinks=True, number=d)
    for d, dtype, causal, dropout in ((64, "bf16", True, 0.0), (128, "fp16", False, 0.1), (256, "bf16", True, 0.5))
] + [
    Case((1,) * 300, (130,) * 300, used_k=tuple(n % 131 for n in range(300)), group=4, head_dim=128, dtype="bf16"),
    Case((600,), (700,), bias="hiding", alibi="heads", sinks=True, dropout=0.1, group=2, head_dim=72, number=1),
    Case((600,), (700,), softcap=30.0, sinks=True, group=2, head_dim=128, dtype="bf16", spread=8.0, number=2),
    Case((513,) * 2, (513,) * 2, causal=True, window=(100, -1), dropout=0.2, alibi="batch", head_dim=40, number=3),
    *(Case((600,) * 2, (700,) * 2, group=group, head_dim=d, head_dim_v=d_v, dtype=dtype, causal=causal, number=d + d_v)
      for group, d, d_v, dtype in (
          (1, 192, 128, "bf16"), (4, 64, 128, "fp16"), (2, 128, 256, "fp32"), (1, 7, 7, "bf16"),
          (2, 100, 100, "fp16"), (1, 255, 1, "fp32"), (4, 12, 250, "bf16"),
      )
      for causal in (False, True)),
]  # fmt: skip


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "case" in metafunc.fixturenames:
        count, seed = (metafunc.config.getoption(name) for name in ("--random-calls", "--random-seed"))
        more = [*random_cases(count // 2, seed, longest=40), *random_cases(count - count // 2, seed + 1, longest=200)]
        metafunc.parametrize("case", [*CASES, *UNEVEN, *more], ids=str)


def test_forward_and_backward_are_as_accurate_as_ordinary_low_precision(case: Case) -> None:
    """Each result of each call is as near to float64 as ordinary low precision is, with the same mask of dropout in
    both directions; what counts not is not read, and what is nobody's is not written.
    """
    prepared = Prepared(case)
    prepared.launch()
    torch.cuda.synchronize()
    prepared.check()


SEEDS = ((0, 0), (-1, -1), (1 << 62, (5 << 32) | 3), (-(1 << 63), (0xFFFFFFFF << 32) - (1 << 64)))


@pytest.mark.parametrize(("seed", "offset"), SEEDS)
@pytest.mark.parametrize("dropout", [0.001, 0.1, 0.5, 255 / 256])
@pytest.mark.parametrize("packed", [False, True])
def test_the_mask_of_dropout_is_philoxs_bit_by_bit(packed: bool, dropout: float, seed: int, offset: int) -> None:
    """With even weights and an identity of values out is the mask, and with one of dout so is dv, of every head."""
    count, heads, sequences = 64, 3, 3
    rows = count * sequences if packed else count
    shape = (1, heads, rows, count) if packed else (sequences, heads, rows, count)
    on_device = {"device": gpu_problem.DEVICE}
    zeros = torch.zeros(shape, dtype=torch.float16, **on_device)
    ones = torch.eye(count, dtype=torch.float16, **on_device).repeat(sequences if packed else 1, 1).expand(shape)
    made: Arguments = {"q": zeros, "k": zeros, "v": ones, "sm_scale": 1.0, "dropout": dropout}
    made["dropout_seed"] = torch.tensor([seed], dtype=torch.int64, **on_device)
    made["dropout_offset"] = torch.tensor([offset], dtype=torch.int64, **on_device)
    if packed:
        starts = torch.arange(0, rows + 1, count, dtype=torch.int32, **on_device)
        made |= {"cu_seqlens_q": starts, "cu_seqlens_k": starts, "max_seqlen_q": count, "max_seqlen_k": count}
    out, lse = torch.empty_like(zeros), torch.empty(shape[:3], dtype=torch.float32, **on_device)
    aotriton.attn_fwd(**made, out=out, logsumexp=lse)
    made |= {name: torch.empty_like(zeros) for name in ("dq", "dk", "dv")}
    made |= {"out": out, "logsumexp": lse, "dout": ones}
    size = aotriton.attn_bwd_workspace_size(**made)
    aotriton.attn_bwd(**made, workspace=torch.empty(size, dtype=torch.uint8, **on_device))
    numbers = torch.arange(sequences * heads, **on_device).reshape(sequences, heads)
    mask = kept(seed, offset, numbers, count, count, threshold(dropout))
    for result, wanted in ((out, mask), (made["dv"], mask.mT)):
        if packed:
            wanted = wanted.transpose(0, 1).reshape(1, heads, rows, count)
        assert torch.equal(result != 0, wanted)
    assert (~mask).any()


def test_the_same_call_gives_the_same_bits_and_another_offset_another_mask() -> None:
    """All results of a call with dropout repeat; the offset in device memory is read at each launch."""
    case = Case((70, 3, 0, 41), (33, 60, 9, 41), packed=True, group=2, dropout=0.3, sinks=True, dtype="bf16")
    one, again, other = Prepared(case), Prepared(case), Prepared(case)
    other.seeds["dropout_offset"] += 1
    for prepared in (one, again, other):
        prepared.launch()
    for name in (*FORWARD, "dq", "dk", "dv", "dsinks"):
        first, second, third = (bits(prepared.results[name].view.contiguous()) for prepared in (one, again, other))
        assert torch.equal(first, second), name
        assert name == "logsumexp" or not torch.equal(first, third), name


def test_numbers_of_the_host_are_written_in_the_order_of_a_stream() -> None:
    """By value: a graph writes at each launch what was given when it was captured."""
    values = [-(1 << 63), (5 << 32) | 3, -1]
    memory, stream = torch.zeros(4, dtype=torch.int64, device=gpu_problem.DEVICE), torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        aotriton.write_int64(memory.data_ptr(), values, torch.cuda.current_stream().cuda_stream)
    for _ in range(2):
        memory.zero_()
        graph.replay()
        assert memory.tolist() == [*values, 0]
    aotriton.write_int64(memory.data_ptr() + 24, [7])
    assert memory.tolist() == [*values, 7]


def assert_sequences_apart(head_dim: int, forward: dict[str, object], backward: dict[str, object]) -> None:
    """What is no number in some packed sequences reaches no result of others, with these hints."""
    lengths = (64, 700, 65, 130, 1, 200)
    case = Case(lengths, lengths, packed=True, head_dim=head_dim, causal=True, dtype="bf16", number=head_dim)
    clean, spoiled = Prepared(case), Prepared(case)
    of_clean = torch.tensor([index % 2 for index, rows in enumerate(lengths) for _ in range(rows)], dtype=torch.bool)
    for name in ("q", "k", "v", "dout"):
        spoiled.operands[name][:, :, ~of_clean] = float("nan")
    for prepared in (clean, spoiled):
        prepared.forward(**forward)
        prepared.backward(**backward)
    for name in (*FORWARD, "dq", "dk", "dv"):
        wanted, found = (one.results[name].view[:, :, of_clean].float() for one in (clean, spoiled))
        torch.testing.assert_close(found, wanted, rtol=0.02, atol=0.02, msg=lambda text, name=name: f"{name}: {text}")
        assert spoiled.results[name].view[:, :, ~of_clean].isnan().any(), name


@pytest.mark.parametrize("head_dim", [40, 64, 128, 256])
def test_packed_sequences_stay_apart(head_dim: int) -> None:
    assert_sequences_apart(head_dim, {}, {})
    assert_sequences_apart(head_dim, {"backend": "portable"}, {"backend": "portable"})


@pytest.mark.parametrize("layout", ["bhsd", "odd_rows"])
def test_dbias_and_dsinks_are_optional(layout: str) -> None:
    """A backward without them gives the other gradients, bit by bit."""
    case = Case((50, 50), (70, 70), bias="full", sinks=True, layout="odd" if layout == "odd_rows" else "heads")
    whole, less = Prepared(case), Prepared(case)
    for name in ("dbias", "dsinks"):
        del less.results[name]
    for prepared in (whole, less):
        prepared.launch()
    for name in ("dq", "dk", "dv"):
        first, second = (bits(prepared.results[name].view.contiguous()) for prepared in (whole, less))
        assert torch.equal(first, second), name


def test_a_refused_call_writes_nothing() -> None:
    """What goes not together is refused by name before anything is launched: results stay as they were."""
    change = {"softcap": 1.0, "bias": tensor(2, 4, 48, 48)}
    refused(aotriton.attn_fwd, forward_arguments() | change, "not_supported", "bias", "out", "logsumexp")
    refused(aotriton.attn_bwd, backward_arguments() | change, "not_supported", "bias", "dq", "dk", "dv")


@pytest.mark.parametrize("sinks", [False, True])
def test_without_keys_only_sinks_are_left(sinks: bool) -> None:
    """A call with no key at all has an out of 0 and a logsumexp of minus infinity, or of the sink."""
    q, k = tensor(2, 4, 48, 64), tensor(2, 2, 0, 64)
    own = torch.tensor([0.5, -1.0, 2.0, 0.0], device=gpu_problem.DEVICE)
    out, lse = torch.full_like(q, 1.0), torch.ones(2, 4, 48, device=gpu_problem.DEVICE)
    aotriton.attn_fwd(q, k, k, out, lse, sinks=own if sinks else None)
    assert not out.any()
    wanted = own[None, :, None] if sinks else torch.full_like(own, float("-inf"))[None, :, None]
    assert torch.equal(lse, wanted.expand(lse.shape))
