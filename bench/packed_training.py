"""Training of a GPT on packed documents, with windows in every second layer and dropout, beside torch's own attention.

python bench/packed_training.py --json bench/results/packed-training.json
python bench/packed_training.py --json toy.json --toy     # the same on a CPU, at sizes that say nothing
python bench/packed_training.py --from bench/results/packed-training.json

Torch's contenders do the whole work of a call: documents, causal, windows, gradients. Its build of FlashAttention-2 is
called as the operator that varlen_attn calls, too, which has no dropout of its own; FlexAttention has none at all. So
there are two runs, with dropout and without. cuDNN has no windows here. SDPA with a mask computes each pair of a row,
eight times the work or more, and is a contender on a CPU alone.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from functools import partial
from random import Random
from typing import Any

import pytorch  # bench/pytorch.py
import stored
import torch
from losses import apart, at_the_end, between_seeds, numbers
from pytorch import FA2, TORCH, Block, Gpt, Selects, Sizes, Training
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from torch.nn.functional import scaled_dot_product_attention

import aotriton.torch
from aotriton.torch.flash import flash_attn_varlen_func

FLEX, OTHER_DRAWS = "FlexAttention", ", other draws"
DOOR, FUNCTION = "aotriton in torch's operator", "aotriton's flash_attn_varlen_func"
MODES: dict[str, Callable[[Any], Any]] = {
    "compiled": partial(torch.compile, fullgraph=True),  # an error where there is a graph break
    "eager": lambda model: model,
}
DROPOUT = 0.1
RUNS = {"no dropout": 0.0, "dropout": DROPOUT}  # in this order: what compares gradients is first
FEW = 8  # tokens of a document
EAGER_STEPS = 60  # of one seed: its speed is asked for, and its losses are those of the compiled mode
MOST_APART = 0.1  # of gradients, relative: roundings are 0.01, a window that is forgotten is 0.3


@dataclass(frozen=True)
class Packed(Sizes):
    """Lengths of documents are log-normal, of this median and spread of their logarithm, and at most ``longest``. A
    query of a layer with a window sees as many keys before its own.
    """

    median: int
    spread: float
    longest: int
    window: int


GPT = Packed(
    batch=1, heads=12, heads_k=12, seqlen=8192, head_dim=64, layers=12, vocabulary=50304, steps=300,
    median=400, spread=1.2, longest=4096, window=512,
)  # fmt: skip
TOY = Packed(
    batch=1, heads=2, heads_k=2, seqlen=48, head_dim=8, layers=2, vocabulary=64, steps=12,
    median=8, spread=1.0, longest=24, window=3,
)  # fmt: skip


# ---- documents -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Row:
    """What is trained on in a step: documents, one behind the other."""

    tokens: Any  # [1, seqlen]
    next: Any  # [seqlen]: the token behind each, or -100 where a document ends
    places: Any  # [1, seqlen]: of each token in its document
    documents: Any  # [seqlen] int32: the number of each token's document
    starts: Any  # [documents + 1] int32


def lengths(sizes: Packed, draw: Random) -> list[int]:
    """Of a row's documents; the last one ends with the row."""
    found, left = [], sizes.seqlen
    while left:
        length = max(1, round(draw.lognormvariate(math.log(sizes.median), sizes.spread)))
        found.append(min(length, sizes.longest, left))
        left -= found[-1]
    return found


