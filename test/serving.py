"""Random steps of a server of language models, on a paged cache: sequences come, grow, move and end, and each step is
one kv_append and one attn_fwd, whose results float64 judges.

The cache's pages that belong to nobody, and rows behind a sequence's keys, are no numbers: what reads them shows it.
A second copy of the cache says what its every bit has to be: what is written elsewhere shows, too. Truth is computed
from keys and values by sequence and position, and knows no pages. All checks of a step stay on the device, and the
host asks for their outcomes once in many steps. Tensors may be of a CPU or of a GPU.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, Protocol

import torch
from append_cases import UNIT as ROTATED
from attention_truth import FLOAT32_NOISE, FLUSHED, UNIT
from paged_cases import NO_PAGE

Tensor = Any
DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16}
NAN, INF = float("nan"), float("inf")
GUARD = 8  # rows behind all that a step may have
FEW = 4  # new tokens of a sequence that decodes, at most
UNCHECKED = 100  # steps
TINY = {"fp16": 2.0**-25, "bf16": 2.0**-134}  # roundoff of the smallest numbers, which have fewer bits
WRONG = (
    "kv_append: a key or value in the cache, or a query",
    "attn_fwd: out",
    "attn_fwd: logsumexp",
    "the cache was written elsewhere",
    "rows, results or workspace of nobody were written",
)
# kv_append's, of each token, and attn_fwd's, of each query; the others are of the whole step
BY_TOKEN, OF_STEP = WRONG[:3], WRONG[3:]


@dataclass(frozen=True)
class Setup:
    """A model's attention and the server's limits. ``window``: keys before its own position that a query sees, -1: all.
    ``captured``: both calls are in one graph, which is replayed for each step.
    """

    head_dim: int = 128
    heads_k: int = 2
    group: int = 4
    page_size: int = 16
    dtype: str = "bf16"
    window: int = -1
    softcap: float = 0.0
    sinks: bool = False
    rotary_pairs: int = 32
    interleaved: bool = False
    tokens_first: bool = True  # within a page, before heads
    captured: bool = False
    batch: int = 24  # sequences at once, at most
    longest: int = 700  # keys of a sequence
    chunk: int = 64  # new tokens of a sequence in a step
    tokens: int = 256  # new ones of a step

    @property
    def heads_q(self) -> int:
        return self.heads_k * self.group

    @property
    def width(self) -> int:
        """Pages that a sequence may have."""
        return -(-self.longest // self.page_size)

    @property
    def pages(self) -> int:
        """Of the cache: a third of what all sequences could need."""
        return max(self.width, self.batch * self.width // 3) + 4


class Library(Protocol):
    """What makes the two calls of a step."""

    def call(self, append: dict[str, Any], attend: dict[str, Any], out: Tensor, logsumexp: Tensor) -> Tensor | None:
        """Both calls, one after the other; whether something outside of the memory of the call was written, if known,
        as a truth value on the device.
        """


# ---- the server, which knows no tensors ------------------------------------------------------------------------------


@dataclass
class Sequence:
    """One that is served. ``slot``: where the truth keeps its keys. ``pages``: NO_PAGE where keys are out of sight."""

    name: int
    slot: int
    prompt: int
    end: int  # its keys, when it ends
    keys: int = 0
    pages: list[int] = field(default_factory=list)
    saved: Tensor = None  # its pages, while it is swapped out

    def __str__(self) -> str:
        return f"sequence {self.name} (prompt {self.prompt}, {self.keys} keys)"


@dataclass(frozen=True)
class Step:
    """What a step's calls are given: sequences of the batch in their order, new tokens of each, lengths with these."""

    number: int
    sequences: tuple[Sequence, ...]
    new: tuple[int, ...]
    used: tuple[int, ...]
    packed: bool
    causal: bool
    max_seqlen_k: int

    def __str__(self) -> str:
        return f"step {self.number} (new {self.new}, used {self.used}, {'packed' if self.packed else 'batched'})"


