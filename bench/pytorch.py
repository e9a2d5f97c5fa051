"""What a call costs the host in PyTorch, training a GPT and prefill of a Llama, each beside torch's own attention.

python bench/pytorch.py --json bench/results/pytorch.json
python bench/pytorch.py --json toy.json --toy             # the same on a CPU, at sizes that say nothing
python bench/pytorch.py --from bench/results/pytorch.json
"""

from __future__ import annotations

import argparse
import datetime
import gc
import importlib.util
import json
import platform
import statistics
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import stored
import torch
from losses import apart
from torch.nn.attention import SDPBackend, activate_flash_attention_impl, restore_flash_attention_impl, sdpa_kernel
from torch.nn.functional import cross_entropy, scaled_dot_product_attention

import aotriton.torch

FA2, CUDNN, DOOR, OPERATOR, TORCH = "FA2", "cuDNN", "aotriton in SDPA", "aotriton's operator", "torch"
MODES = {"eager": lambda model: model, "compiled": torch.compile}
Selects = dict[str, Callable[[], AbstractContextManager[object]]]


@dataclass(frozen=True)
class Sizes:
    batch: int
    heads: int
    heads_k: int
    seqlen: int
    head_dim: int
    layers: int
    vocabulary: int
    steps: int

    @property
    def width(self) -> int:
        return self.heads * self.head_dim


GPT = Sizes(batch=8, heads=12, heads_k=12, seqlen=1024, head_dim=64, layers=12, vocabulary=50304, steps=200)
LLAMA = Sizes(batch=1, heads=32, heads_k=8, seqlen=4096, head_dim=128, layers=8, vocabulary=32000, steps=20)
CALL = Sizes(batch=1, heads=16, heads_k=16, seqlen=512, head_dim=128, layers=1, vocabulary=0, steps=1001)
TOY = Sizes(batch=2, heads=2, heads_k=1, seqlen=16, head_dim=8, layers=2, vocabulary=64, steps=12)


@contextmanager
def door() -> Iterator[None]:
    activate_flash_attention_impl("aotriton")
    try:
        yield
    finally:
        restore_flash_attention_impl()


def contenders(device: str) -> Selects:
    """What selects each of them while it is entered. The operator is called by its name, so nothing selects it."""
    if device == "cpu":
        return {TORCH: nullcontext, OPERATOR: nullcontext}

    @contextmanager
    def through_door() -> Iterator[None]:
        with door(), sdpa_kernel(SDPBackend.FLASH_ATTENTION):
            yield

    return {
        FA2: partial(sdpa_kernel, SDPBackend.FLASH_ATTENTION),
        CUDNN: partial(sdpa_kernel, SDPBackend.CUDNN_ATTENTION),
        DOOR: through_door,
        OPERATOR: nullcontext,
    }


def causal_attention(who: str, q: Any, k: Any, v: Any) -> Any:
    if who == OPERATOR:
        return aotriton.torch.attention(q, k, v, causal=True)
    return scaled_dot_product_attention(q, k, v, is_causal=True)


def wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


# ---- host time of a call ---------------------------------------------------------------------------------------------


def host_times(sizes: Sizes, device: str) -> dict[str, dict[str, list[float]]]:
    """{mode: {contender: quartiles}}: microseconds until one warm call returns, with nothing before it on the GPU."""
    shape = (sizes.batch, sizes.heads, sizes.seqlen, sizes.head_dim)
    tensors = [torch.randn(shape, device=device, dtype=torch.bfloat16) for _ in range(3)]
    modes = {
        "inference_mode": (torch.inference_mode, False),
        "no_grad": (torch.no_grad, False),
        "no gradient asked for": (nullcontext, False),
        "gradient recorded": (nullcontext, True),
    }
    found: dict[str, dict[str, list[float]]] = {}
    for mode, (entered, recorded) in modes.items():
        q, k, v = (tensor.clone().requires_grad_(recorded) for tensor in tensors)
        operator = torch.ops.aotriton.attn_fwd
        calls = {
            who: partial(operator, q, k, v, causal=True) if who == OPERATOR else partial(causal_attention, who, q, k, v)
            for who in contenders(device)
        }
        taken: dict[str, list[float]] = {who: [] for who in calls}
        with entered():
            for turn in range(sizes.steps + 20):
                for who, select in contenders(device).items():
                    with select():
                        calls[who]()  # the first call after a change of kernels is not warm
                        wait(device)
                        start = perf_counter()
                        result = calls[who]()
                        end = perf_counter()
                        wait(device)
                    del result
                    if turn >= 20:
                        taken[who].append((end - start) * 1e6)
        found[mode] = {who: [round(us, 2) for us in statistics.quantiles(all_, n=4)] for who, all_ in taken.items()}
    return found