def rows(sizes: Packed, device: str, seed: int) -> list[Row]:
    """Of all steps. Some tokens are much more frequent than others, and every second one is of a few that its document
    has at random: who looks at other documents, or not at its own, learns less.
    """
    draw, generator = Random(seed), torch.Generator().manual_seed(seed)
    frequencies = 1 / torch.arange(10, sizes.vocabulary + 10)
    places = torch.arange(sizes.seqlen)
    found = []
    for _ in range(sizes.steps):
        counts = torch.tensor(lengths(sizes, draw))
        ends = counts.cumsum(0)
        documents = torch.arange(len(counts)).repeat_interleave(counts)
        few = torch.randint(sizes.vocabulary, (len(counts), FEW), generator=generator)
        which, told = (torch.randint(many, (sizes.seqlen,), generator=generator) for many in (FEW, 2))
        tokens = torch.multinomial(frequencies, sizes.seqlen, replacement=True, generator=generator)
        tokens = torch.where(told > 0, few[documents, which], tokens)
        behind = tokens.roll(-1)
        behind[ends - 1] = -100
        starts = torch.cat([torch.zeros(1), ends]).int().to(device)
        torch._dynamo.maybe_mark_dynamic(starts, 0)  # each row has another number of documents
        at = (places - (ends - counts)[documents])[None]
        tokens, behind, at, documents = (one.to(device) for one in (tokens[None], behind, at, documents.int()))
        found.append(Row(tokens, behind, at, documents, starts))
    return found


# ---- contenders ------------------------------------------------------------------------------------------------------


class PackedBlock(Block):
    """Every second layer has a window."""

    def __init__(self, sizes: Packed, layer: int, dropout: float) -> None:
        super().__init__(sizes, type(self).__name__)
        self.longest, self.dropout = sizes.longest, dropout
        self.windowed = layer % 2  # of two masks the second
        self.left, self.right = (sizes.window, 0) if self.windowed else (-1, -1)

    @staticmethod
    def telling(sizes: Packed, device: str) -> Callable[[Row], Any]:
        """What makes of a row what ``attend`` is told of its documents."""
        return lambda row: row.starts


def packed_rows(tensor: Any) -> Any:
    """[1, heads, total, head_dim] as [total, heads, head_dim], and back."""
    return tensor[0].transpose(0, 1)


def one_batch(tensor: Any) -> Any:
    return tensor.transpose(0, 1)[None]


class FunctionBlock(PackedBlock):
    def attend(self, q: Any, k: Any, v: Any, starts: Any) -> Any:
        lengths = starts, starts, self.longest, self.longest
        window = self.left, self.right
        q, k, v = map(packed_rows, (q, k, v))
        return one_batch(
            flash_attn_varlen_func(q, k, v, *lengths, dropout_p=self.dropout, causal=True, window_size=window)
        )


class OperatorBlock(PackedBlock):
    """torch's operator, which runs FlashAttention-2, or this library where it is active."""

    def attend(self, q: Any, k: Any, v: Any, starts: Any) -> Any:
        lengths = starts, starts, self.longest, self.longest
        window = {"window_size_left": self.left, "window_size_right": self.right}
        q, k, v = map(packed_rows, (q, k, v))
        out, *_ = torch.ops.aten._flash_attention_forward(q, k, v, *lengths, self.dropout, True, False, **window)
        return one_batch(out)


class FlexBlock(PackedBlock):
    ALONE = staticmethod(torch.compile(flex_attention, dynamic=False))  # it is slow unless it is compiled

    def attend(self, q: Any, k: Any, v: Any, masks: Any) -> Any:
        attention = flex_attention if torch.compiler.is_compiling() else self.ALONE
        return attention(q, k, v, block_mask=masks[self.windowed])

    @staticmethod
    def telling(sizes: Packed, device: str) -> Callable[[Row], Any]:
        """Masks of blocks, compiled, and made anew for each row: their time is in the step's, as users have it."""
        documents = torch.zeros(sizes.seqlen, dtype=torch.int32, device=device)
        make = torch.compile(create_block_mask)

        def full(_: Any, __: Any, query: Any, key: Any) -> Any:
            return (documents[query] == documents[key]) & (query >= key)

        def windowed(_: Any, __: Any, query: Any, key: Any) -> Any:
            return (documents[query] == documents[key]) & (query >= key) & (query - key <= sizes.window)

        def masks(row: Row) -> Any:
            documents.copy_(row.documents)
            return tuple(make(one, None, None, sizes.seqlen, sizes.seqlen, device) for one in (full, windowed))

        return masks


