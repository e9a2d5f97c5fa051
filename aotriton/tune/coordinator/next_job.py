"""What a GPU does next: its problem, the candidates of its job, or the reason why there is none. Nothing is changed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set

from aotriton.tune.coordinator.state import Gpu, Search
from aotriton.tune.coordinator.usage import Why

AHEAD = 4  # jobs that a GPU has: one runs while the others wait, for as long as the coordinator is busy
JOBS_A_SECOND = 200.0  # most jobs for the scheduler; Dask's needs under 1 ms for each


def next_search(gpu: Gpu, ready: Sequence[Search], tensors: Mapping[object, Set[str]], batch: int) -> Search | None:
    """The problem of the GPU's next job; None where it is to have no further job now.

    In this order: its own problem; one that is compiled and that no other GPU works on; one that is still being
    compiled; one that it takes over in part from other GPUs. The last two only if the GPU has no job at all.

    ``ready``: the open problems that have candidates to be measured, in their order. ``tensors``: by problems' tensors
    the addresses of the GPUs that made them. ``batch``: candidates of a job.
    """
    own = gpu.search if gpu.search and not gpu.search.closed else None
    if own and own.ready:
        return own
    if own and gpu.in_flight and own.exhausted and not own.finishing:
        return None  # its race is due when the GPU has ended its jobs
    free = [search for search in ready if search.gpus <= {gpu.address}]
    compiled = [search for search in free if not search.compiling]
    for searches in (compiled, free if not gpu.in_flight else []):
        if searches:
            return min(searches, key=lambda search: _tensor_cost(gpu, tensors.get(search.tensors)))
    shared = [search for search in ready if len(search.ready) > AHEAD * batch]
    if gpu.in_flight or not shared:
        return None
    return max(shared, key=lambda search: len(search.ready))


def _tensor_cost(gpu: Gpu, makers: Set[str] | None) -> int:
    """0: the GPU has made the tensors, which kernels of one shape share; 1: no GPU has; 2: other GPUs have."""
    return 1 if not makers else 0 if gpu.address in makers else 2


def batch_size(gpus: int, trial_seconds: float) -> int:
    """How many candidates a job has, so that all GPUs together end at most JOBS_A_SECOND."""
    return max(1, round(gpus / trial_seconds / JOBS_A_SECOND))


def batch_of(search: Search, likely: str | None, size: int) -> list[str]:
    """The images of the problem's next job; the one with the ``likely`` config comes first."""
    return sorted(search.ready, key=lambda name: search.ready[name].config != likely)[:size]


def is_last_job(gpu: Gpu, search: Search, size: int) -> bool:
    """Whether the GPU measures the problem's last candidates by the next ``size`` of them, and has measured all others,
    too: then it can race the leaders in the same job.
    """
    own = sum(len(job.requests) for other, job in gpu.in_flight.values() if other is search)
    elsewhere = search.known or search.visits > 1 or len(search.measuring) > own
    return search.exhausted and len(search.ready) == size and not (search.compiling or elsewhere)


def why_idle(searches: Iterable[Search], waiting: bool) -> Why:
    """What a GPU without a job waits for; ``waiting``: whether there are problems that are not begun."""
    searches = list(searches)
    if any(search.compiling for search in searches):
        return Why.IMAGES
    if any(search.step for search in searches):
        return Why.STRATEGIES
    if waiting:
        return Why.BEGIN
    return Why.GPUS if any(search.measuring and not search.exhausted for search in searches) else Why.END