# ---- training --------------------------------------------------------------------------------------------------------


class Block(torch.nn.Module):
    def __init__(self, sizes: Sizes, who: str) -> None:
        super().__init__()
        width = sizes.width
        self.heads, self.who = sizes.heads, who  # which is a constant to a compiler, so each has code of its own
        self.before, self.between = torch.nn.LayerNorm(width), torch.nn.LayerNorm(width)
        self.qkv, self.out = torch.nn.Linear(width, 3 * width), torch.nn.Linear(width, width)
        self.up, self.down = torch.nn.Linear(width, 4 * width), torch.nn.Linear(4 * width, width)

    def forward(self, x: Any, packed: Any) -> Any:
        batch, rows, width = x.shape
        q, k, v = self.qkv(self.before(x)).view(batch, rows, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        x = x + self.out(self.attend(q, k, v, packed).transpose(1, 2).reshape(batch, rows, width))
        return x + self.down(torch.nn.functional.gelu(self.up(self.between(x))))

    def attend(self, q: Any, k: Any, v: Any, _: Any) -> Any:
        return causal_attention(self.who, q, k, v)


class Gpt(torch.nn.Module):
    def __init__(self, sizes: Sizes, block: Callable[[int], Block]) -> None:
        """``block`` makes that of a layer."""
        super().__init__()
        self.tokens = torch.nn.Embedding(sizes.vocabulary, sizes.width)
        self.places = torch.nn.Embedding(sizes.seqlen, sizes.width)
        self.blocks = torch.nn.Sequential(*map(block, range(sizes.layers)))
        self.norm = torch.nn.LayerNorm(sizes.width)
        torch.nn.init.normal_(self.tokens.weight, std=0.02)
        torch.nn.init.normal_(self.places.weight, std=0.02)

    def forward(self, tokens: Any, places: Any = None, packed: Any = None) -> Any:
        """``places``: of each token, where they are not 0, 1, 2, ...; ``packed``: what tells blocks of documents."""
        x = self.tokens(tokens) + (self.places.weight if places is None else self.places(places))
        for block in self.blocks:
            x = block(x, packed)
        return self.norm(x) @ self.tokens.weight.T


def gpt(sizes: Sizes, who: str) -> Gpt:
    return Gpt(sizes, lambda _: Block(sizes, who))


def batches(sizes: Sizes, device: str, seed: int) -> Any:
    """[steps, batch, seqlen + 1] tokens, some much more frequent than others, of which every second follows from the
    one before: the loss falls from the first step on. With even frequencies it falls all at once, at a step that moves
    with every rounding.
    """
    generator = torch.Generator().manual_seed(seed)
    follows = torch.randperm(sizes.vocabulary, generator=generator)
    frequencies = 1 / torch.arange(10, sizes.vocabulary + 10)
    count = sizes.steps * sizes.batch * (sizes.seqlen + 1)
    tokens = torch.multinomial(frequencies, count, replacement=True, generator=generator)
    tokens = tokens.view(sizes.steps, sizes.batch, sizes.seqlen + 1)
    told = torch.rand(tokens.shape, generator=generator) < 0.5
    for i in range(1, sizes.seqlen + 1):
        tokens[..., i] = torch.where(told[..., i], follows[tokens[..., i - 1]], tokens[..., i])
    return tokens.to(device)


class Training:
    """A model that is trained as GPT-2 is: a learning rate that rises for 100 steps, gradients of norm 1 at most."""

    def __init__(self, model: Gpt, mode: Callable[[Any], Any], device: str) -> None:
        self.device = device
        self.model = model.to(device)
        self.run = mode(self.model)
        self.losses: list[list[Any]] = []  # of each seed
        self.seconds: list[float] = []  # of a step, the mean of several

    def begin(self, weights: dict[str, Any], data: Any) -> None:
        """Anew, of these weights; what was compiled stays."""
        self.model.load_state_dict(weights)
        self.data = data
        fused = self.device == "cuda"
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=3e-4, betas=(0.9, 0.95), fused=fused)
        self.rising = torch.optim.lr_scheduler.LinearLR(self.optimizer, 0.01, 1.0, 100)
        self.losses.append([])

    def batch(self, step: int) -> tuple[tuple[Any, ...], Any]:
        """What the model takes, and the tokens that it should tell."""
        tokens = self.data[step]
        return (tokens[:, :-1],), tokens[:, 1:].flatten()

    def backward(self, step: int) -> Any:
        """The loss of a step, whose gradients the parameters have from here on."""
        given, told = self.batch(step)
        with torch.autocast(self.device, dtype=torch.bfloat16):
            logits = self.run(*given)
        loss = cross_entropy(logits.float().flatten(0, 1), told)
        loss.backward()
        return loss

    def steps(self, count: int) -> None:
        wait(self.device)
        start = perf_counter()
        for _ in range(count):
            loss = self.backward(len(self.losses[-1]))
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=True)
            self.rising.step()
            self.losses[-1].append(loss.detach())
        wait(self.device)
        self.seconds.append((perf_counter() - start) / count)


