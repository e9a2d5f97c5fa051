"""Keys and values that are appended to a cache, with a rotary embedding, against the same in float64."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("numpy", reason="numpy is not installed")
aotriton = pytest.importorskip("aotriton._binding", reason="the binding is not on PYTHONPATH: build it first")

import torch  # noqa: E402 - where it is installed
from append_cases import CASES, WRITTEN, Append, appended, assert_appended, operands  # noqa: E402
from gpu.gpu_problem import DEVICE, DTYPES, Guarded  # noqa: E402

NO_NUMBER = 0x7F  # of 8 bits
MATRICES = ("k", "v", "k_cache", "v_cache", "q")


def drawn(count: int, seed: int) -> list[Append]:
    """Random calls: decoding steps, chunks of prompts and both packed together, as long as some tables are."""
    choose = random.Random(seed)
    made = []
    for _ in range(count):
        sequences, packed = choose.randint(1, 40), choose.random() < 0.5
        longest = choose.choice((1, 1, 5, 70))
        new = tuple(choose.randint(0, longest) if packed else longest for _ in range(sequences))
        page_size = choose.choice((0, 16, 16, 48, 256))
        room = (page_size or 1) * choose.randint(1, 256 // (page_size or 1))
        head_dim = choose.choice((40, 64, 128, 128, 192, 256))
        made.append(
            Append(
                new,
                tuple(choose.randint(count, max(count, room)) if choose.random() < 0.9 else 0 for count in new),
                packed=packed,
                page_size=page_size,
                room=room,
                heads_k=choose.choice((1, 2, 8)),
                group=choose.choice((0, 1, 4, 7)),
                head_dim=head_dim,
                head_dim_v=choose.choice((head_dim, 128, 13)),
                rotary_pairs=choose.choice((0, head_dim // 2, head_dim // 2, 16)),
                interleaved=choose.random() < 0.5,
                positions=choose.choice((256, 256, 90)),
                lost=(0,) if choose.random() < 0.2 else (),
                beyond=choose.choice((0, 9)),
                dtype=choose.choice(("bf16", "bf16", "fp16", "fp32")),
                rows=choose.random() < 0.5,
                gap=choose.choice((0, 0, 8, 3)),
                cache=choose.choice(("", "", "fp8e4nv")),
                scaled=choose.random() < 0.8,
            )
        )
    return made


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "case" in metafunc.fixturenames:
        count, seed = (metafunc.config.getoption(name) for name in ("--random-calls", "--random-seed"))
        metafunc.parametrize("case", [*CASES, *drawn(100 + count, seed)], ids=str)


class Prepared:
    """The operands of a case on the GPU, each in guarded memory that is no numbers."""

    def __init__(self, case: Append) -> None:
        self.case = case
        self.exact = operands(case)
        self.guarded: dict[str, Guarded] = {}
        self.given: dict[str, Any] = {}
        for name, values in self.exact.items():
            if name not in MATRICES:
                whole = values.dtype.kind == "i"
                dtype = torch.int32 if whole else torch.float32
                self.given[name] = torch.from_numpy(values).to(dtype).to(DEVICE)
                continue
            layout = {0: "bshd" if case.rows else "bhsd", 8: "padded_rows"}.get(case.gap, "odd_rows")
            narrow = case.cache and name in ("k_cache", "v_cache")
            dtype = torch.uint8 if narrow else DTYPES[case.dtype]
            self.guarded[name] = Guarded(values.shape, dtype, layout, NO_NUMBER if narrow else float("nan"))
            self.given[name] = self.guarded[name].view
            if narrow:
                self.given[name] = self.given[name].view(torch.float8_e4m3fn)
            self.given[name].copy_(torch.from_numpy(values))
            self.exact[name] = self.given[name].double().cpu().numpy()

    def append(self) -> None:
        aotriton.kv_append(**self.given, rotary_interleaved=self.case.interleaved)
        torch.cuda.synchronize()

    def check(self) -> None:
        """What is written is right, and nothing else has changed."""
        results = {name: self.given[name].double().cpu().numpy() for name in WRITTEN if name in self.given}
        assert_appended(self.case, self.exact, results)
        for name, guarded in self.guarded.items():
            guarded.assert_untouched_outside(name)


def test_rows_go_to_their_places(case: Append) -> None:
    """Keys and values are where lengths and block table say, keys and queries are rotated, whatever is not rotated has
    its bits, and all else is as it was.
    """
    prepared = Prepared(case)
    prepared.append()
    prepared.check()


def test_a_graph_follows_lengths_on_the_device() -> None:
    """A captured decoding step reads lengths and pages at each replay: sequences grow, end and move."""
    case = Append((1,) * 3, (20, 30, 64), page_size=16, rotary_pairs=64, head_dim=128, head_dim_v=128, group=4)
    prepared = Prepared(case)
    prepared.append()
    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    with torch.cuda.graph(graph, stream=stream):
        aotriton.kv_append(**prepared.given, stream=stream.cuda_stream)
    for used in ((21, 31, 0), (22, 0, 1), (64, 65, 2)):
        prepared.case = replace(case, used=used)
        prepared.exact |= {name: prepared.given[name].double().cpu().numpy() for name in WRITTEN}
        prepared.given["seqused_k"].copy_(torch.tensor(used, dtype=torch.int32))
        graph.replay()
        torch.cuda.synchronize()
        prepared.check()


def test_a_cache_of_8_bits_has_the_nearest_numbers() -> None:
    """Without a rotation it has the bits of torch's own rounding, of numbers in its range and beyond."""
    case = Append((9,), (9,), head_dim=64, head_dim_v=64, group=0, cache="fp8e4nv")
    prepared = Prepared(case)
    for name in "kv":
        prepared.given[name].normal_(std=300)
    prepared.append()
    for name in "kv":
        scaled = prepared.given[name].float() / prepared.given[f"{name}_descale"][:, :, None, None]
        expected = scaled.clamp(-448, 448).to(torch.float8_e4m3fn)
        cached = prepared.given[f"{name}_cache"][:, :, :9]
        assert torch.equal(cached.contiguous().view(torch.uint8), expected.view(torch.uint8))


