"""Results as files: JSON, and compressed where that is long: ``h100-launch.json``, ``h100-bf16.json.xz``."""

from __future__ import annotations

import json
import lzma
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

MOST_PLAIN = 3_000  # characters: what is longer with spaces has none, and what is longer without them is compressed
# Settings of matplotlib, with which a plot is small, and the same whenever it is drawn from the same result.
LONG = re.compile(r"-?\d+\.\d{3,}(?=[\s\",)])")  # a coordinate of a plot
POINTS = re.compile(r"M [-\d.]+ [-\d.]+(?: ?\nL [-\d.]+ [-\d.]+)+")  # of a line: behind M, a point alone means L
GROUP = re.compile(r"<g>\n((?:(?!<g\b|</g>).)*)</g>\n?", re.DOTALL)  # of no attribute, and without another group in it
RECTANGLE = re.compile(r"M (\S+) (\S+) (\S+) \2 \3 (\S+) \1 \4 z")
FONT = "font-family: 'DejaVu Sans', sans-serif"  # of each text of a plot
PLOT = {"svg.hashsalt": "aotriton", "svg.fonttype": "none", "font.sans-serif": ["DejaVu Sans"]}


# Bytes of a text are not aligned: so files are 3 % smaller than by default.
XZ = [{"id": lzma.FILTER_LZMA2, "preset": 9 | lzma.PRESET_EXTREME, "pb": 0}]


def compressed(text: str) -> bytes:
    """The text as a file .xz."""
    return lzma.compress(text.encode(), filters=XZ)


def place(path: Path) -> Path:
    """Where a result of this name is: the path itself, which ends in .json, or the compressed file beside it."""
    packed = path.with_name(f"{path.name}.xz")
    return packed if packed.exists() else path


def load(path: Path) -> Any:
    """A result, from the path or from the compressed file beside it. OSError where there is neither, ValueError where
    it is no JSON.
    """
    found = place(path)
    if found.suffix != ".xz":
        return json.loads(found.read_text())
    try:
        return json.loads(lzma.decompress(found.read_bytes()))
    except lzma.LZMAError as error:
        raise ValueError(f"{found}: {error}") from error


def store(path: Path, record: Mapping[str, Any]) -> None:
    """Writes a result to the path, or compressed to the file beside it, and removes what the other one has."""
    text = json.dumps(record, indent=1)
    if len(text) > MOST_PLAIN:
        text = json.dumps(record, separators=(",", ":"))
    packed = path.with_name(f"{path.name}.xz")
    if len(text) > MOST_PLAIN:
        packed.write_bytes(compressed(f"{text}\n"))
        path.unlink(missing_ok=True)
    else:
        path.write_text(f"{text}\n")
        packed.unlink(missing_ok=True)


def save_plot(figure: Any, path: Path, **options: Any) -> None:
    """Saves a figure of matplotlib, as SVG in a third of its size."""
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None, **options)
    if path.suffix == ".svg":
        path.write_text(smaller(path.read_text(encoding="utf-8")), encoding="utf-8")


def smaller(svg: str) -> str:
    """A plot with coordinates to a tenth of a point, without indents, groups that have but a name, its DOCTYPE and what
    drew it, with its font named once, lines that need no letter between their points, and rectangles by their corners.
    """
    svg = LONG.sub(lambda found: f"{float(found[0]):.1f}", svg)
    svg = svg.replace(f"; {FONT}", "").replace("</style>", f" text{{{FONT}}}</style>")
    svg = re.sub(r"<metadata>.*?</metadata>\s*", "", svg, flags=re.DOTALL)
    svg = re.sub(r'<g id="[^"]*"', "<g", re.sub(r"\n\s+", "\n", svg))
    svg, left = GROUP.subn(r"\1", svg)
    while left:
        svg, left = GROUP.subn(r"\1", svg)
    svg = re.sub(r'(<text [^>]*)transform="translate\((\S+) (\S+)\)"', r'\1x="\2" y="\3"', svg)
    svg = re.sub(r" ?\nz\n?", " z", re.sub(r"<!DOCTYPE[^>]*>\s*", "", svg))
    svg = POINTS.sub(lambda found: re.sub(r" ?\nL ", " ", found[0]), svg)
    return re.sub(r'style="([\w-]+): ([^";]*)"', r'\1="\2"', RECTANGLE.sub(r"M \1 \2 H \3 V \4 H \1 z", svg))