def train(mode: str, sizes: Sizes, device: str, seeds: int) -> dict[str, dict[str, Any]]:
    """What `measured` says of each contender."""
    trainings = {who: Training(gpt(sizes, who), MODES[mode], device) for who in contenders(device)}
    for seed in range(seeds):
        torch.manual_seed(seed)
        weights, data = gpt(sizes, TORCH).state_dict(), batches(sizes, device, seed)
        for one in trainings.values():
            one.begin(weights, data)
        take_turns(trainings, contenders(device), sizes.steps)
    return measured(trainings, sizes)


def take_turns(trainings: Mapping[str, Training], selects: Selects, steps: int) -> None:
    turn = min(10, steps // 4)
    for _ in range(steps // turn):
        for who, training in trainings.items():
            with selects[who]():
                training.steps(turn)


def measured(trainings: Mapping[str, Training], sizes: Sizes) -> dict[str, dict[str, Any]]:
    """Of each contender, losses of each seed's steps, and tokens/s: the median over the second half of its turns."""
    return {
        who: {
            "parameters": sum(parameter.numel() for parameter in one.model.parameters()),
            "tokens_per_s": round(sizes.batch * sizes.seqlen / statistics.median(one.seconds[len(one.seconds) // 2 :])),
            "losses": [[round(loss.item(), 5) for loss in of_seed] for of_seed in one.losses],
        }
        for who, one in trainings.items()
    }


# ---- prefill ---------------------------------------------------------------------------------------------------------


def llama(sizes: Sizes, device: str) -> Any:
    """A Llama of transformers with random weights."""
    import transformers

    path = Path(__file__).resolve().parent.parent / "examples" / "transformers" / "attention.py"
    spec = importlib.util.spec_from_file_location("attention_example", path)
    assert spec
    assert spec.loader
    sys.modules[spec.name] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)  # registers "aotriton"
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=sizes.vocabulary,
        hidden_size=sizes.width,
        intermediate_size=sizes.width * 7 // 2,
        num_hidden_layers=sizes.layers,
        num_attention_heads=sizes.heads,
        num_key_value_heads=sizes.heads_k,
        head_dim=sizes.head_dim,
        max_position_embeddings=sizes.seqlen,
    )
    return transformers.LlamaForCausalLM(config).to(device, torch.bfloat16).eval()


def register(who: str) -> str:
    """The name under which transformers knows a contender: torch's attention by as many names, each compiled alone."""
    from transformers import AttentionInterface, AttentionMaskInterface

    if who == OPERATOR:
        return "aotriton"

    def attention(module: Any, q: Any, k: Any, v: Any, mask: Any, **others: Any) -> tuple[Any, None]:
        out = scaled_dot_product_attention(q, k, v, is_causal=True, scale=others["scaling"], enable_gqa=True)
        return out.transpose(1, 2), None

    name = f"bench {who}"
    AttentionInterface.register(name, attention)
    AttentionMaskInterface.register(name, sys.modules["attention_example"].mask)
    return name


def prefill(model: Any, mode: str, sizes: Sizes, device: str) -> dict[str, dict[str, Any]]:
    """Of each contender, tokens/s of prompts, the median over calls in turn, and logits of the last token."""
    names = {who: register(who) for who in contenders(device)}

    def call(who: str, tokens: Any) -> Any:
        assert who in names  # a constant to a compiler, so that each contender has code of its own
        return model(tokens, logits_to_keep=1).logits  # without a cache, transformers masks what it is compiled for

    run = MODES[mode](call)
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(sizes.vocabulary, (sizes.batch, sizes.seqlen), generator=generator).to(device)
    seconds: dict[str, list[float]] = {who: [] for who in names}
    logits = {}
    with torch.inference_mode():
        for turn in range(sizes.steps + 3):
            for who, select in contenders(device).items():
                model.set_attn_implementation(names[who])
                with select():
                    run(who, tokens)  # after a change the first one is not warm
                    wait(device)
                    start = perf_counter()
                    logits[who] = run(who, tokens)
                    wait(device)
                if turn >= 3:
                    seconds[who].append(perf_counter() - start)
    return {
        who: {
            "tokens_per_s": round(sizes.batch * sizes.seqlen / statistics.median(seconds[who])),
            "logits": [logits[who].float().flatten().tolist()[:64]],
        }
        for who in names
    }


# ---- record and tables -----------------------------------------------------------------------------------------------


def spreads(ones: list[list[float]], others: list[list[float]]) -> str:
    """Of the lists of each seed, from the smallest to the largest."""
    found = apart(ones, others)
    return " to ".join(f"{one:.2g}" for one in sorted({min(found), max(found)}))


def table(record: dict[str, Any]) -> str:
    lines = [", ".join(f"{key} {value}" for key, value in record["machine"].items())]
    if "host" in record:
        who_all = list(next(iter(record["host"].values())))
        lines += ["", "Host, µs until a call returns, median (quartiles):", ""]
        lines += ["| | " + " | ".join(who_all) + " |", "|---" * (len(who_all) + 1) + "|"]
        for mode, cells in record["host"].items():
            texts = [f"{middle:.1f} ({low:.1f} to {high:.1f})" for low, middle, high in cells.values()]
            lines.append(f"| {mode} | " + " | ".join(texts) + " |")
    for part, numbers in (("train", "losses"), ("prefill", "logits")):
        if part not in record:
            continue
        lines += ["", f"{part}, tokens/s, and how far its {numbers} are from the first one's in the mean:", ""]
        modes = list(record[part])
        lines += ["| | " + " | ".join(modes) + " |", "|---" * (len(modes) + 1) + "|"]
        for who in record[part][modes[0]]:
            cells = []
            for mode in modes:
                row, first = record[part][mode][who], next(iter(record[part][mode].values()))
                cells.append(f"{row['tokens_per_s']:,} ({spreads(row[numbers], first[numbers])})")
            lines.append(f"| {who} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def machine(device: str) -> dict[str, str]:
    if device == "cuda":
        sys.path.insert(0, str(Path(__file__).resolve().parent))
        from attention import machine as of_gpu
        from latency import cpu

        return of_gpu() | {"cpu": cpu()}
    now = datetime.datetime.now(datetime.timezone.utc)
    return {"cpu": platform.machine(), "torch": torch.__version__, "date": now.isoformat(timespec="seconds")}


def arguments(description: str | None) -> argparse.ArgumentParser:
    """Where a record goes or comes from, and whether sizes are tiny."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--json", type=Path, help="measure, and write the record here")
    source.add_argument("--from", type=Path, dest="given", help="take this record instead of measuring")
    parser.add_argument("--toy", action="store_true", help="tiny sizes on a CPU: does it run?")
    return parser


def device_of(toy: bool) -> str:
    """The device to measure on; ends the program where there is none."""
    if not toy and not torch.cuda.is_available():
        sys.exit(f"bench/{Path(sys.argv[0]).name}: torch finds no CUDA GPU; --toy runs on a CPU")
    return "cpu" if toy else "cuda"


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--only", choices=("host", "train", "prefill"), action="append", help="leave out the others")
    parser.add_argument("--seeds", type=int, default=3, help="of weights and data, that are trained from (default 3)")
    options = parser.parse_args()
    if options.given:
        print(table(stored.load(options.given)))
        return
    device = device_of(options.toy)
    parts = options.only or ["host", "train", "prefill"]
    record: dict[str, Any] = {"machine": machine(device)}

    def keep() -> None:
        """Each time: a run cut short leaves what it has."""
        options.json.write_text(json.dumps(record, indent=1) + "\n")

    if "host" in parts:
        gc.disable()
        record["host"] = host_times(TOY if options.toy else CALL, device)
        gc.enable()
        keep()
    if "train" in parts:
        record["train"] = {}
        for mode in MODES:
            torch._dynamo.reset()
            record["train"][mode] = train(mode, TOY if options.toy else GPT, device, options.seeds)
            keep()
    if "prefill" in parts:
        sizes = TOY if options.toy else LLAMA
        model = llama(sizes, device)
        record["prefill"] = {}
        for mode in MODES:
            torch._dynamo.reset()
            record["prefill"][mode] = prefill(model, mode, sizes, device)
            keep()
    record["stats"] = aotriton.torch.stats()
    keep()
    print(table(record))


if __name__ == "__main__":
    main()
