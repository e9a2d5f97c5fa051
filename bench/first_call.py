"""What the first call of a process takes: the library reads its tables, loads an image and launches it.

python bench/first_call.py --json bench/results/h100-first-call.json

Each call is the first of a process of its own, in which torch has made the CUDA context and the tensors before. The
times are of the host, from before the call to the end of a synchronisation; those of a second call are beside them.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path
from time import perf_counter
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

from attention import gpu_state, machine

PROCESSES = 7
CALLS = ("prompt", "step from pages", "backward")


def made(call: str) -> tuple[str, dict[str, Any]]:
    """The operator of a call, and its tensors."""
    import torch

    heads, heads_k, head_dim = 32, 8, 128

    def tensor(*sizes: int) -> Any:
        return torch.randn(sizes, device="cuda").bfloat16()

    if call == "step from pages":
        pools = {name: tensor(1024, heads_k, 16, head_dim) for name in "kv"}
        given = {name: tensor(8, heads, 1, head_dim) for name in ("q", "out")} | pools
        given["block_table"] = torch.randperm(1024, device="cuda").int().view(8, 128)
        return "attn_fwd", given | {"seqused_k": torch.full((8,), 2000, dtype=torch.int32, device="cuda")}
    given = {name: tensor(1, heads, 2048, head_dim) for name in ("q", "out")}
    given |= {name: tensor(1, heads_k, 2048, head_dim) for name in "kv"}
    if call == "prompt":
        return "attn_fwd", given | {"causal": True}
    given |= {f"d{name}": torch.empty_like(given[name]) for name in "qkv"}
    given |= {"dout": tensor(1, heads, 2048, head_dim), "logsumexp": torch.zeros(1, heads, 2048, device="cuda")}
    return "attn_bwd", given | {"causal": True}


def child(call: str) -> None:
    """Prints the milliseconds of the first call of this process, and of the second."""
    import torch

    import aotriton

    op, given = made(call)
    launch, size_of = getattr(aotriton, op), getattr(aotriton, f"{op}_workspace_size")
    torch.cuda.synchronize()
    times = []
    for _ in range(2):
        begun = perf_counter()
        size = size_of(**given)
        workspace = {"workspace": torch.empty(size, dtype=torch.uint8, device="cuda")} if size else {}
        launch(**given, **workspace)
        torch.cuda.synchronize()
        times.append(1e3 * (perf_counter() - begun))
    print(json.dumps(times))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="where the result goes")
    parser.add_argument("--child", choices=CALLS, help="make this call, in this process")
    options = parser.parse_args()
    if options.child:
        child(options.child)
        return
    rows = []
    for call in CALLS:
        command = [sys.executable, __file__, "--child", call]
        taken = [json.loads(subprocess.check_output(command)) for _ in range(PROCESSES)]
        first, second = ([one[i] for one in taken] for i in (0, 1))
        rows.append({"call": call, "first_ms": sorted(first), "second_ms": statistics.median(second)})
        print(f"{call}: {statistics.median(first):.1f} ms, at most {max(first):.1f}; then {rows[-1]['second_ms']:.2f}")
    if options.json:
        record = {"machine": machine(), "processes": PROCESSES, "rows": rows, "gpu": gpu_state()}
        options.json.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