class DenseBlock(PackedBlock):
    """torch's SDPA, with a mask of each pair."""

    def attend(self, q: Any, k: Any, v: Any, masks: Any) -> Any:
        return scaled_dot_product_attention(q, k, v, attn_mask=masks[self.windowed], dropout_p=self.dropout)

    @staticmethod
    def telling(sizes: Packed, device: str) -> Callable[[Row], Any]:
        before = torch.arange(sizes.seqlen, device=device)[:, None] - torch.arange(sizes.seqlen, device=device)

        def masks(row: Row) -> Any:
            full = (row.documents[:, None] == row.documents) & (before >= 0)
            return full, full & (before <= sizes.window)

        return masks


BLOCKS: dict[str, type[PackedBlock]] = {
    TORCH: DenseBlock,
    FA2: OperatorBlock,
    FLEX: FlexBlock,
    DOOR: OperatorBlock,
    FUNCTION: FunctionBlock,
}


def contenders(device: str, dropout: float) -> Selects:
    """What selects each of them; the first one is what others stand beside. With dropout it is there twice: its own
    losses differ by draws alone.
    """
    first = TORCH if device == "cpu" else FA2
    found: Selects = {first: nullcontext}
    if dropout:
        found[first + OTHER_DRAWS] = nullcontext
    if device == "cpu":
        return found | {FUNCTION: nullcontext}
    if not dropout:
        found[FLEX] = nullcontext
    return found | {DOOR: pytorch.door, FUNCTION: nullcontext}


# ---- training --------------------------------------------------------------------------------------------------------


def block_of(who: str) -> type[PackedBlock]:
    return BLOCKS[who.removesuffix(OTHER_DRAWS)]


def packed_gpt(sizes: Packed, who: str, dropout: float) -> Gpt:
    return Gpt(sizes, lambda layer: block_of(who)(sizes, layer, dropout))


class PackedTraining(Training):
    def __init__(self, sizes: Packed, who: str, dropout: float, mode: str, device: str) -> None:
        super().__init__(packed_gpt(sizes, who, dropout), MODES[mode], device)
        self.tell = block_of(who).telling(sizes, device)

    def batch(self, step: int) -> tuple[tuple[Any, ...], Any]:
        row = self.data[step]
        return (row.tokens, row.places, self.tell(row)), row.next

    def gradients(self) -> list[Any]:
        """Of each layer's queries, keys and values, in the first step."""
        self.backward(0)
        found = [block.qkv.weight.grad for block in self.model.blocks]
        self.model.zero_grad(set_to_none=True)
        return found


def farthest(ones: Sequence[Any], others: Sequence[Any]) -> float:
    """The largest distance of two lists of tensors, relative to the second one."""
    return max(float((one - other).norm() / other.norm()) for one, other in zip(ones, others, strict=True))


def train(mode: str, dropout: float, sizes: Packed, device: str, seeds: int) -> dict[str, dict[str, Any]]:
    """What `measured` says of each contender, and without dropout how far the gradients of its first step are from the
    first one's. RuntimeError where they are so far that it computes something else.
    """
    selects = contenders(device, dropout)
    trainings = {who: PackedTraining(sizes, who, dropout, mode, device) for who in selects}
    first, distances = next(iter(selects)), {}
    for seed in range(seeds):
        torch.manual_seed(seed)
        weights, data = packed_gpt(sizes, first, dropout).state_dict(), rows(sizes, device, seed)
        for one in trainings.values():
            one.begin(weights, data)
        if not seed and not dropout:
            gradients = {}
            for who, select in selects.items():
                with select():
                    gradients[who] = trainings[who].gradients()
            distances = {who: farthest(one, gradients[first]) for who, one in gradients.items()}
            far = [f"{who}: {one:.2g}" for who, one in distances.items() if not one < MOST_APART]
            if far:
                raise RuntimeError(f"gradients are far from those of {first}: {', '.join(far)}")
        pytorch.take_turns(trainings, selects, sizes.steps)
    found = pytorch.measured(trainings, sizes)
    for who, distance in distances.items():
        found[who]["gradients_apart"] = round(distance, 5)
    return found


