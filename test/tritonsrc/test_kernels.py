"""The kernels, run by Triton's interpreter, against attention in float64.

The tolerance of a case is what a plain low-precision implementation gets wrong on the same inputs, twice over.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from aotriton.rules.flash.common import GENERAL

Arrays = dict[str, np.ndarray]


@dataclass(frozen=True)
class Case:
    """One problem and one way to tile it."""

    seqlen_q: int
    seqlen_k: int
    head_dim: int
    block_m: int
    block_n: int
    causal: bool = False
    addressing: str = "descriptor"
    T: str = "fp16"
    batch: int = 1
    heads_q: int = 2
    heads_k: int = 2
    gap: int = 0  # elements between rows; with a gap rows of heads alternate, as in [batch, seqlen, heads, head_dim]
    spread: float = 1.0  # of the scores: large ones make the softmax peaked
    opposed: bool = False  # queries against keys: all scores far below the zero that masked rows score
    slim: bool = False  # by the kernels with columns in two parts
    band: tuple[int, int] | None = None  # row i sees keys from i + the first to i + the second, by images with features

    def __str__(self) -> str:
        return (
            f"{self.T}-q{self.seqlen_q}-k{self.seqlen_k}-d{self.head_dim}-{self.block_m}x{self.block_n}"
            f"-{self.mask}-{self.addressing}-b{self.batch}h{self.heads_q}/{self.heads_k}"
            f"-gap{self.gap}-spread{self.spread:g}{'-opposed' if self.opposed else ''}{'-slim' if self.slim else ''}"
        )

    @property
    def mask(self) -> str:
        return f"band{self.band}" if self.band else "causal" if self.causal else "full"

    @property
    def block_dmodel(self) -> int:
        return next(width for width in ((96, 192) if self.slim else (32, 64, 128, 256)) if self.head_dim <= width)

    @property
    def hidden(self) -> np.ndarray:
        """[seqlen_q, seqlen_k]: keys that rows do not see."""
        row, key = np.arange(self.seqlen_q)[:, None], np.arange(self.seqlen_k)
        begin, end = self.band or (-self.seqlen_q, 0 if self.causal else self.seqlen_k)
        hidden: np.ndarray = (key < row + begin) | (key > row + end)
        return hidden

    @property
    def suffix(self) -> str:
        return "_slim" if self.slim else ""

    @property
    def sm_scale(self) -> float:
        return float(np.float32(self.spread / self.head_dim**0.5))


CASES = (
    Case(1, 1, 8, 32, 32, causal=True),
    Case(1, 65, 8, 64, 32, addressing="general", gap=3),
    Case(17, 1, 40, 32, 64, addressing="offset32"),
    Case(17, 130, 40, 16, 32, gap=8, heads_q=4),
    Case(65, 17, 72, 64, 16, T="bf16"),
    Case(65, 65, 72, 32, 64, causal=True, addressing="offset32", batch=2, heads_q=2, heads_k=1),
    Case(65, 65, 40, 16, 64, causal=True, addressing="general", gap=5, spread=40.0),
    Case(130, 130, 40, 32, 128, causal=True, heads_q=4, heads_k=2, gap=8),
    Case(130, 130, 8, 128, 16, causal=True, spread=40.0, T="bf16"),
    Case(130, 130, 64, 64, 32, causal=True, addressing="offset32", heads_k=1),
    Case(130, 65, 72, 64, 64, spread=40.0, batch=2, heads_k=1),
    Case(130, 65, 40, 64, 32, spread=40.0, opposed=True),
    Case(65, 65, 40, 32, 32, spread=40.0, opposed=True, causal=True, addressing="general"),
    Case(128, 128, 32, 64, 64),
    Case(128, 128, 32, 64, 64, causal=True, spread=0.0),
    Case(65, 130, 72, 32, 64, T="bf16", heads_k=1, spread=0.0),
    Case(65, 65, 88, 32, 64, causal=True, addressing="general", spread=0.0, slim=True),
    Case(130, 65, 136, 64, 32, addressing="offset32", spread=0.0, slim=True),
    Case(130, 130, 136, 32, 32, causal=True, addressing="descriptor", heads_q=1, heads_k=1),
    Case(65, 130, 72, 32, 16, addressing="offset32", heads_k=1, slim=True),
    Case(130, 130, 96, 64, 32, causal=True, addressing="offset32", gap=8, T="bf16", slim=True),
    Case(65, 65, 88, 32, 64, causal=True, addressing="general", gap=3, spread=40.0, slim=True),
    Case(130, 65, 136, 64, 32, addressing="general", spread=40.0, opposed=True, slim=True),
    Case(65, 65, 192, 32, 16, causal=True, addressing="offset32", heads_q=4, heads_k=2, slim=True),
)

# Causal of unequal lengths, aligned at the first and at the last key; windows; rows that see nothing.
BANDS = (
    Case(1, 1, 8, 32, 32, band=(0, 0), addressing="general"),
    Case(1, 130, 40, 64, 32, band=(60, 90), heads_q=4),
    Case(65, 130, 72, 32, 32, band=(-65, 0), addressing="offset32", heads_k=1),
    Case(130, 65, 40, 64, 16, band=(-130, 0), addressing="general", gap=5, T="bf16"),
    Case(65, 130, 64, 32, 64, band=(-65, 65), batch=2, heads_k=1),
    Case(130, 65, 40, 32, 32, band=(-130, -65), spread=40.0, gap=8),  # the first 65 rows see nothing
    Case(130, 65, 72, 64, 64, band=(-20, 10), spread=40.0, opposed=True),  # the last 45 rows see nothing
    Case(130, 130, 32, 32, 16, band=(-40, 0), heads_q=4, heads_k=2),
    Case(130, 130, 40, 16, 32, band=(0, 33), addressing="offset32", T="bf16"),
    Case(203, 203, 64, 64, 64, band=(-100, 70), spread=40.0),
    Case(100, 203, 72, 32, 32, band=(63, 143), addressing="general", gap=3),
    Case(65, 300, 40, 64, 64, band=(200, 235), spread=0.0),
    Case(100, 65, 136, 32, 32, band=(-70, 5), heads_q=1, heads_k=1),
    Case(65, 130, 8, 128, 128, band=(-200, 200)),
)


def round_to(T: str, values: np.ndarray) -> np.ndarray:
    """float64 ``values`` rounded to ``T``: to nearest, but towards zero in bf16, as the interpreter does."""
    if T != "bf16":
        return values.astype({"fp16": np.float16, "fp32": np.float32}[T]).astype(np.float64)
    bits = values.astype(np.float32).view(np.uint32) & np.uint32(0xFFFF0000)
    return bits.view(np.float32).astype(np.float64)


def make_inputs(case: Case) -> Arrays:
    rng = np.random.default_rng(7)
    q_shape = (case.batch, case.heads_q, case.seqlen_q, case.head_dim)
    k_shape = (case.batch, case.heads_k, case.seqlen_k, case.head_dim)
    shapes = {"Q": q_shape, "K": k_shape, "V": k_shape, "DO": q_shape}
    inputs = {name: round_to(case.T, rng.standard_normal(shape)) for name, shape in shapes.items()}
    if case.opposed:
        inputs |= {"Q": -np.abs(inputs["Q"]), "K": np.abs(inputs["K"])}
    return inputs


def attention(case: Case, inputs: Arrays, low_precision: bool) -> Arrays:
    """Forward and backward in float64.

    With ``low_precision`` in float32, where every operand of a product and every result is rounded to T.
    """
    real = np.float32 if low_precision else np.float64

    def r(x: np.ndarray) -> np.ndarray:
        return round_to(case.T, x).astype(real) if low_precision else x

    group = case.heads_q // case.heads_k
    q, do = inputs["Q"].astype(real), inputs["DO"].astype(real)
    k, v = (inputs[name].repeat(group, axis=1).astype(real) for name in "KV")
    s = real(case.sm_scale) * (q @ k.swapaxes(-1, -2))
    s = np.where(case.hidden, real(-np.inf), s)
    seen = ~case.hidden.all(-1)[:, None]
    top = np.where(seen, s.max(-1, keepdims=True), real(0))
    with np.errstate(divide="ignore"):
        lse = top + np.log(np.exp(s - top).sum(-1, keepdims=True))
    p = np.exp(s - np.where(seen, lse, real(0)))
    out = r(r(p) @ v)
    delta = (out * do).sum(-1, keepdims=True)
    ds = r(p * (do @ v.swapaxes(-1, -2) - delta))

    def of_key_heads(x: np.ndarray) -> np.ndarray:
        return x.reshape(case.batch, case.heads_k, group, *x.shape[2:]).sum(2)

    return {
        "Out": out,
        "L": lse[..., 0],
        "Delta": delta[..., 0],
        "DQ": r(real(case.sm_scale) * (ds @ k)),
        "DK": r(of_key_heads(real(case.sm_scale) * (ds.swapaxes(-1, -2) @ q))),
        "DV": r(of_key_heads(r(p).swapaxes(-1, -2) @ do)),
    }


def assert_close(name: str, actual: np.ndarray, exact: np.ndarray, plain: np.ndarray) -> None:
    """At most twice the error of ``plain``, but for what another order of summation in fp32 may change; minus infinity
    exactly where that is exact.
    """
    known = exact != -np.inf
    assert np.array_equal(known, actual != -np.inf), f"{name}: minus infinity is not where it should be"
    actual, exact, plain = actual[known], exact[known], plain[known]
    allowed = 2 * np.linalg.norm(plain - exact) + 2.0**-19 * max(1.0, np.linalg.norm(exact))
    error = np.linalg.norm(actual - exact)
    assert error <= allowed, f"{name}: error {error:.3g}, a plain implementation allows {allowed:.3g}"


def dq_places(seqlen: int, width: int) -> np.ndarray:
    """[seqlen, width]: where a head's numbers of dq are among those of its sum, whose tiles have so many columns."""
    row, c = np.arange(seqlen)[:, None], np.arange(width)
    r = row % 64
    piece = c // 8 * 512 + r // 16 * 128 + r % 8 * 16 + c % 8 // 2 * 4 + r // 8 % 2 * 2 + c % 2
    return row // 64 * 64 * width + piece