class Server:
    """Decides who is served, and where keys lie. ``memory`` moves what lies in the pages."""

    def __init__(self, setup: Setup, memory: Memory, choose: random.Random) -> None:
        self.setup, self.memory, self.choose = setup, memory, choose
        self.running: list[Sequence] = []
        self.waiting: list[Sequence] = []  # swapped out
        self.slots = list(range(2 * setup.batch))
        own = list(range(1, setup.pages - 1))  # the first page and the last one are nobody's
        choose.shuffle(own)
        self.free, self.freed = own, list[int]()  # what was freed is to be poisoned before it is used
        self.wanted = choose.randint(1, setup.batch)
        self.steps = self.names = 0
        self.happened = Counter[str]()
        for _ in range(choose.randint(1, self.wanted)):
            self.add()

    def chance(self, probability: float) -> bool:
        return self.choose.random() < probability

    # pages

    def clean(self) -> None:
        if self.freed:
            self.memory.poison(self.freed)
            self.free += self.freed
            self.freed = []

    def release(self, pages: list[int]) -> None:
        self.freed += [page for page in pages if page != NO_PAGE]

    def take(self, count: int) -> list[int] | None:
        """So many free pages, or none."""
        if len(self.free) < count:
            self.clean()
        if len(self.free) < count:
            return None
        for last in range(len(self.free) - 1, len(self.free) - 1 - count, -1):
            other = self.choose.randint(0, last)
            self.free[last], self.free[other] = self.free[other], self.free[last]
        kept = len(self.free) - count
        taken, self.free = self.free[kept:], self.free[:kept]
        return taken

    # events

    def add(self) -> None:
        if not self.slots:
            return
        longest = self.setup.longest
        prompt = self.choose.choice((1, self.choose.randint(1, longest - 1), self.choose.randint(1, longest // 4)))
        end = min(longest, prompt + self.choose.choice((1, 10, 50, longest)))
        slot = self.slots.pop(self.choose.randrange(len(self.slots)))
        self.running.insert(self.choose.randint(0, len(self.running)), Sequence(self.names, slot, prompt, end))
        self.names += 1
        self.happened["added"] += 1

    def finish(self, one: Sequence) -> None:
        self.running.remove(one)
        self.release(one.pages)
        self.slots.append(one.slot)
        self.happened["ended"] += 1

    def swap_out(self, one: Sequence) -> None:
        self.running.remove(one)
        one.saved = self.memory.save([page for page in one.pages if page != NO_PAGE])
        self.release(one.pages)
        self.waiting.append(one)
        self.happened["swapped out"] += 1

    def swap_in(self) -> None:
        one = self.waiting[self.choose.randrange(len(self.waiting))]
        there = [i for i, page in enumerate(one.pages) if page != NO_PAGE]
        pages = self.take(len(there))
        if pages is None:
            return
        for i, page in zip(there, pages, strict=True):
            one.pages[i] = page
        self.memory.load(one.saved, pages)
        one.saved = None
        self.waiting.remove(one)
        self.running.insert(self.choose.randint(0, len(self.running)), one)
        self.happened["swapped in"] += 1

    def move_pages(self) -> None:
        held = [(one, i) for one in self.running for i, page in enumerate(one.pages) if page != NO_PAGE]
        moved = self.choose.sample(held, min(len(held), self.choose.randint(1, 4)))
        pages = self.take(len(moved))
        if not moved or pages is None:
            return
        old = [one.pages[i] for one, i in moved]
        self.memory.load(self.memory.save(old), pages)
        for (one, i), page in zip(moved, pages, strict=True):
            one.pages[i] = page
        self.release(old)
        self.happened["moved"] += 1

    def events(self) -> None:
        for one in [one for one in self.running if one.keys >= one.end or self.chance(0.004)]:
            self.finish(one)
        if self.chance(0.02):
            self.wanted = self.choose.randint(1, self.setup.batch)
        if len(self.running) > 1 and self.chance(0.1):
            i, j = self.choose.sample(range(len(self.running)), 2)
            self.running[i], self.running[j] = self.running[j], self.running[i]
            self.happened["rows swapped"] += 1
        if self.chance(0.25):
            self.move_pages()
        if self.running and self.chance(0.02):
            self.swap_out(self.choose.choice(self.running))
        if self.waiting and len(self.running) < self.wanted and self.chance(0.3):
            self.swap_in()
        if len(self.running) < self.wanted and self.chance(0.5):
            self.add()
        while not self.running:
            self.add() if self.slots else self.swap_in()

    # a step

    def share(self) -> tuple[list[int], bool]:
        """New tokens of each sequence that runs, and whether these are packed."""
        setup, running = self.setup, self.running
        if all(one.keys >= one.prompt for one in running):
            count = self.choose.choice((1, 1, 1, 1, 2, FEW)) if self.chance(0.3) else 1
            count = min(count, setup.tokens // len(running), *(setup.longest - one.keys for one in running))
            if count and self.chance(0.75):
                return [count] * len(running), setup.captured
        new, left = [0] * len(running), setup.tokens - len(running)
        for i in self.choose.sample(range(len(running)), len(running)):
            one = running[i]
            wanted = one.prompt - one.keys if one.keys < one.prompt else min(1, setup.longest - one.keys)
            if wanted > 1:
                wanted = min(
                    wanted, setup.chunk, self.choose.choice((setup.chunk, self.choose.randint(1, setup.chunk)))
                )
            new[i] = 0 if self.chance(0.05) else min(wanted, left + 1)
            left -= max(new[i] - 1, 0)
        return new, True

    def provide(self, one: Sequence, count: int) -> bool:
        """Pages for so many new tokens, or none."""
        missing = -(-(one.keys + count) // self.setup.page_size) - len(one.pages)
        pages = self.take(max(missing, 0))
        if pages is not None:
            one.pages += pages
        return pages is not None

    def step(self) -> Step:
        """What happens before a step's calls, and the calls."""
        while True:
            self.events()
            new, packed = self.share()
            if not sum(new):
                continue
            short = [one for one, count in zip(self.running, new, strict=True) if not self.provide(one, count)]
            if not short:
                break
            for one in short[: len(self.running) - 1] or short:  # there are no pages for them: they wait
                self.swap_out(one)
                self.happened["short of pages"] += 1
        self.clean()
        used = [one.keys + count for one, count in zip(self.running, new, strict=True)]
        causal = max(new) > 1 or self.chance(0.5)
        made = Step(
            self.steps, tuple(self.running), tuple(new), tuple(used), packed,
            causal=causal or self.setup.captured,
            max_seqlen_k=self.setup.longest if self.setup.captured else max(used) if self.chance(0.5) else 0,
        )  # fmt: skip
        self.steps += 1
        self.happened["packed" if packed else f"{new[0]} new of each"] += 1
        self.happened["chunks beside decoding"] += packed and max(new) > FEW and 1 in new
        return made

    def done(self, step: Step) -> None:
        """After a step's calls."""
        for one, used in zip(step.sequences, step.used, strict=True):
            one.keys = used
            if self.setup.window >= 0:
                gone = max(used - self.setup.window, 0) // self.setup.page_size
                self.release(one.pages[:gone])
                one.pages[:gone] = [NO_PAGE] * gone


# ---- the cache, and what it has to be --------------------------------------------------------------------------------


class Memory:
    """The cache, [k and v, pages, heads_k, page_size, head_dim] by strides, and what it has to be."""

    def __init__(self, setup: Setup, device: str) -> None:
        self.device = device
        rows = (setup.page_size, setup.heads_k) if setup.tokens_first else (setup.heads_k, setup.page_size)
        shape, dtype = (2, setup.pages, *rows, setup.head_dim), DTYPES[setup.dtype]
        self.cache, self.wanted = (torch.full(shape, NAN, dtype=dtype, device=device) for _ in range(2))
        self.both = (self.cache, self.wanted)
        if setup.tokens_first:
            self.both = (self.cache.transpose(2, 3), self.wanted.transpose(2, 3))

    def index(self, numbers: list[int]) -> Tensor:
        return on_device(torch.tensor(numbers, dtype=torch.int64), self.device)

    def poison(self, pages: list[int]) -> None:
        at = self.index(pages)
        for one in self.both:
            one[:, at] = NAN

    def save(self, pages: list[int]) -> Tensor:
        at = self.index(pages)
        return [one[:, at] for one in self.both]

    def load(self, saved: Tensor, pages: list[int]) -> None:
        at = self.index(pages)
        for one, values in zip(self.both, saved, strict=True):
            one[:, at] = values

    def differs(self) -> Tensor:
        return (bits(self.cache) != bits(self.wanted)).any()


def on_device(values: Tensor, device: str) -> Tensor:
    """A copy there, for which the host does not wait."""
    return values.clone() if device == "cpu" else values.pin_memory().to(device, non_blocking=True)


def bits(x: Tensor) -> Tensor:
    """As integers, so that NaN equals NaN."""
    return x.view({2: torch.int16, 4: torch.int32, 8: torch.int64}[x.element_size()])


# ---- truth -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Truth:
    """Of queries [sequences, heads_k, group, new]: results, and the sizes of the terms that they are made of."""

    out: Tensor
    logsumexp: Tensor
    out_bound: Tensor
    out_spread: Tensor  # the root of the sum of the terms' squares
    seen_spread: Tensor  # the same, if each weight were 1
    logsumexp_bound: Tensor


def attention(setup: Setup, q: Tensor, k: Tensor, v: Tensor, place: Tensor, sinks: Tensor, work: Any) -> Truth:
    """Textbook attention in the type ``work``, whose weights and out are rounded as q's type has it unless ``work`` is
    float64. q: [sequences, heads_k, group, new, head_dim]; k and v: [sequences, heads_k, keys, head_dim]; ``place``:
    [sequences, new], the positions of queries, which see all keys up to that, or those of a window.
    """

    def rounded(x: Tensor) -> Tensor:
        return x if work == torch.float64 else x.to(low.dtype).to(work)

    (count, heads, group, new, width), keys = q.shape, k.shape[2]
    low, scale = q, width**-0.5
    q, k, v = (x.to(work) for x in (low, k, v))
    flat = q.reshape(count, heads, group * new, width)
    scores = (flat @ k.mT * scale).view(count, heads, group, new, keys)
    if setup.softcap:
        scores = setup.softcap * torch.tanh(scores / setup.softcap)
    key, place = torch.arange(keys, device=q.device), place[..., None]
    seen = key <= place
    if setup.window >= 0:
        seen &= key >= place - setup.window
    seen = seen[:, None, None]
    scores = torch.where(seen, scores, -INF)
    lse = scores.logsumexp(-1)
    if setup.sinks:
        lse = torch.logaddexp(lse, sinks.to(work).view(heads, group, 1))
    p = (scores - lse[..., None]).exp().view(count, heads, group * new, keys)
    out = rounded(rounded(p) @ v).view(*low.shape)
    if work != torch.float64:
        return Truth(out, lse, lse, lse, lse, lse)
    v_norm, k_norm = v.norm(dim=-1, keepdim=True), k.norm(dim=-1)
    largest = torch.where(seen, k_norm[:, :, None, None], 0.0).amax(-1)
    lse_bound = 1 + q.norm(dim=-1) * largest * scale
    if setup.softcap:  # its hyperbolic tangent is exact to 2e-7, whatever the score is
        lse_bound += 2e-7 / FLOAT32_NOISE * setup.softcap
    out_bound, spread = (p @ v_norm).view(lse.shape), ((p * p) @ (v_norm * v_norm)).sqrt().view(lse.shape)
    seen_spread = torch.where(seen, v_norm[:, :, None, None, :, 0], 0.0).norm(dim=-1)
    return Truth(out, lse, out_bound, spread, seen_spread, lse_bound)


# ---- the simulation --------------------------------------------------------------------------------------------------


class Simulation:
    """A server of random requests, whose steps ``library`` computes."""

    def __init__(self, setup: Setup, library: Library, device: str, seed: int) -> None:
        self.setup, self.library, self.device, self.seed = setup, library, device, seed
        self.memory = Memory(setup, device)
        self.server = Server(setup, self.memory, random.Random(f"{setup} {seed}"))
        self.random = torch.Generator(device=device).manual_seed(random.Random(f"{seed} {setup}").randrange(2**31))
        low, rows = DTYPES[setup.dtype], setup.tokens + GUARD
        here = {"device": device}
        # Queries, keys and values of new tokens lie side by side.
        heads = setup.heads_q + 2 * setup.heads_k
        self.new = torch.empty((rows, heads, setup.head_dim), dtype=low, **here)
        self.out = torch.empty((rows, setup.heads_q, setup.head_dim), dtype=low, **here)
        self.logsumexp = torch.empty(rows * setup.heads_q, dtype=torch.float32, **here)
        self.keys, self.values = (
            torch.zeros((2 * setup.batch, setup.heads_k, setup.longest, setup.head_dim), dtype=torch.float64, **here)
            for _ in range(2)
        )
        angles = torch.rand((setup.longest, setup.rotary_pairs), generator=self.random, **here) * 2 * math.pi
        self.cos, self.sin = angles.cos(), angles.sin()
        self.sinks = torch.randn(setup.heads_q, generator=self.random, **here) * 2
        # Read on the device: the table, lengths and where each sequence begins.
        self.table = torch.empty((setup.batch, setup.width + 1), dtype=torch.int32, **here)
        self.used = torch.empty(setup.batch, dtype=torch.int32, **here)
        self.starts = torch.empty(setup.batch + 1, dtype=torch.int32, **here)
        # Outcomes: whether each of WRONG is so, and the token of it; and sums of squares of the whole run.
        self.wrong = torch.zeros((UNCHECKED, len(WRONG)), dtype=torch.bool, **here)
        self.token = torch.zeros((UNCHECKED, len(BY_TOKEN)), dtype=torch.int64, **here)
        self.squares = torch.zeros((2, 4), dtype=torch.float64, **here)
        self.unchecked: list[tuple[Step, tuple[str, ...]]] = []

    def run(self, steps: int) -> None:
        """So many steps, all of which are right, or an AssertionError that says which one is not."""
        for _ in range(steps):
            self.step(self.server.step())
        self.outcomes()
        self.in_total()

    def step(self, step: Step) -> None:
        """A step's calls, and its checks."""
        setup, place = self.setup, len(self.unchecked)
        total, count = sum(step.new), len(step.sequences)
        page, row, slot, position = self.fill(step)
        self.new[:total].normal_(generator=self.random)
        if self.server.chance(0.2):
            self.new[:total, : setup.heads_q] *= 4  # a softmax with peaks
        for x in (self.new[total:], self.out, self.logsumexp):
            x.fill_(NAN)
        before = self.new.clone()

        rows, batch = (setup.tokens, setup.batch) if setup.captured else (total, count)
        append, attend = self.arguments(step, rows, batch)
        shape = (1, rows) if step.packed else (count, step.new[0])
        out = self.out[:rows].view(*shape, *self.out.shape[1:]).transpose(1, 2)
        logsumexp = self.logsumexp[: rows * setup.heads_q].view(shape[0], setup.heads_q, shape[1])
        outside = self.library.call(append, attend, out, logsumexp)

        # kv_append
        written = self.memory.both[0][:, page, :, row].movedim(1, 0)  # [k and v, tokens, heads_k, head_dim]
        self.memory.both[1][:, page, :, row] = written.movedim(0, 1)
        q, keys = self.new[:total, : setup.heads_q], slice(setup.heads_q, setup.heads_q + setup.heads_k)
        right = self.is_rotated(written[0], before[:total, keys], position)
        right &= (written[1] == before[:total, keys.stop :]).all(-1).all(-1)
        right &= self.is_rotated(q, before[:total, : setup.heads_q], position)
        self.judge(place, 0, ~right)
        self.keys[slot, :, position], self.values[slot, :, position] = written.double().unbind(0)

        # attn_fwd
        results = logsumexp.movedim(1, 2).reshape(rows, setup.heads_q)
        wrong = torch.zeros((2, total), dtype=torch.bool, device=self.device)
        for sequences in self.alike(step):
            self.check(step, sequences, q, results, wrong)
        self.judge(place, 1, wrong[0])
        self.judge(place, 2, wrong[1])

        # what is nobody's
        self.wrong[place, 3] = self.memory.differs()
        changed = (bits(self.new[total:]) != bits(before[total:])).any() | ~self.out[total:].isnan().all()
        changed |= (bits(self.new[:total, setup.heads_q :]) != bits(before[:total, setup.heads_q :])).any()
        changed |= ~results[total:].isnan().all() | ~self.logsumexp[rows * setup.heads_q :].isnan().all()
        self.wrong[place, 4] = changed if outside is None else changed | outside

        names = tuple(str(one) for one in step.sequences)
        self.unchecked.append((step, names))
        self.server.done(step)
        if len(self.unchecked) == UNCHECKED:
            self.outcomes()

    def fill(self, step: Step) -> tuple[Tensor, ...]:
        """Table, lengths and beginnings on the device; page, row, slot and position of each new token."""
        setup, spare = self.setup, self.setup.batch - len(step.sequences)
        table = [one.pages + [NO_PAGE] * (setup.width + 1 - len(one.pages)) for one in step.sequences]
        table += [[NO_PAGE] * (setup.width + 1)] * spare
        numbers = [page for pages in table for page in pages] + [*step.used] + [0] * spare
        numbers += [0, *accumulate((*step.new, *[0] * spare))]
        given = on_device(torch.tensor(numbers, dtype=torch.int32), self.device)
        split = given.split([self.table.numel(), setup.batch, setup.batch + 1])
        for x, values in zip((self.table, self.used, self.starts), split, strict=True):
            x.copy_(values.view(x.shape))
        tokens = [
            (one.pages[place // setup.page_size], place % setup.page_size, one.slot, place)
            for one, new, used in zip(step.sequences, step.new, step.used, strict=True)
            for place in range(used - new, used)
        ]
        made: tuple[Tensor, ...] = on_device(torch.tensor(tokens, dtype=torch.int64), self.device).unbind(1)
        return made

    def arguments(self, step: Step, rows: int, batch: int) -> tuple[dict[str, Any], dict[str, Any]]:
        """Of kv_append, and of attn_fwd but for its results."""
        setup, (k_cache, v_cache) = self.setup, self.memory.both[0].unbind(0)
        shape = (1, rows) if step.packed else (batch, step.new[0])
        new = self.new[:rows].view(*shape, *self.new.shape[1:]).transpose(1, 2)
        q, k, v = new.split([setup.heads_q, setup.heads_k, setup.heads_k], 1)
        width = setup.width if setup.captured else max(len(one.pages) for one in step.sequences)
        both = {"block_table": self.table[:batch, :width], "seqused_k": self.used[:batch]}
        append = {"k": k, "v": v, "k_cache": k_cache, "v_cache": v_cache, **both}
        if setup.rotary_pairs:
            append |= {"q": q, "rotary_cos": self.cos, "rotary_sin": self.sin}
            append["rotary_interleaved"] = setup.interleaved
        attend = {"q": q, "k": k_cache, "v": v_cache, **both, "sm_scale": setup.head_dim**-0.5}
        if step.causal or setup.window >= 0:
            attend |= {"causal": step.causal, "causal_variant": "bottom_right", "window_left": setup.window}
        if setup.softcap:
            attend["softcap"] = setup.softcap
        if setup.sinks:
            attend["sinks"] = self.sinks
        if step.packed:
            append["cu_seqlens_k"] = attend["cu_seqlens_q"] = self.starts[: batch + 1]
            attend["max_seqlen_q"] = max(setup.chunk, FEW) if setup.captured else max(step.new)
        if step.max_seqlen_k:
            attend["max_seqlen_k"] = step.max_seqlen_k
        return append, attend

    def is_rotated(self, result: Tensor, x: Tensor, position: Tensor) -> Tensor:
        """Of each token, whether its rows [tokens, heads, head_dim] are those of x, rotated by its position's angles,
        within a rounding.
        """
        setup, pairs = self.setup, self.setup.rotary_pairs
        x = x.double()
        exact, slack = x.clone(), torch.zeros_like(x)
        if pairs:
            one, other = (slice(0, 2 * pairs, 2), slice(1, 2 * pairs, 2)) if setup.interleaved else (
                slice(0, pairs), slice(pairs, 2 * pairs)
            )  # fmt: skip
            cos, sin = (angles[position][:, None].double() for angles in (self.cos, self.sin))
            a, b = x[..., one], x[..., other]
            exact[..., one], exact[..., other] = a * cos - b * sin, b * cos + a * sin
            slack[..., one] = slack[..., other] = ROTATED[setup.dtype] * (a.abs() + b.abs())
        return ((result.double() - exact).abs() <= slack).all(-1).all(-1)

    def alike(self, step: Step) -> list[list[int]]:
        """Sequences with new tokens whose truth is worked out at once: those of few new tokens, and the others."""
        few = [i for i, new in enumerate(step.new) if 0 < new <= FEW]
        return [some for some in (few, [i for i, new in enumerate(step.new) if new > FEW]) if some]

    def check(self, step: Step, sequences: list[int], q: Tensor, lse_rows: Tensor, wrong: Tensor) -> None:
        """Says in ``wrong``, [out and logsumexp, tokens], which tokens of these sequences have wrong results."""
        setup, starts = self.setup, [0, *accumulate(step.new)]
        most, keys = max(step.new[i] for i in sequences), max(step.used[i] for i in sequences)
        at = [[step.sequences[i].slot, step.used[i], step.new[i], starts[i]] for i in sequences]
        given = on_device(torch.tensor(at, dtype=torch.int64), self.device)
        slot, used, new, start = given.T[..., None].unbind(0)
        # Behind a sequence's last query, that one stands again and again.
        query = torch.minimum(torch.arange(most, device=self.device), new - 1)
        tokens, slot = start + query, slot[:, 0]

        def of_queries(x: Tensor) -> Tensor:
            """Rows [tokens, heads_q, ...] as [sequences, heads_k, group, new, ...]."""
            x = x[tokens]
            return x.view(*x.shape[:2], setup.heads_k, setup.group, *x.shape[3:]).movedim(1, 3)

        counts = (torch.arange(most, device=self.device) < new)[:, None, None]
        operands = of_queries(q), self.keys[slot, :, :keys], self.values[slot, :, :keys], used - new + query, self.sinks
        exact = attention(setup, *operands, torch.float64)
        usual = attention(setup, *operands, torch.float32)
        out, lse = of_queries(self.out).double(), of_queries(lse_rows).double()

        # Of out, each element is rounded once, and each weight that it is made of, by itself: relative errors, which
        # add up as squares do. Up to four keys, twice their root is what they can amount to at most.
        unit, tiny = UNIT[setup.dtype], TINY[setup.dtype]
        error, scale = (out - exact.out).norm(dim=-1), exact.out.norm(dim=-1)
        allowed = unit * scale + tiny * setup.head_dim**0.5 + FLOAT32_NOISE * exact.out_bound + FLUSHED
        allowed += 2 * (unit * exact.out_spread + tiny * exact.seen_spread)
        lse_error, lse_usual = (lse - exact.logsumexp).abs(), (usual.logsumexp.double() - exact.logsumexp).abs()
        lse_noise = FLOAT32_NOISE * exact.logsumexp_bound
        lse_allowed = 2 * lse_usual + UNIT["fp32"] * exact.logsumexp.abs() + lse_noise
        for which, far in enumerate((~(error <= allowed), ~(lse_error <= lse_allowed))):
            wrong[which, tokens] = far.any(1).any(1)  # [sequences, new]

        terms = (
            (error, (usual.out.double() - exact.out).norm(dim=-1), scale, exact.out_bound),
            (lse_error, lse_usual, exact.logsumexp, exact.logsumexp_bound),
        )
        self.squares += torch.stack([torch.stack([(x * x * counts).sum() for x in some]) for some in terms])

    def judge(self, place: int, which: int, wrong: Tensor) -> None:
        self.wrong[place, which], self.token[place, which] = wrong.any(), wrong.int().argmax()

    # outcomes

    def outcomes(self) -> None:
        """Asks for those of the steps since the last time."""
        count = len(self.unchecked)
        wrong = self.wrong[:count].cpu()
        if wrong.any():
            place = int(wrong.any(1).int().argmax())
            raise AssertionError(self.named(place, wrong[place].tolist(), self.token[place].tolist()))
        self.unchecked.clear()

    def named(self, place: int, wrong: list[bool], token: list[int]) -> str:
        """What is wrong, and in which step of which run."""
        step, names = self.unchecked[place]
        lines = []
        for which, what in enumerate(WRONG):
            if wrong[which]:
                owner = ""
                if which < len(BY_TOKEN):
                    ends = [*accumulate(step.new)]
                    i = next(i for i, end in enumerate(ends) if token[which] < end)
                    owner = f" of row {i} of the batch, new token {token[which] - ends[i] + step.new[i]}, {names[i]}"
                lines.append(what + owner)
        return f"{'; '.join(lines)}; {step}; seed {self.seed}; {self.setup}"

    def in_total(self) -> None:
        """Over the whole run, results are at most twice as far from the truth as ordinary code's."""
        of_run = self.squares.sqrt().tolist()
        for what, unit, sizes in zip(("out", "logsumexp"), (UNIT[self.setup.dtype], UNIT["fp32"]), of_run, strict=True):
            error, usual, scale, bound = sizes
            allowed = 2 * usual + 0.5 * unit * scale + FLOAT32_NOISE * bound + FLUSHED
            assert error <= allowed, (
                f"{what}: error {error:.3g} in total, allowed {allowed:.3g} (ordinary {usual:.3g}, result {scale:.3g});"
                f" {self.server.steps} steps; seed {self.seed}; {self.setup}"
            )