def graphs(sizes: Packed, device: str, dropout: float) -> dict[str, dict[str, int]]:
    """How many graphs torch.compile makes of the model with each of the library's ways in, and at how many breaks."""
    found = {}
    for who, select in contenders(device, dropout).items():
        if who in (DOOR, FUNCTION):
            one = PackedTraining(sizes, who, dropout, "eager", device)
            one.begin(one.model.state_dict(), rows(replace(sizes, steps=1), device, 0))
            with select(), torch.autocast(device, dtype=torch.bfloat16):
                told = torch._dynamo.explain(one.model)(*one.batch(0)[0])
            found[who] = {"graphs": told.graph_count, "breaks": told.graph_break_count}
    return found


# ---- record and tables -----------------------------------------------------------------------------------------------


def table(record: dict[str, Any]) -> str:
    lines = [", ".join(f"{key} {value}" for key, value in record["machine"].items()), ""]
    for who, told in record.get("graphs", {}).items():
        lines.append(f"{who}, compiled: graphs {told['graphs']}, breaks {told['breaks']}")
    for direction in ("forward", "backward"):
        ran = record.get("stats", {}).get(direction, {"aotriton": "unknown", "torch": "unknown"})
        lines.append(f"{DOOR}, {direction}: {ran['aotriton']} calls, on torch's own kernel {ran['torch'] or 'none'}")
    lines += ["", "tokens/s, and losses: how far they are from the first one's in the mean, by seed, and at the end:"]
    for run, modes in record["train"].items():
        for mode, found in modes.items():
            first = next(iter(found.values()))
            lines += ["", f"| {run}, {mode} | tokens/s | × the first | apart | at the end |", "|---" * 5 + "|"]
            for who, one in found.items():
                times = one["tokens_per_s"] / first["tokens_per_s"]
                distances = numbers(apart(one["losses"], first["losses"]))
                cells = who, f"{one['tokens_per_s']:,}", f"{times:.3f}", distances, f"{at_the_end(one['losses']):.3f}"
                lines.append(f"| {' | '.join(cells)} |")
            if between := between_seeds(first["losses"]):
                lines += ["", f"Seeds of the first one: {numbers(between)} apart"]
            if "gradients_apart" in first:
                distances = ", ".join(f"{who} {one['gradients_apart']}" for who, one in found.items())
                lines += ["", f"Gradients of the first step, relative distance from the first one's: {distances}"]
    return "\n".join(lines)


def main() -> None:
    parser = pytorch.arguments(__doc__)
    parser.add_argument("--mode", choices=MODES, action="append", help="leave out the other one")
    parser.add_argument("--run", choices=RUNS, action="append", help="leave out the other one")
    parser.add_argument("--seeds", type=int, default=2, help="with dropout, compiled; else one (default %(default)s)")
    parser.add_argument("--steps", type=int, help=f"(default {GPT.steps}; at most {EAGER_STEPS} in eager mode)")
    parser.add_argument("--tokens", type=int, help=f"of a step (default {GPT.seqlen})")
    options = parser.parse_args()
    if options.given:
        print(table(stored.load(options.given)))
        return
    device = pytorch.device_of(options.toy)
    if options.toy:
        torch.set_num_threads(1)  # for such sizes more would only wait for each other
    sizes = TOY if options.toy else GPT
    sizes = replace(sizes, steps=options.steps or sizes.steps, seqlen=options.tokens or sizes.seqlen)
    record: dict[str, Any] = {"machine": pytorch.machine(device), "sizes": asdict(sizes), "train": {}}

    def keep() -> None:
        """Each time: a run cut short leaves what it has."""
        options.json.write_text(json.dumps(record, indent=1) + "\n")

    record["graphs"] = graphs(sizes, device, DROPOUT)
    for run in options.run or RUNS:
        record["train"][run] = {}
        for mode in options.mode or MODES:
            torch._dynamo.reset()
            many = options.seeds if run == "dropout" and mode == "compiled" else 1
            of_mode = replace(sizes, steps=min(sizes.steps, EAGER_STEPS)) if mode == "eager" else sizes
            record["train"][run][mode] = train(mode, RUNS[run], of_mode, device, many)
            keep()
    record["stats"] = aotriton.torch.stats()
    keep()
    print(table(record))


if __name__ == "__main__":
    main()