def test_attention_reads_what_was_appended() -> None:
    """A decoding step of two calls: the lengths and the table are the same tensors."""
    case = Append((1,) * 3, (17, 64, 1), page_size=16, head_dim=64, head_dim_v=64, group=0)
    exact = {name: one.clip(-3, 3) for name, one in operands(case).items() if name not in ("block_table", "seqused_k")}
    given: dict[str, Any] = {
        name: torch.nan_to_num(torch.from_numpy(one)).to(torch.bfloat16).to(DEVICE) for name, one in exact.items()
    }
    exact = {name: one.double().cpu().numpy() for name, one in given.items()}
    exact |= {name: operands(case)[name] for name in ("block_table", "seqused_k")}
    of_both = {name: torch.from_numpy(exact[name]).to(DEVICE) for name in ("block_table", "seqused_k")}
    aotriton.kv_append(**given, **of_both)
    q = torch.randn(3, 8, 1, 64, dtype=torch.bfloat16, device=DEVICE)
    call = {"q": q, "k": given["k_cache"], "v": given["v_cache"], "out": torch.empty_like(q), **of_both}
    size = aotriton.attn_fwd_workspace_size(**call)
    aotriton.attn_fwd(**call, workspace=torch.empty(max(size, 1), dtype=torch.uint8, device=DEVICE))
    after, _ = appended(case, exact)
    for z, used in enumerate(case.used):
        pages = exact["block_table"][z]
        caches = (torch.from_numpy(after[name][pages]) for name in ("k_cache", "v_cache"))
        k, v = (one.transpose(0, 1).flatten(1, 2)[:, :used] for one in caches)
        k, v = (one.repeat_interleave(4, 0).to(DEVICE) for one in (k, v))
        out = (q[z].double() @ k.mT * 64**-0.5).softmax(-1) @ v
        assert (call["out"][z].double() - out).norm() < 0.01 * out.norm()


def test_a_cache_may_be_larger_than_4_gigabytes() -> None:
    """Rows are found beyond 2³¹ elements."""
    page_size, heads, width, count = 256, 8, 128, 10_000
    pool = torch.zeros((2, count, page_size, heads, width), dtype=torch.bfloat16, device=DEVICE)
    new = torch.randn((2, 1, heads, 1, width), dtype=torch.bfloat16, device=DEVICE)
    of_device = {"dtype": torch.int32, "device": DEVICE}
    aotriton.kv_append(
        k=new[0],
        v=new[1],
        k_cache=pool[0].transpose(1, 2),
        v_cache=pool[1].transpose(1, 2),
        seqused_k=torch.tensor([page_size], **of_device),
        block_table=torch.tensor([[count - 1]], **of_device),
    )
    assert torch.equal(pool[:, -1, -1], new[:, 0, :, 0])
    assert torch.count_nonzero(pool).item() == torch.count_nonzero(new).item()
