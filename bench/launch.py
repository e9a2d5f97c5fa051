"""Host time of warm and prepared calls beside bare launches: bench-launch in several processes, and their medians.

python bench/launch.py --program build/default/bench-launch --json bench/results/launch.json

A process places code and memory by chance, by which its times differ by some percent from another one's.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

PROCESSES, BATCHES = 9, 101
MEDIANS = ("library_us", "prepared_us", "bare_us", "library", "prepared")  # of a case; the last two are × bare


def together(records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """One record of those of several processes: medians, and of each ratio its least and its largest."""
    cases = []
    for ones in zip(*(record["cases"] for record in records), strict=True):
        case = dict(ones[0]) | {name: round(median(one[name] for one in ones), 4) for name in MEDIANS}
        for name in ("library", "prepared"):
            case[f"{name}_range"] = [min(one[name] for one in ones), max(one[name] for one in ones)]
        cases.append(case)
    return dict(records[0]) | {"processes": len(records), "cases": cases}


def table(record: Mapping[str, Any]) -> str:
    lines = [
        f"{record['gpu']}, {record['processes']} processes",
        f"{'call':<28}{'call × bare':>24}{'prepared × bare':>24}",
    ]
    for case in record["cases"]:
        cells = [f"{case[name]:.3f} ({case[f'{name}_range'][0]:.3f} to {case[f'{name}_range'][1]:.3f})"
                 for name in ("library", "prepared")]  # fmt: skip
        lines.append(f"{case['call']:<28}{cells[0]:>24}{cells[1]:>24}")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", type=Path, required=True, help="bench-launch of a build")
    parser.add_argument("--json", type=Path, help="the result goes to this file")
    options = parser.parse_args()
    records = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "one.json"
        for _ in range(PROCESSES):
            subprocess.run(
                [options.program, "--batches", str(BATCHES), "--json", path], check=True, stdout=subprocess.DEVNULL
            )
            records.append(json.loads(path.read_text()))
    record = together(records)
    print(table(record))
    if options.json:
        options.json.write_text(json.dumps(record, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
