"""README's figures: a table with a row for each comparison, and what stands in its sentences."""

from __future__ import annotations

from statistics import mean

from figures.comparison import COMPARISONS, Comparison, compared
from figures.results import Results, gpu_of


def table(results: Results) -> str:
    """The worst first. What is behind is bold."""
    lines = [
        "| calls | beside | times as fast | at worst | GPU | state |",
        "|---|---|---|---|---|---|",
    ]
    for one, name in sorted(rows(results), key=lambda row: min(row[0].means)):
        what = f"{one.what}, {' / '.join(one.times)}".removesuffix(", ")
        means = " / ".join(f"**{each:.2f}**" if round(each, 2) < 1 else f"{each:.2f}" for each in one.means)
        worst = " / ".join(f"{min(times):.2f}" for times in one.times.values())
        beside = ", ".join(one.peers).replace("FlashAttention-", "FA")
        state = "older" if results.is_older(name) else "this"
        lines.append(f"| {what} | {beside} | {means} | {worst} | {gpu_of(name)} | {state} |")
    return "\n".join(lines)


def rows(results: Results) -> list[tuple[Comparison, str]]:
    """Each comparison with its result: the newest, and another GPU's where it has a peer that the newest lacks."""
    found: list[tuple[Comparison, str]] = []
    for figure in filter(results.has, COMPARISONS):
        seen: dict[str, set[str]] = {}
        for name in results.ranked(figure):
            known = dict(seen)
            for one in compared(figure, results(name)):
                if set(one.peers) - known.get(one.what, set()):
                    found.append((one, name))
                seen[one.what] = seen.get(one.what, set()) | set(one.peers)
    return found


def choice(results: Results) -> str:
    """Regret in a sentence."""
    name = results.newest("regret")
    cells = results(name)["cells"]
    longer = {
        operator: [cell["chosen_us"] / cell["best_us"] - 1 for cell in cells if cell["operator"] == operator]
        for operator in ("attn_fwd", "attn_bwd")
    }
    forward, backward = (f"{100 * mean(one):.1f} %" for one in longer.values())
    older = ", **of an older state**" if results.is_older(name) else ""
    return (
        f"On {len(cells)} random shapes that no tuning has seen, attention takes {forward} (forward) and {backward} "
        "(backward) longer with the chosen images than with the best that ship, in the mean; at worst "
        f"{100 * max(map(max, longer.values())):.0f} % ({gpu_of(name)}{older})."
    )


def build_size(results: Results) -> str:
    size = results("build-size")
    return f"{size['images']} images, which make a `libaotriton_v2.a` of {size['archive_bytes'] / 1e6:.1f} MB"


def warm_call(results: Results) -> str:
    more = [round(100 * (case["library"] - 1)) for case in results(results.newest("launch"))["cases"]]
    return f"{min(more)} to {max(more)} %"