@pytest.mark.parametrize("columns", [32, 64])
def test_shared_memory_has_a_piece_of_dq_in_the_order_of_its_sum(columns: int) -> None:
    """The layout that the Hopper kernels stage dq in says where each bit of an offset goes, in rows and columns."""
    pytest.importorskip("triton")
    from aotriton.tritonsrc.flash.lib.stores import fragments

    places = np.zeros((64, columns), int)
    for offset in range(places.size):
        row = column = 0
        for bit, (rows, across) in enumerate(fragments(columns).offset_bases):
            if offset >> bit & 1:
                row, column = row ^ rows, column ^ across
        places[row, column] = offset
    assert (places == dq_places(64, columns)).all()


def in_order(rows: np.ndarray, width: int) -> np.ndarray:
    """The sum of dq that has these rows; NaN elsewhere."""
    *outer, seqlen, columns = rows.shape
    made = np.full((*outer, -(-seqlen // 64) * width * 64), np.nan)
    made[..., dq_places(seqlen, width)[:, :columns]] = rows
    return made.reshape(*outer, -1, 64)


def run(
    launch: Any,
    case: Case,
    kernel: str,
    inputs: Arrays,
    outputs: tuple[str, ...],
    absent: frozenset[str] = frozenset(),
    dq_width: int = 64,
) -> Arrays:
    q_shape = (case.batch, case.heads_q, case.seqlen_q, case.head_dim)
    k_shape = (case.batch, case.heads_k, case.seqlen_k, case.head_dim)
    shapes = {"Out": q_shape, "DQ": q_shape, "DK": k_shape, "DV": k_shape, "L": q_shape[:3], "Delta": q_shape[:3]}
    sum_shape = (case.batch, case.heads_q, -(-case.seqlen_q // 64) * dq_width, 64)
    shapes |= {"DQSum": sum_shape, "DKSum": k_shape, "DVSum": k_shape}
    values = {
        "T": case.T,
        "sm_scale": case.sm_scale,
        "BLOCK_M": case.block_m,
        "BLOCK_N": case.block_n,
        "BLOCK_DMODEL": case.block_dmodel,
        "CAUSAL": case.causal,
        "ADDRESSING": case.addressing,
        **({"LEVEL": GENERAL, "BF16_PRODUCTS": 0, "lo": case.band[0], "hi": case.band[1]} if case.band else {}),
    }
    results = {name: shapes[name] for name in outputs}
    tensors = [name for name, like in (inputs | results).items() if len(getattr(like, "shape", like)) == 4]
    lying = (name for name in tensors if not name.endswith("Sum") and name != "Split")
    orders = dict.fromkeys(lying, (0, 2, 1, 3)) if case.gap else {}
    made: dict[str, Any] = launch(kernel, inputs, results, values, case.gap, absent, orders)
    return made


@pytest.mark.parametrize("case", [*CASES, *BANDS], ids=str)
def test_forward(launch: Any, case: Case) -> None:
    """attn_fwd writes softmax(sm_scale Q K^T) V and its log-sum-exp, and nothing outside of them."""
    inputs = make_inputs(case)
    exact, plain = attention(case, inputs, False), attention(case, inputs, True)
    results = run(launch, case, f"attn_fwd{case.suffix}", {name: inputs[name] for name in "QKV"}, ("Out", "L"))
    assert_close("Out", results["Out"], exact["Out"], plain["Out"])
    assert_close("L", results["L"], exact["L"], plain["L"])


@pytest.mark.parametrize("case", [*CASES, *BANDS], ids=str)
def test_backward(launch: Any, case: Case) -> None:
    """The three backward kernels, given what the forward pass wrote, write the gradients and nothing else."""
    inputs = make_inputs(case)
    exact, plain = attention(case, inputs, False), attention(case, inputs, True)
    forward = {"Out": plain["Out"], "DO": inputs["DO"]}
    delta = run(launch, replace(case, slim=False), "attn_bwd_preprocess", forward, ("Delta",))["Delta"]
    assert_close("Delta", delta, (forward["Out"].astype(np.float64) * forward["DO"]).sum(-1), plain["Delta"])

    common = {**inputs, "L": exact["L"].astype(np.float32), "Delta": delta}
    results = run(launch, case, f"attn_bwd_dk_dv{case.suffix}", common, ("DK", "DV"))
    results |= run(launch, case, f"attn_bwd_dq{case.suffix}", common, ("DQ",))
    for name, actual in results.items():
        assert_close(name, actual, exact[name], plain[name])


def test_what_a_tile_does_not_see_is_not_read(launch: Any) -> None:
    """Blocks of keys that no row of a tile sees, and blocks of rows that see no key of one, are not numbers here, and
    nothing shows it.
    """
    case = Case(32, 320, 32, 32, 32, band=(100, 140))  # the tile sees keys from 100 to 171: blocks from 96 to 191
    inputs = make_inputs(case)
    exact, plain = attention(case, inputs, False), attention(case, inputs, True)
    unseen = np.ones(case.seqlen_k, bool)
    unseen[96:192] = False
    for name in "KV":
        inputs[name][:, :, unseen] = np.nan
    results = run(launch, case, "attn_fwd", {name: inputs[name] for name in "QKV"}, ("Out", "L"))
    common = {**inputs, "L": exact["L"].astype(np.float32), "Delta": plain["Delta"].astype(np.float32)}
    results |= run(launch, case, "attn_bwd_dq", common, ("DQ",))
    for name, actual in results.items():
        assert_close(name, actual, exact[name], plain[name])

    across = Case(320, 32, 32, 32, 32, band=(-140, -100))
    inputs = make_inputs(across)
    exact, plain = attention(across, inputs, False), attention(across, inputs, True)
    for name in ("Q", "DO"):
        inputs[name][:, :, unseen] = np.nan
    common = {**inputs, "L": exact["L"].astype(np.float32), "Delta": plain["Delta"].astype(np.float32)}
    for name, actual in run(launch, across, "attn_bwd_dk_dv", common, ("DK", "DV")).items():
        assert_close(name, actual, exact[name], plain[name])


# Head dims of every width that a tile of the sum of dq has, and rows that end in any group of 16 and of 8.
SUMS = (
    (Case(1, 1, 8, 16, 16), 32),
    (Case(130, 65, 32, 64, 64, batch=2, heads_k=1), 32),
    (Case(17, 130, 40, 32, 16, gap=8, heads_q=4), 64),
    (Case(65, 17, 64, 16, 16, T="bf16"), 64),
    (Case(203, 17, 72, 64, 64, gap=8), 96),
    (Case(100, 130, 72, 32, 16, T="bf16"), 128),
    (Case(65, 65, 96, 64, 64, batch=2), 96),
    (Case(128, 64, 96, 16, 16, heads_q=1, heads_k=1), 96),
    (Case(90, 64, 128, 64, 64), 128),
)
OF_SUMS = pytest.mark.parametrize(("case", "width"), SUMS, ids=str)


def assert_cleared(case: Case, width: int, dq_sum: np.ndarray) -> None:
    """What has a row and a column of DQ is zero; beyond, no more than to the end of the last 16 rows."""
    places = dq_places(dq_sum.shape[2] // width * 64, width)
    of_heads = dq_sum.reshape(-1, dq_sum.shape[2] * 64)
    assert not of_heads[:, places[: case.seqlen_q, : case.head_dim]].any()
    kept = places.copy()
    kept[: -(-case.seqlen_q // 16) * 16, : case.head_dim] = -1
    assert of_heads[:, kept[kept >= 0]].all()


@OF_SUMS
def test_around_the_hopper_backward(launch: Any, case: Case, width: int) -> None:
    """Its first kernel writes Delta and clears the sum of DQ; its last one writes the scaled sum, and nothing else."""
    inputs = make_inputs(case)
    plain = attention(case, inputs, True)
    forward = {"Out": plain["Out"], "DO": inputs["DO"]}
    cleared = run(launch, case, "attn_bwd_hopper_prepare", forward, ("Delta", "DQSum"), dq_width=width)
    assert_close("Delta", cleared["Delta"], (plain["Out"].astype(np.float64) * inputs["DO"]).sum(-1), plain["Delta"])
    assert_cleared(case, width, cleared["DQSum"])
    summed = np.random.default_rng(8).standard_normal(inputs["Q"].shape).astype(np.float32)
    exact = case.sm_scale * summed.astype(np.float64)
    given = {"DQSum": in_order(summed, width)}
    results = run(launch, case, "attn_bwd_hopper_finish", given, ("DQ",), dq_width=width)
    assert_close("DQ", results["DQ"], exact, round_to(case.T, exact))


@pytest.mark.parametrize(("of_qk", "of_v"), [(64, 24), (24, 64), (128, 40), (40, 128)])
def test_around_the_hopper_backward_of_two_head_dims(launch: Any, of_qk: int, of_v: int) -> None:
    """Delta is of V's columns, and the sum of DQ is cleared, and becomes DQ, in all columns of Q."""
    widest = max(of_qk, of_v)
    case, width = Case(128, 64, widest, 32, 64), 64 if widest <= 64 else 128  # whole tiles are cleared
    random = np.random.default_rng(5)
    out, dout = (round_to("fp16", random.standard_normal((2, 3, 90, of_v))) for _ in range(2))
    values = {"T": "fp16", "BLOCK_M": 32, "BLOCK_DMODEL": width, "ADDRESSING": "descriptor", "sm_scale": 0.5}
    values |= {"features": 0, "self_attention": 0, "level": 4}
    of_sum = (2, 3, 2 * width, 64)
    sizes = {"head_dim": of_qk, "head_dim_v": of_v, "dq_rows": 2 * width, "heads_k": 3, "seqlen_k": 90}
    prepare, finish = (f"attn_bwd_hopper_features_{name}" for name in ("prepare", "finish"))
    outputs = {"Delta": (2, 3, 90), "DQSum": of_sum, "Marks": (12,)}
    cleared = launch(prepare, {"Out": out, "DO": dout}, outputs, values, 0, frozenset(), None, None, sizes)
    exact = (out.astype(np.float64) * dout).sum(-1)
    assert_close("Delta", cleared["Delta"], exact, exact.astype(np.float32))
    assert_cleared(case, width, cleared["DQSum"])
    assert cleared["Marks"].tolist() == [1] * 6 + [0] * 6
    summed = random.standard_normal((2, 3, 90, of_qk)).astype(np.float32)
    given = {"DQSum": in_order(summed, width)}
    results = launch(finish, given, {"DQ": summed.shape}, values, 0, frozenset(), None, None, sizes)
    assert_close("DQ", results["DQ"], 0.5 * summed.astype(np.float64), round_to("fp16", 0.5 * summed))


def test_around_a_hopper_backward_that_sweeps(launch: Any) -> None:
    """Its first kernel clears what the first programs need, and its last one stores what the last ones have: the
    programs of three tiles of six heads of keys, side by side, on a GPU of one multiprocessor.
    """
    random, rows = np.random.default_rng(6), 300
    out, dout = (round_to("fp16", random.standard_normal((2, 6, rows, 64))) for _ in range(2))
    values = {"T": "fp16", "BLOCK_M": 32, "BLOCK_DMODEL": 64, "ADDRESSING": "descriptor", "sm_scale": 0.5}
    values |= {"features": 0, "level": 4, "multiprocessors": 1, "hi": 0}
    sizes = {"head_dim": 64, "head_dim_v": 64, "dq_rows": 5 * 64, "heads_k": 3, "seqlen_k": rows}
    prepare, finish = (f"attn_bwd_hopper_features_{name}" for name in ("prepare", "finish"))
    outputs = {"Delta": (2, 6, rows), "DQSum": (2, 6, 5 * 64, 64), "Marks": (36,)}
    given = {"Out": out, "DO": dout}
    cleared = launch(prepare, given, outputs, values | {"lo": -10}, 0, frozenset(), None, None, sizes)
    ahead = 1 + 2 * 6
    marks, sums = cleared["Marks"].reshape(2, 6, 3), cleared["DQSum"].reshape(6, 2, 5, 64 * 64)
    for head, tile in np.ndindex(6, 3):
        early = tile * 6 + head < ahead
        assert marks[:, head, tile].tolist() == [early, 0]
        assert sums[head, :, 2 * tile : 2 * tile + 2].any() != early, (head, tile)

    summed = random.standard_normal((2, 6, rows, 64)).astype(np.float32)
    given = {"DQSum": in_order(summed, 64)}
    stored = launch(finish, given, {"DQ": summed.shape}, values | {"lo": -rows}, 0, frozenset(), None, None, sizes)
    behind = 1 + 1 * 6
    dq, exact = stored["DQ"].reshape(6, 2, rows, 64), 0.5 * summed.astype(np.float64).reshape(6, 2, rows, 64)
    for head, tile in np.ndindex(6, 3):
        own = np.s_[head, :, tile * 128 : tile * 128 + 128]
        if tile * 6 + head < 18 - behind:
            assert len(np.unique(dq[own])) == 1, "it wrote what a program of the walk has stored"
        else:
            assert_close("DQ", dq[own], exact[own], round_to("fp16", exact[own]))


def in_halves(numbers: np.ndarray, dtype: str) -> np.ndarray:
    """[splits, 4, 128, columns] of fp32 [splits, 2, 128, columns]: bits 16 to 31, then bits 0 to 15, as the type has
    them.
    """
    bits = numbers.astype(np.float32).view(np.uint32)
    halves = np.stack([bits >> 16, bits & 0xFFFF], 2).reshape(len(bits), 4, *bits.shape[2:])
    return halves.astype(np.uint16).view(np.float16) if dtype == "fp16" else (halves << 16).view(np.float32)


@pytest.mark.parametrize(("case", "width"), [(case, width) for case, width in SUMS if width != 96], ids=str)
def test_behind_the_hopper_backward_of_shares(launch: Any, case: Case, width: int) -> None:
    """It writes the scaled sum of DQ, and DK and DV of the tiles that programs share: the first of all, of two and
    three programs, and the last one.
    """
    tiles = case.batch * case.heads_k * -(-case.seqlen_k // 128)
    whose = np.full(12, -1, np.int32)
    pieces = {0: (1, 2, 4)} | ({tiles - 1: (7, 8)} if tiles > 1 else {})
    for tile, (first, *others) in pieces.items():
        whose[first], whose[others] = 2 * tile + 1, 2 * tile
    random = np.random.default_rng(8)
    left = random.standard_normal((12, 2, 128, case.block_dmodel)).astype(np.float32)
    summed = random.standard_normal((case.batch, case.heads_q, case.seqlen_q, case.head_dim)).astype(np.float32)
    given = {"DQSum": in_order(summed, width), "Split": in_halves(left, case.T), "SplitOf": whose.view(np.float32)}
    k_shape = (case.batch, case.heads_k, case.seqlen_k, case.head_dim)
    results = run(launch, case, "attn_bwd_hopper_shares_finish", given, ("DQ", "DK", "DV"), dq_width=width)
    exact = {"DQ": case.sm_scale * summed.astype(np.float64)}
    for which, name in enumerate(("DV", "DK")):
        exact[name] = np.full(k_shape, np.nan)
        for tile, places in pieces.items():
            head, row = divmod(tile, -(-case.seqlen_k // 128))
            rows = exact[name].reshape(-1, *k_shape[2:])[head, row * 128 : row * 128 + 128]
            rows[...] = left[list(places), which].astype(np.float64).sum(0)[: len(rows), : case.head_dim]
    for name, true in exact.items():
        written = ~np.isnan(true)
        assert_close(name, results[name][written], true[written], round_to(case.T, true[written]))
        assert len(np.unique(results[name][~written])) <= 1, "it wrote to tiles that are whole"


@OF_SUMS
def test_around_the_hopper_backward_in_parts(launch: Any, case: Case, width: int) -> None:
    """Its first kernel writes Delta and clears all sums; its last one writes them, of DQ and DK scaled, and nothing
    else.
    """
    inputs = make_inputs(case)
    plain = attention(case, inputs, True)
    forward = {"Out": plain["Out"], "DO": inputs["DO"]}
    sums = ("DQSum", "DKSum", "DVSum")
    cleared = run(launch, case, "attn_bwd_hopper_parts_prepare", forward, ("Delta", *sums), dq_width=width)
    assert_close("Delta", cleared["Delta"], (plain["Out"].astype(np.float64) * inputs["DO"]).sum(-1), plain["Delta"])
    assert_cleared(case, width, cleared["DQSum"])
    assert not any(cleared[name].any() for name in sums[1:])
    random = np.random.default_rng(8)
    summed = {name: random.standard_normal(inputs[name[1]].shape).astype(np.float32) for name in sums}
    given = {**summed, "DQSum": in_order(summed["DQSum"], width)}
    results = run(launch, case, "attn_bwd_hopper_parts_finish", given, ("DQ", "DK", "DV"), dq_width=width)
    for name, actual in results.items():
        exact = (1.0 if name == "DV" else case.sm_scale) * summed[f"{name}Sum"].astype(np.float64)
        assert_close(name, actual, exact, round_to(case.T, exact))


@pytest.mark.parametrize("case", [case for case in CASES if case.addressing == "descriptor"], ids=str)
def test_around_the_hopper_backward_of_two_kernels_in_parts(launch: Any, case: Case) -> None:
    """As in parts, without the sum of DQ."""
    inputs = make_inputs(case)
    plain = attention(case, inputs, True)
    forward = {"Out": plain["Out"], "DO": inputs["DO"]}
    sums = ("DKSum", "DVSum")
    cleared = run(launch, case, "attn_bwd_hopper_split_prepare", forward, ("Delta", *sums))
    assert_close("Delta", cleared["Delta"], (plain["Out"].astype(np.float64) * inputs["DO"]).sum(-1), plain["Delta"])
    assert not any(cleared[name].any() for name in sums)
    random = np.random.default_rng(8)
    given = {name: random.standard_normal(inputs["K"].shape).astype(np.float32) for name in sums}
    results = run(launch, case, "attn_bwd_hopper_split_finish", given, ("DK", "DV"))
    for name, actual in results.items():
        exact = (1.0 if name == "DV" else case.sm_scale) * given[f"{name}Sum"].astype(np.float64)
        assert_close(name, actual, exact, round_to(case.T, exact))


def test_without_lse(launch: Any) -> None:
    """Where the caller gives no logsumexp, attn_fwd does not touch L: it may be any pointer."""
    case = CASES[3]
    inputs = {name: array for name, array in make_inputs(case).items() if name != "DO"}
    inputs["L"] = np.full((case.batch, case.heads_q, case.seqlen_q), 3.0)  # an input: must be as it was
    run(launch, case, "attn_fwd", inputs, ("Out",), frozenset({"logsumexp"}))
