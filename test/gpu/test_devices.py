"""Tensors and streams of several GPUs: a call runs where its tensors are, whichever GPU is current."""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="torch is not installed")
aotriton = pytest.importorskip("aotriton._binding", reason="the binding is not on PYTHONPATH: build it first")

import torch  # noqa: E402 - where it is installed

TWO = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="this machine has no second CUDA GPU")
SHAPE = (2, 4, 300, 64)
Tensors = dict[str, torch.Tensor]


def inputs(device: str) -> Tensors:
    """The same numbers on every GPU, and results that hold NaN."""
    generator = torch.Generator().manual_seed(0)
    made = {name: torch.randn(SHAPE, generator=generator).bfloat16().to(device) for name in ("q", "k", "v", "dout")}
    made |= {name: torch.full_like(made["q"], float("nan")) for name in ("out", "dq", "dk", "dv")}
    made["logsumexp"] = torch.full(SHAPE[:3], float("nan"), device=device)
    return made


def launch(tensors: Tensors) -> Tensors:
    """Forward and backward without a stream; what they wrote, on the host."""
    options = {"causal": True, "deterministic": True}
    forward = {name: tensors[name] for name in ("q", "k", "v", "out", "logsumexp")}
    aotriton.attn_fwd(**forward, causal=True)
    size = aotriton.attn_bwd_workspace_size(**tensors, **options)
    workspace = torch.empty(size, dtype=torch.uint8, device=tensors["q"].device)
    aotriton.attn_bwd(**tensors, workspace=workspace, **options)
    return {name: tensors[name].cpu() for name in ("out", "logsumexp", "dq", "dk", "dv")}


@TWO
def test_tensors_of_another_gpu_on_its_default_stream() -> None:
    """With cuda:0 current, a call on tensors of cuda:1 gives what it gives on cuda:0; cuda:0 is current afterwards."""
    if torch.cuda.get_device_name(0) != torch.cuda.get_device_name(1):
        pytest.skip("the two GPUs are not of one kind, so that their bits may differ")
    torch.cuda.set_device(0)
    wanted = launch(inputs("cuda:0"))
    for _ in range(2):  # images are loaded, and are there
        got = launch(inputs("cuda:1"))
        for name, tensor in wanted.items():
            assert not tensor.isnan().any(), name
            assert torch.equal(tensor, got[name]), name
        assert torch.cuda.current_device() == 0
        assert aotriton.multiprocessors() == torch.cuda.get_device_properties(0).multi_processor_count
        assert torch.ones(1, device="cuda").device.index == 0


@TWO
def test_tensors_of_another_gpu_on_a_stream_of_theirs() -> None:
    """With cuda:0 current, a call on a side stream of cuda:1 runs there, after that stream's earlier work."""
    torch.cuda.set_device(0)
    tensors = inputs("cuda:1")
    wanted, held = launch(inputs("cuda:1")), tensors["q"].clone()
    tensors["q"].fill_(float("nan"))
    torch.cuda.synchronize(1)
    with torch.cuda.device(1):
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            torch.cuda._sleep(200_000_000)  # about 0.1 s
            tensors["q"].copy_(held)
    forward = {name: tensors[name] for name in ("q", "k", "v", "out", "logsumexp")}
    aotriton.attn_fwd(**forward, causal=True, stream=stream.cuda_stream)
    stream.synchronize()
    assert torch.cuda.current_device() == 0
    for name in ("out", "logsumexp"):
        assert torch.equal(tensors[name].cpu(), wanted[name]), name


@TWO
def test_a_stream_of_another_gpu_is_refused() -> None:
    """Tensors of one GPU on a side stream of another: ValueError names both, and nothing is written."""
    for here, there in ((0, 1), (1, 0)):
        torch.cuda.set_device(0)
        tensors = inputs(f"cuda:{here}")
        with torch.cuda.device(there):
            stream = torch.cuda.Stream()
        forward = {name: tensors[name] for name in ("q", "k", "v", "out", "logsumexp")}
        with pytest.raises(ValueError, match=rf"^the stream is on GPU {there}, \w+ on GPU {here}"):
            aotriton.attn_fwd(**forward, stream=stream.cuda_stream)
        torch.cuda.synchronize(here)
        torch.cuda.synchronize(there)
        assert tensors["out"].isnan().all()
        assert torch.cuda.current_device() == 0


@TWO
def test_tensors_of_two_gpus_are_refused() -> None:
    """One operand elsewhere, or the workspace: ValueError names it and its GPU."""
    torch.cuda.set_device(0)
    tensors, other = inputs("cuda:0"), inputs("cuda:1")
    for name in ("k", "out", "logsumexp"):
        forward = {one: (other if one == name else tensors)[one] for one in ("q", "k", "v", "out", "logsumexp")}
        with pytest.raises(ValueError, match=rf"^{name} is on GPU 1, \w+ on GPU 0"):
            aotriton.attn_fwd(**forward)
    with pytest.raises(ValueError, match=r"^workspace is on GPU 1, \w+ on GPU 0"):
        aotriton.attn_bwd(**tensors, workspace=torch.empty(1 << 20, dtype=torch.uint8, device="cuda:1"))


def test_the_current_gpu_stays_current() -> None:
    """With one GPU, too: a call without a stream changes nothing about which device torch uses."""
    before = torch.cuda.current_device()
    results = launch(inputs(f"cuda:{before}"))
    assert torch.cuda.current_device() == before
    assert not any(tensor.isnan().any() for tensor in results.values())
