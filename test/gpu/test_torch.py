"""torch.ops.aotriton, and the backend "aotriton" of torch's own attention, on a GPU."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip(
    "aotriton.torch", reason="libaotriton_torch.so is not built: the preset torch does", exc_type=ImportError
)

import torch
from example_module import example
from torch.nn.attention import (
    SDPBackend,
    activate_flash_attention_impl,
    restore_flash_attention_impl,
    sdpa_kernel,
)
from torch.nn.functional import scaled_dot_product_attention as sdpa

import aotriton
from aotriton.torch import attention, flash, gemm, kv_append, stats

OPS = torch.ops.aotriton
ROOT = Path(__file__).resolve().parents[2]


def tensor(*sizes: int, dtype: Any = torch.bfloat16, seed: int = 0, device: str = "cuda") -> Any:
    return torch.randn(sizes, generator=torch.Generator().manual_seed(seed)).to(device, dtype)


def close(got: Any, expected: Any, roundings: float) -> None:
    """Within so many roundings of the largest element."""
    eps = {torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8}[got.dtype]
    worst = (got.double() - expected.double()).abs().max().item()
    assert worst <= roundings * eps * expected.abs().max().item(), worst


@pytest.fixture
def active() -> Iterator[None]:
    activate_flash_attention_impl("aotriton")
    yield
    restore_flash_attention_impl()


@pytest.fixture
def ran() -> Callable[[], dict[str, tuple[int, int]]]:
    """How many calls ran here and on torch's kernel since the beginning of the test, forward and backward."""

    def now() -> dict[str, tuple[int, int]]:
        return {
            name: (calls["aotriton"], sum(calls["torch"].values()))
            for name, calls in stats().items()
            if name != "hints"
        }

    before = now()
    return lambda: {name: (a - before[name][0], b - before[name][1]) for name, (a, b) in now().items()}


def problem(causal: bool, dtype: Any = torch.bfloat16) -> list[Any]:
    """q, k, v and dout as a model's projections leave them, two query heads to one of keys."""
    return [tensor(2, 200, h, 64, dtype=dtype, seed=i).transpose(1, 2) for i, h in enumerate((4, 2, 2, 4))]


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_attention_is_what_it_is_on_a_cpu(causal: bool, dtype: Any) -> None:
    """out, logsumexp, dq, dk and dv are the CPU's, whose formula is tested by itself, within a few roundings; and lie
    as q, k and v do.
    """
    q, k, v, dout = problem(causal, dtype)
    out, logsumexp = OPS.attn_fwd(q, k, v, causal=causal)
    host = [x.cpu() for x in (q, k, v)]
    out_host, logsumexp_host = OPS.attn_fwd(*host, causal=causal)
    close(out.cpu(), out_host, 4)
    torch.testing.assert_close(logsumexp.cpu(), logsumexp_host, rtol=0, atol=1e-3)
    found = OPS.attn_bwd(q, k, v, out, dout, logsumexp, causal=causal)
    expected = OPS.attn_bwd(*host, out_host, dout.cpu(), logsumexp_host, causal=causal)
    for got, want, of in zip(found, expected, (q, k, v), strict=True):
        close(got.cpu(), want, 8)
        assert got.stride() == of.stride()


@pytest.mark.parametrize("activation", ["none", "relu", "gelu", "silu"])
def test_gemm_is_what_it_is_on_a_cpu(activation: str) -> None:
    """Products of matrices and of batches, with a weight stored as [n, k], and their gradients."""
    for batch in ((), (3,)):
        given = [tensor(*batch, 72, 128), tensor(*batch, 96, 128, seed=1).mT, tensor(96, seed=2)]
        dd = tensor(*batch, 72, 96, seed=3)
        results = []
        for device in ("cuda", "cpu"):
            leaves = [x.to(device).detach().requires_grad_() for x in given]
            out = gemm(*leaves, alpha=0.5, activation=activation)
            results.append([out, *torch.autograd.grad(out, leaves, dd.to(device))])
        for got, expected in zip(*results, strict=True):
            close(got.cpu(), expected, 8)


def test_scale_of_zero_means_even_weights() -> None:
    """A scale of 0 is no word for the usual one: every key counts the same."""
    q, k, v, _ = problem(False)
    close(attention(q, k, v, scale=0.0)[:, :, :1], v.float().mean(2, keepdim=True).repeat_interleave(2, 1), 2)


def test_it_runs_on_torchs_current_stream_and_device() -> None:
    """A call waits for what its stream has before it, and nothing else."""
    q, k, v, _ = problem(True)
    expected = attention(q, k, v, causal=True)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    late = torch.zeros_like(q)
    with torch.cuda.stream(stream):
        torch.cuda._sleep(50_000_000)
        late.copy_(q)
        got = attention(late, k, v, causal=True)
    stream.synchronize()
    assert torch.equal(got, expected)


def test_a_new_thread_computes() -> None:
    """No context is current in a thread before CUDA's runtime is called there; autograd's are such threads."""
    q, k, v, _ = problem(True)
    expected, found = attention(q, k, v, causal=True), []
    thread = threading.Thread(target=lambda: found.append(attention(q, k, v, causal=True)))
    thread.start()
    thread.join()
    assert torch.equal(found[0], expected)


def test_tensors_of_different_devices_are_refused() -> None:
    """The error says which one is elsewhere."""
    q, k, v, _ = problem(False)
    with pytest.raises(RuntimeError, match="attn_fwd: v is on another device than q"):
        attention(q, k, v.cpu())
    given = appending("cuda", False)
    for name in given.keys() - {"k"}:
        with pytest.raises(RuntimeError, match=f"kv_append: {name} is on another device than k"):
            kv_append(**given | {name: given[name].cpu()})


@pytest.mark.parametrize("overload", ["default", "features"])
def test_autograd_is_not_python(overload: str) -> None:
    """A recorded call comes through autograd without a Python function of ours; its gradients are attn_bwd's, and its
    backward, in a thread of autograd's, is told the forward's hints.
    """
    q, k, v, dout = problem(True)
    q.requires_grad_(), v.requires_grad_()
    names, folder = [], str(Path(aotriton.torch.__file__).parent)

    def note(frame: Any, event: str, _: Any) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(folder):
            names.append(frame.f_code.co_name)

    before = stats()["hints"].get("attn_bwd", {}).get("schedule=bfs deterministic=1", 0)
    sys.setprofile(note)
    forward = getattr(OPS.attn_fwd, overload)
    out, logsumexp = forward(q, k, v, causal=True, hints="schedule=bfs deterministic=1")
    out.backward(dout)
    sys.setprofile(None)
    assert not names
    after = stats()["hints"]["attn_bwd"]["schedule=bfs deterministic=1"]
    assert after - before == 1
    assert not logsumexp.requires_grad
    with torch.no_grad():
        expected = OPS.attn_bwd(q, k, v, out, dout, logsumexp, causal=True, hints="schedule=bfs deterministic=1")
    assert torch.equal(q.grad, expected[0])
    assert torch.equal(v.grad, expected[2])


def test_a_gradient_has_no_gradient() -> None:
    """A gradient that is recorded in turn is the same; who asks for its gradient is told that there is none."""
    q, k, v, dout = problem(True)
    q.requires_grad_()
    (expected,) = torch.autograd.grad(attention(q, k, v, causal=True), q, dout)
    (gradient,) = torch.autograd.grad(attention(q, k, v, causal=True), q, dout, create_graph=True)
    close(gradient, expected, 2)
    with pytest.raises(NotImplementedError, match=r"^aotriton's attention has no second derivative"):
        torch.autograd.grad(gradient.float().sum(), q)


def test_errors_name_the_argument() -> None:
    """What the library refuses, it refuses in its own words."""
    q, k, v, _ = problem(False)
    with pytest.raises(RuntimeError, match="attn_fwd: causal_variant is 'right', which must be one of top_left, "):
        attention(q, k, v, causal=True, causal_variant="right")


def test_determinism_follows_torch() -> None:
    """Where torch is told to be deterministic, a backward that is not told anything has a deterministic one's bits,
    every time.
    """
    q, k, v, dout = (tensor(1, 2, 4096, 64, seed=i) for i in range(4))
    out, logsumexp = OPS.attn_fwd(q, k, v)
    expected = OPS.attn_bwd(q, k, v, out, dout, logsumexp, deterministic=True)
    torch.use_deterministic_algorithms(True)
    try:
        for _ in range(3):
            found = OPS.attn_bwd(q, k, v, out, dout, logsumexp)
            assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
    finally:
        torch.use_deterministic_algorithms(False)


def test_hints_reach_the_library() -> None:
    """A region's backend serves the call, or refuses it by name; torch's own attention goes on to torch's kernel."""
    q, k, v, _ = problem(True)
    with aotriton.hints(backend="portable"):
        portable = attention(q, k, v, causal=True)
    close(portable, attention(q, k, v, causal=True), 4)
    with aotriton.hints(backend="none"):
        with pytest.raises(RuntimeError, match=r"attn_fwd: .*none"):
            attention(q, k, v, causal=True)
        activate_flash_attention_impl("aotriton")
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
            out = sdpa(q, k, v, is_causal=True, enable_gqa=True)
        restore_flash_attention_impl()
    close(out, attention(q, k, v, causal=True), 8)
    assert any("none" in why for why in stats()["forward"]["torch"])


def test_opcheck() -> None:
    """torch's own check of an operator finds nothing on a GPU, either."""
    q, k, v, dout = problem(True)
    out, logsumexp = OPS.attn_fwd(q, k, v, causal=True)
    leaves = [x.detach().requires_grad_() for x in (q, k, v)]
    torch.library.opcheck(OPS.attn_fwd.default, tuple(leaves), {"causal": True})
    torch.library.opcheck(
        OPS.attn_bwd.default, (q, k, v, out, dout, logsumexp), {"causal": True, "deterministic": True}
    )
    torch.library.opcheck(OPS.gemm.default, (tensor(16, 64), tensor(64, 32)), {"activation": "silu"})


def trained(call: Callable[..., Any], *leaves: Any) -> list[Any]:
    out = call(*leaves)
    return [out, *torch.autograd.grad(out.float().square().sum(), leaves)]


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_compiled_is_eager(backend: str) -> None:
    """Compiled as one graph, forward and backward give eager's results."""
    torch._dynamo.reset()

    def block(q: Any, k: Any, v: Any) -> Any:
        return attention(q * 2, k, v, causal=True).sin()

    leaves = [x.detach().requires_grad_() for x in problem(True)[:3]]
    compiled = torch.compile(block, fullgraph=True, backend=backend)
    for got, expected in zip(trained(compiled, *leaves), trained(block, *leaves), strict=True):
        close(got, expected, 8)


def test_cuda_graph() -> None:
    """A captured call, once its images are loaded, replays on what its tensors hold by then."""
    q, k, v, _ = problem(True)
    attention(q, k, v, causal=True)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = attention(q, k, v, causal=True)
    q.copy_(tensor(*q.shape, seed=9))
    graph.replay()
    assert torch.equal(out, attention(q, k, v, causal=True))


PACKAGED = """
import sys
import torch
from aotriton.torch import attention

class Module(torch.nn.Module):
    def forward(self, q, k, v):
        return attention(q, k, v, causal=True) * 2

args = tuple(torch.randn(2, 200, h, 64, device="cuda").bfloat16().transpose(1, 2) for h in (4, 2, 2))
path = torch._inductor.aoti_compile_and_package(torch.export.export(Module(), args), package_path=sys.argv[1])
assert torch.equal(torch._inductor.aoti_load_package(path)(*args), Module()(*args))
"""


@pytest.mark.skipif(not shutil.which("g++"), reason="AOTInductor wants g++")
def test_aot_inductor(tmp_path: Path) -> None:
    """A package of AOTInductor computes what the module does; in a process of its own, which a crash ends."""
    command = [sys.executable, "-c", PACKAGED, str(tmp_path / "module.pt2")]
    compiler = os.environ | {"CXX": "g++"}  # docs/troubleshooting.md says which ones crash
    done = subprocess.run(command, capture_output=True, text=True, env=compiler)
    assert done.returncode == 0, done.stderr[-3000:]


# What SDPA may choose from: all, as it is, when it prefers cuDNN on Hopper; or what the user has left.
CHOICES = {
    "as it is": nullcontext,
    "flash": lambda: sdpa_kernel(SDPBackend.FLASH_ATTENTION),
    "cuDNN first": lambda: sdpa_kernel([SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION], set_priority=True),
}


@pytest.mark.parametrize("choice", CHOICES.values(), ids=CHOICES)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.usefixtures("active")
def test_sdpa_runs_here(
    choice: Callable[[], Any], causal: bool, compiled: bool, ran: Callable[[], dict[str, tuple[int, int]]]
) -> None:
    """Once activated, torch's attention runs here, forward and backward, with grouped heads, in eager mode and
    compiled, whichever of its fused backends SDPA chooses; results are those of torch's own formula, within a few
    roundings.
    """
    torch._dynamo.reset()
    leaves = [x.detach().requires_grad_() for x in problem(causal)[:3]]

    def call(q: Any, k: Any, v: Any) -> Any:
        return sdpa(q, k, v, is_causal=causal, enable_gqa=True)

    with sdpa_kernel(SDPBackend.MATH):
        expected = trained(call, *leaves)
    with choice():
        found = trained(torch.compile(call, fullgraph=True) if compiled else call, *leaves)
    for got, want in zip(found, expected, strict=True):
        close(got, want, 16)
    assert ran() == {"forward": (1, 0), "backward": (1, 0)}


@pytest.mark.usefixtures("active")
def test_sdpa_of_an_exported_model_and_of_decoding_runs_here(ran: Callable[[], dict[str, tuple[int, int]]]) -> None:
    """An exported program, and one query on many keys, come here by themselves; who wants cuDNN alone gets it."""

    class Layer(torch.nn.Module):
        def forward(self, q: Any, k: Any, v: Any) -> Any:
            return sdpa(q, k, v, is_causal=True)

    q, k, v = (tensor(2, 4, 200, 64, seed=i) for i in range(3))
    program = torch.export.export(Layer(), (q, k, v))
    assert torch.equal(program.module()(q, k, v), attention(q, k, v, causal=True))
    assert ran()["forward"] == (1, 0)
    one = tensor(2, 4, 1, 64)
    assert torch.equal(sdpa(one, k, v), attention(one, k, v))
    assert ran()["forward"] == (2, 0)
    with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
        close(sdpa(q, k, v, is_causal=True), attention(q, k, v, causal=True), 16)
    assert ran()["forward"] == (2, 1)


@pytest.mark.usefixtures("active")
def test_a_model_of_transformers_runs_here(ran: Callable[[], dict[str, tuple[int, int]]]) -> None:
    """With the attention that transformers uses by itself, each layer of prefill and decoding comes here."""
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    config = transformers.LlamaConfig(
        hidden_size=256, intermediate_size=512, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2,
        vocab_size=100, attn_implementation="sdpa",
    )  # fmt: skip
    model = transformers.LlamaForCausalLM(config).to("cuda", torch.bfloat16).eval()
    tokens = torch.randint(1, 100, (2, 64), device="cuda")  # 0 pads: it would bring a mask along
    with torch.no_grad():
        model(tokens)
        assert ran()["forward"] == (3, 0)
        model.generate(tokens, max_new_tokens=4, do_sample=False, pad_token_id=0)
    here, elsewhere = ran()["forward"]
    assert (here, elsewhere) == (3 + 3 * 4, 0), stats()


def printed_by(program: str) -> str:
    """What it prints in a process of its own, whose counts are its own, too."""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def blocks(page: str, about: str) -> list[str]:
    found = re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)
    return [block for block in found if about in block]


def test_the_readmes_call_of_sdpa_runs_here() -> None:
    """As README says: one forward and one backward came here, and none went elsewhere."""
    (block,) = blocks("README.md", "aotriton.torch")
    counts = ast.literal_eval(printed_by(block).splitlines()[-1])
    here = {"aotriton": 1, "torch": {}}
    assert counts == {"forward": here, "backward": here, "hints": {}}


CALLS = """
from torch.nn.functional import scaled_dot_product_attention as sdpa

before = aotriton.torch.stats()["forward"]["aotriton"]
q, k, v = (torch.randn(2, h, 64, 32, device="cuda").bfloat16().requires_grad_() for h in (16, 4, 4))
def grouped(q, k, v, causal):
    return sdpa(q, k, v, is_causal=causal, enable_gqa=True)

for call in (grouped, torch.compile(grouped)):
    call(q, k, v, True).sum().backward()
    call(q[:, :, :1], k, v, False).sum().backward()
counts = aotriton.torch.stats()
counts["forward"]["aotriton"] -= before
print(counts["forward"], counts["backward"], sep="\\n")
"""


def test_after_the_pages_lines_sdpa_runs_here() -> None:
    """docs/pytorch.md: after all of its blocks, every call of SDPA, with grouped heads, causal and of decoding, eager
    and compiled, comes here and back.
    """
    program = "\n".join(blocks("docs/pytorch.md", ""))
    forward, backward = map(ast.literal_eval, printed_by(program + CALLS).splitlines()[-2:])
    assert forward == {"aotriton": 4, "torch": {}}
    assert backward == {"aotriton": 4, "torch": {}}


def llama_of_the_example(
    monkeypatch: pytest.MonkeyPatch, note: Callable[[Any, Any, Mapping[str, Any]], None]
) -> tuple[Any, Any]:
    """transformers, and a small model with random weights that examples/transformers serves. ``note`` is given q, k and
    the options of each call of `attention`.
    """
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    example("transformers/attention.py")  # registers the implementation
    here = aotriton.torch.attention

    def noted(q: Any, k: Any, v: Any, **how: Any) -> Any:
        note(q, k, how)
        return here(q, k, v, **how)

    monkeypatch.setattr(aotriton.torch, "attention", noted)
    config = transformers.LlamaConfig(
        hidden_size=256, intermediate_size=512, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2,
        vocab_size=100,
    )  # fmt: skip
    return transformers, transformers.LlamaForCausalLM(config).to("cuda", torch.bfloat16).eval()


def test_the_example_for_transformers_runs_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """examples/transformers: each layer of prefill, decoding and training calls the operator, which runs here or fails;
    logits are those of torch's attention, within roundings.
    """
    seen: list[tuple[int, int]] = []
    _, model = llama_of_the_example(monkeypatch, lambda q, k, how: seen.append((q.shape[2], k.shape[2])))
    tokens = torch.randint(1, 100, (2, 64), device="cuda")  # 0 pads: it would bring a mask along
    logits = {}
    for name in ("sdpa", "aotriton"):
        model.set_attn_implementation(name)
        logits[name] = model(tokens).logits
    torch.testing.assert_close(logits["aotriton"], logits["sdpa"], rtol=0.05, atol=0.05)
    logits["aotriton"].float().square().mean().backward()
    assert model.model.layers[0].self_attn.q_proj.weight.grad.abs().sum() > 0
    model.generate(tokens, max_new_tokens=3, min_new_tokens=3, do_sample=False, pad_token_id=0)
    assert seen == [(64, 64)] * 6 + [(1, 65)] * 3 + [(1, 66)] * 3


@pytest.mark.usefixtures("active")
def test_sdpa_falls_back(ran: Callable[[], dict[str, tuple[int, int]]]) -> None:
    """What the library does not do, float32, runs on torch's own kernel with torch's own results, dropout's too."""
    leaves = [tensor(2, 4, 200, 64, dtype=torch.float32, seed=i).requires_grad_() for i in range(3)]
    torch.manual_seed(0)
    found = trained(lambda q, k, v: sdpa(q, k, v, dropout_p=0.5), *leaves)
    assert ran() == {"forward": (0, 1), "backward": (0, 1)}
    assert stats()["forward"]["torch"]["neither float16 nor bfloat16"] > 0
    restore_flash_attention_impl()
    torch.manual_seed(0)
    expected = trained(lambda q, k, v: sdpa(q, k, v, dropout_p=0.5), *leaves)
    assert torch.equal(found[0], expected[0])
    activate_flash_attention_impl("aotriton")


@pytest.mark.parametrize("choice", list(CHOICES.values())[1:], ids=list(CHOICES)[1:])
def test_either_backward_takes_either_forward(
    choice: Callable[[], Any], ran: Callable[[], dict[str, tuple[int, int]]]
) -> None:
    """logsumexp means the same to both: gradients of torch's forward by our backward, and of ours by torch's."""
    leaves = [tensor(2, 4, 200, 64, seed=i).requires_grad_() for i in range(3)]
    with choice():
        expected = trained(lambda q, k, v: sdpa(q, k, v, is_causal=True), *leaves)
        for first, then in (
            (lambda: None, lambda: activate_flash_attention_impl("aotriton")),
            (lambda: activate_flash_attention_impl("aotriton"), restore_flash_attention_impl),
        ):
            first()
            out = sdpa(*leaves, is_causal=True)
            then()
            found = torch.autograd.grad(out.float().square().sum(), leaves)
            restore_flash_attention_impl(False)
            for got, want in zip(found, expected[1:], strict=True):
                close(got, want, 16)
    assert ran() == {"forward": (1, 0), "backward": (1, 0)}


@pytest.mark.usefixtures("active")
def test_sdpa_in_a_cuda_graph(ran: Callable[[], dict[str, tuple[int, int]]]) -> None:
    """A captured call of torch's attention is ours, and replays."""
    q, k, v = (tensor(2, 4, 200, 64, seed=i) for i in range(3))
    sdpa(q, k, v, is_causal=True)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = sdpa(q, k, v, is_causal=True)
    q.copy_(tensor(*q.shape, seed=9))
    graph.replay()
    assert ran()["forward"] == (2, 0)
    assert torch.equal(out, sdpa(q, k, v, is_causal=True))


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_another_device_than_the_current_one() -> None:
    """A call runs where its tensors are, and leaves the current device as it was."""
    q, k, v = (tensor(1, 2, 64, 64, seed=i, device="cuda:1") for i in range(3))
    out = attention(q, k, v, causal=True)
    assert out.device == q.device
    assert torch.cuda.current_device() == 0
    assert torch.equal(out.cpu(), attention(*(x.to("cuda:0") for x in (q, k, v)), causal=True).cpu())


STARTS = torch.tensor([0, 130, 130, 321, 400], dtype=torch.int32)
PACKED = {"cu_seqlens_q": STARTS, "cu_seqlens_k": STARTS, "max_seqlen_q": 191, "max_seqlen_k": 191}
FEATURES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {  # what has a gradient, and what has none
    "bias": ({"bias": tensor(2, 4, 200, 200, seed=5, device="cpu")}, {"causal": True}),
    "a bias of all": ({"bias": tensor(200, 200, seed=5, device="cpu")}, {}),
    "alibi": ({}, {"alibi_slopes": torch.tensor([0.5, 0.25, 0.1, 0.05]), "causal": True}),
    "softcap": ({}, {"softcap": 0.8, "window_left": 50}),
    "sinks": ({"sinks": torch.tensor([1.0, -1.0, 3.0, 0.0])}, {}),
    "dropout": (
        {},
        {
            "dropout": 0.3,
            "dropout_seed": torch.tensor(2**40 + 3),
            "dropout_offset": torch.tensor(2**33),
            "causal": True,
        },
    ),
    "used": ({}, {"seqused_q": torch.tensor([200, 77]).int(), "seqused_k": torch.tensor([150, 200]).int()}),
    "values of another head dim": ({"v": tensor(2, 2, 200, 24, seed=5, device="cpu")}, {"causal": True}),
    "an odd head dim": (
        {"q": tensor(2, 4, 200, 21, seed=5, device="cpu"), "k": tensor(2, 2, 200, 21, seed=6, device="cpu")},
        {},
    ),
    "all with a bias": (
        {"bias": tensor(2, 1, 200, 200, seed=5, device="cpu"), "sinks": torch.tensor([1.0, -1.0, 3.0, 0.0])},
        {"alibi_slopes": torch.tensor([0.5, 0.25, 0.1, 0.05]), "dropout": 0.1, "dropout_seed": torch.tensor(1)},
    ),
}


def on(device: str, tensors: dict[str, Any]) -> dict[str, Any]:
    return {name: one.to(device) if isinstance(one, torch.Tensor) else one for name, one in tensors.items()}


def same_on_both(leaves: dict[str, Any], how: dict[str, Any]) -> None:
    """out and the gradients of the leaves are the CPU's, whose formula is tested by itself, within a few roundings."""
    found = {}
    for device in ("cuda", "cpu"):
        given = {name: one.detach().requires_grad_() for name, one in on(device, leaves).items()}
        out, logsumexp = attention(**given, **on(device, how), return_logsumexp=True)
        dout = tensor(*out.shape, seed=9).to(device)
        found[device] = [out, logsumexp, *torch.autograd.grad(out, list(given.values()), dout)]
    for got, want in zip(found["cuda"], found["cpu"], strict=True):
        if got.dtype == torch.float32:
            torch.testing.assert_close(got.cpu(), want, rtol=0.02, atol=0.02)
        else:
            close(got.cpu(), want, 16)


@pytest.mark.parametrize(("leaves", "how"), FEATURES.values(), ids=FEATURES)
def test_features_are_what_they_are_on_a_cpu(leaves: dict[str, Any], how: dict[str, Any]) -> None:
    """Each feature, forward and backward; dropout drops the same weights."""
    q, k, v, _ = problem(False)
    same_on_both({"q": q, "k": k, "v": v, **leaves}, how)


@pytest.mark.parametrize("how", [{}, {"causal": True, "causal_variant": "bottom_right", "softcap": 1.0}], ids=str)
def test_packed_sequences_are_what_they_are_on_a_cpu(how: dict[str, Any]) -> None:
    """Sequences of different lengths, one of them empty, in views of packed q, k and v."""
    qkv = tensor(400, 3, 4, 64)
    leaves = dict(zip("qkv", qkv.unbind(1), strict=True))
    same_on_both(leaves | {"sinks": torch.tensor([1.0, -1.0, 3.0, 0.0])}, how | PACKED)


@pytest.mark.parametrize("skipped", range(1, 8))
@pytest.mark.parametrize(
    ("head_dim", "how"),
    [
        (64, {}),
        (128, {"causal": True}),
        (128, {"deterministic": True}),
        (256, {}),
        (64, {"sinks": torch.tensor([1.0, -1.0, 3.0, 0.0]), "dsinks": True}),
        (64, {"bias": tensor(1, 4, 400, 400, seed=5, device="cpu"), "dbias": True}),
        (64, {"causal": True, **PACKED}),
    ],
    ids=["plain", "causal", "deterministic", "wide", "sinks", "bias", "packed"],
)
def test_gradients_that_are_skipped_leave_the_others_as_they_are(
    skipped: int, head_dim: int, how: dict[str, Any]
) -> None:
    """Whichever backend then runs; and nothing that was given changes."""
    how = on("cuda", how)
    packed = "cu_seqlens_q" in how
    q, k, v, dout = (
        x if packed else x[None].transpose(1, 2)
        for x in (tensor(400, heads, head_dim, seed=heads + i) for i, heads in enumerate((4, 2, 2, 4)))
    )
    of_forward = {name: one for name, one in how.items() if name not in ("deterministic", "dbias", "dsinks")}
    out, logsumexp = OPS.attn_fwd(q, k, v, **of_forward)
    given = q, k, v, out, dout, logsumexp
    copies = [x.clone() for x in given]
    whole = OPS.attn_bwd(*given, **how)
    results = OPS.attn_bwd(*given, skip_gradients=skipped, **how)
    for i, (one, other) in enumerate(zip(results, whole, strict=True)):
        if (i < 3 and skipped >> i & 1) or not other.numel():
            assert one.shape == (0,)
        elif one.dtype == torch.float32:
            torch.testing.assert_close(one, other, rtol=0.02, atol=0.02)
        else:
            close(one, other, 16)
    assert all(torch.equal(x, copy) for x, copy in zip(given, copies, strict=True))


def test_dropout_in_a_cuda_graph() -> None:
    """A replay draws another seed, as torch's generator is one of the graph's; about as many weights are dropped as
    asked for.
    """
    q, v = torch.zeros(1, 1, 64, 128, device="cuda").bfloat16(), torch.eye(128, device="cuda").bfloat16()[None, None]
    attention(q, v, v, dropout=0.3)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = attention(q, v, v, dropout=0.3)
    replays = []
    for _ in range(2):
        graph.replay()
        replays.append(out.clone())
        assert abs((out == 0).float().mean().item() - 0.3) < 0.03
    assert not torch.equal(*replays)


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_compiled_features_are_eager(backend: str) -> None:
    """A bias, sinks and a drawn seed in one graph: results are eager's, but for what a compiled generator draws."""
    torch._dynamo.reset()
    q, k, v, _ = problem(True)
    leaves = [x.detach().requires_grad_() for x in (q, k, v, tensor(200, 200), torch.ones(4, device="cuda"))]

    def block(q: Any, k: Any, v: Any, bias: Any, sinks: Any) -> Any:
        return attention(q * 2, k, v, bias=bias, sinks=sinks, causal=True).sin()

    compiled = torch.compile(block, fullgraph=True, backend=backend)
    for got, expected in zip(trained(compiled, *leaves), trained(block, *leaves), strict=True):
        torch.testing.assert_close(got, expected, rtol=0.05, atol=0.05 * expected.abs().max().item())
    drops = torch.compile(lambda q: attention(q, k, v, dropout=0.5), fullgraph=True, backend=backend)
    assert not torch.equal(drops(q), drops(q))


MASKS: dict[str, Callable[[], Any]] = {
    "bool": lambda: torch.rand(2, 1, 200, 200, device="cuda") > 0.3,
    "of a batch": lambda: tensor(2, 1, 1, 200, seed=5),
    "of all": lambda: tensor(200, 200, seed=5),
}
MASKED = {
    "as it is": nullcontext,
    "memory-efficient": lambda: sdpa_kernel([SDPBackend.EFFICIENT_ATTENTION, SDPBackend.FLASH_ATTENTION]),
}


@pytest.mark.parametrize("choice", MASKED.values(), ids=MASKED)
@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.usefixtures("active")
def test_masks_of_sdpa_run_here(
    choice: Callable[[], Any],
    mask: Callable[[], Any],
    compiled: bool,
    ran: Callable[[], dict[str, tuple[int, int]]],
) -> None:
    """Whichever backend SDPA chooses for a mask; results are those of torch's own formula, within a few roundings."""
    torch._dynamo.reset()
    leaves = [tensor(2, 4, 200, 64, seed=i).requires_grad_() for i in range(3)]
    given = mask()

    def call(q: Any, k: Any, v: Any) -> Any:
        return sdpa(q, k, v, attn_mask=given)

    with sdpa_kernel(SDPBackend.MATH):
        expected = trained(call, *leaves)
    with choice():
        found = trained(torch.compile(call, fullgraph=True) if compiled else call, *leaves)
    for got, want in zip(found, expected, strict=True):
        close(got, want, 16)
    assert ran() == {"forward": (1, 0), "backward": (1, 0)}


@pytest.mark.usefixtures("active")
def test_the_gradient_of_sdpas_mask_is_computed_here(ran: Callable[[], dict[str, tuple[int, int]]]) -> None:
    """A mask that asks for a gradient, of a length that is no multiple of 16, gets the one of torch's own formula."""
    leaves = [*(tensor(2, 4, 203, 64, seed=i).requires_grad_() for i in range(3)), tensor(203, 203).requires_grad_()]

    def call(q: Any, k: Any, v: Any, mask: Any) -> Any:
        return sdpa(q, k, v, attn_mask=mask)

    with sdpa_kernel(SDPBackend.MATH):
        expected = trained(call, *leaves)
    with sdpa_kernel([SDPBackend.EFFICIENT_ATTENTION, SDPBackend.FLASH_ATTENTION]):
        found = trained(call, *leaves)
    for got, want in zip(found, expected, strict=True):
        close(got, want, 16)
    assert ran() == {"forward": (1, 0), "backward": (1, 0)}


@pytest.mark.parametrize("choice", CHOICES.values(), ids=CHOICES)
@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.usefixtures("active")
def test_dropout_of_sdpa_runs_here(
    choice: Callable[[], Any], compiled: bool, ran: Callable[[], dict[str, tuple[int, int]]]
) -> None:
    """As many weights are dropped as asked for, other ones in each call, and the backward drops the same ones."""
    torch._dynamo.reset()
    q = torch.zeros(1, 1, 128, 128, device="cuda").bfloat16()
    v = torch.eye(128, device="cuda").bfloat16()[None, None].requires_grad_()  # so that out has the weights themselves

    def call(v: Any) -> Any:
        return sdpa(q, q, v, dropout_p=0.25)

    run = torch.compile(call, fullgraph=True) if compiled else call
    with choice():
        outs = [run(v), run(v)]
    assert not torch.equal(*outs)
    for out in outs:
        assert abs((out == 0).float().mean().item() - 0.25) < 0.03
        (dv,) = torch.autograd.grad(out, v, torch.ones_like(out))
        close(dv[0, 0, :, 0], out[0, 0].float().sum(0), 4)
    assert ran() == {"forward": (2, 0), "backward": (2, 0)}


@pytest.mark.parametrize("window", [(-1, -1), (-1, 0), (30, 10)])
def test_varlen_attn_runs_here(window: tuple[int, int], ran: Callable[[], dict[str, tuple[int, int]]]) -> None:
    """torch's function for sequences of different lengths, both ways: results are those of torch's own kernel."""
    from torch.nn.attention.varlen import varlen_attn

    leaves = [x.detach().requires_grad_() for x in tensor(400, 3, 4, 64).unbind(1)]
    starts = STARTS.cuda()

    def call(q: Any, k: Any, v: Any) -> Any:
        return varlen_attn(q, k, v, starts, starts, 191, 191, window_size=window)

    expected = trained(call, *leaves)
    activate_flash_attention_impl("aotriton")
    found = trained(call, *leaves)
    restore_flash_attention_impl()
    for got, want in zip(found, expected, strict=True):
        close(got, want, 16)
    assert ran() == {"forward": (1, 0), "backward": (1, 0)}


@pytest.mark.usefixtures("active")
def test_nested_tensors_run_here(ran: Callable[[], dict[str, tuple[int, int]]]) -> None:
    """SDPA of jagged tensors is that of each sequence by itself."""
    parts = [tensor(n, 4, 64, seed=n) for n in (130, 191, 79)]
    nested = torch.nested.nested_tensor(parts, layout=torch.jagged).transpose(1, 2)
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        found = sdpa(nested, nested, nested, is_causal=True).transpose(1, 2).unbind()
    assert ran()["forward"] == (1, 0)
    for got, part in zip(found, parts, strict=True):
        one = part.transpose(0, 1)[None]
        close(got, attention(one, one, one, causal=True)[0].transpose(0, 1), 4)


def test_flash_attns_functions_run_here() -> None:
    """Sequences of different lengths, packed, are each by itself, but for the rounding of other kernels."""
    qkv = tensor(400, 3, 4, 64)
    out = flash.flash_attn_varlen_qkvpacked_func(qkv, STARTS.cuda(), 191, causal=True, window_size=(64, 0))
    for begin, end in pairwise(STARTS.tolist()):
        one = flash.flash_attn_qkvpacked_func(qkv[begin:end][None], causal=True, window_size=(64, 0))
        torch.testing.assert_close(out[begin:end][None], one, rtol=2**-6, atol=2**-8)


def appending(device: str, packed: bool) -> dict[str, Any]:
    """Arguments of kv_append: three new tokens of each of four sequences, one of which has ended, or as many packed."""
    sizes = (12,) if packed else (4, 3)
    qkv = tensor(*sizes, 12, 64, seed=1, device=device)
    q, k, v = (qkv if packed else qkv.transpose(1, 2)).split((8, 2, 2), 1)
    k_cache, v_cache = tensor(2, 40, 32, 2, 64, seed=2, device=device).transpose(2, 3).unbind(0)
    table = torch.randperm(40, generator=torch.Generator().manual_seed(5)).int().view(4, 10).to(device)
    used = torch.tensor([300, 0, 31, 129], dtype=torch.int32, device=device)
    angles = torch.arange(320.0, device=device)[:, None] * torch.tensor([1.0, 0.1], device=device)
    given = {"k": k, "v": v, "k_cache": k_cache, "v_cache": v_cache, "seqused_k": used, "block_table": table}
    given |= {"q": q, "rotary_cos": angles.cos(), "rotary_sin": angles.sin()}
    if packed:
        given["cu_seqlens_k"] = torch.tensor([0, 1, 1, 8, 12], dtype=torch.int32, device=device)
    return given


WRITTEN = ("k_cache", "v_cache", "q")


@pytest.mark.parametrize("packed", [False, True])
def test_what_is_appended_is_what_it_is_on_a_cpu(packed: bool) -> None:
    """What is written into the cache, and the rotated queries; values, and what is not written, have their bits."""
    results = []
    for device in ("cuda", "cpu"):
        given = appending(device, packed)
        kv_append(**given)
        results.append([given[name].cpu() for name in WRITTEN])
    for got, expected in zip(*results, strict=True):
        close(got, expected, 2)
    assert torch.equal(results[0][1], results[1][1])
    before = appending("cpu", packed)["k_cache"]
    assert torch.equal(results[0][0] == before, results[1][0] == before)


def test_without_heads_of_keys_queries_are_rotated() -> None:
    """As they are beside keys."""
    got, expected = appending("cuda", False), appending("cuda", False)
    kv_append(**got | {name: got[name][:, :0] for name in ("k", "v", "k_cache", "v_cache")})
    kv_append(**expected)
    assert torch.equal(got["q"], expected["q"])


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_compiled_appending_is_eager(backend: str) -> None:
    """In one graph, which writes into the caller's caches."""
    torch._dynamo.reset()
    got, expected = appending("cuda", False), appending("cuda", False)
    got |= {name: got[name].clone() for name in ("k_cache", "v_cache")}
    torch.compile(lambda given: kv_append(**given), fullgraph=True, backend=backend)(got)
    kv_append(**expected)
    assert all(torch.equal(got[name], expected[name]) for name in WRITTEN)


def step_on_pages(device: str) -> tuple[list[Any], dict[str, Any]]:
    """Arguments of flash_attn_with_kvcache: a token for each of four sequences, whose pages lie in any order."""
    q, new = tensor(4, 1, 8, 64, device=device), [tensor(4, 1, 2, 64, seed=n, device=device) for n in (1, 2)]
    caches = [tensor(40, 32, 2, 64, seed=n, device=device) for n in (3, 4)]
    table = torch.randperm(40, generator=torch.Generator().manual_seed(5)).int().view(4, 10).to(device)
    used = torch.tensor([300, 0, 31, 129], dtype=torch.int32, device=device)
    angles = torch.arange(320.0, device=device)[:, None] * torch.tensor([1.0, 0.1], device=device)
    return [q, *caches, *new, angles.cos(), angles.sin(), used], {"block_table": table, "causal": True}


def test_a_step_on_pages_is_what_it_is_on_a_cpu() -> None:
    """What it computes, and what it writes into the cache."""
    results = []
    for device in ("cuda", "cpu"):
        given, how = step_on_pages(device)
        out = flash.flash_attn_with_kvcache(*given, **how)
        results.append([one.cpu() for one in (out, *given[1:3])])
    for got, expected in zip(*results, strict=True):
        close(got, expected, 4)


def test_steps_on_pages_in_a_cuda_graph() -> None:
    """Each replay writes a token behind those of before, and sees it; nothing of a step waits for the device."""
    given, how = step_on_pages("cuda")
    again, _ = step_on_pages("cuda")
    flash.flash_attn_with_kvcache(*given, **how)  # loads images, and writes what the first replay writes
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = flash.flash_attn_with_kvcache(*given, **how)
        given[-1] += 1
    for seed in (6, 7, 8):
        for tensors in (given, again):
            tensors[0].copy_(tensor(4, 1, 8, 64, seed=seed))
        graph.replay()
        close(out, flash.flash_attn_with_kvcache(*again, **how), 1)
        again[-1] += 1
    assert all(map(torch.equal, given, again))


def narrow(caches: list[Any]) -> list[Any]:
    return [one.to(torch.float8_e4m3fn) for one in caches]


def scales_of(device: str) -> dict[str, Any]:
    """Of four sequences and two heads: each its own, and one number for all by strides of 0."""
    each = torch.linspace(0.1, 2, 8).view(4, 2)
    return {"k_descale": each.to(device), "v_descale": torch.tensor(0.3, device=device).expand(4, 2)}


@pytest.mark.parametrize("paged", [False, True])
def test_keys_of_8_bits_are_what_they_are_on_a_cpu(paged: bool) -> None:
    """One query and several for each sequence, in rows and in pages; logsumexp, too."""
    for rows in (1, 7):
        found = {}
        for device in ("cuda", "cpu"):
            given, how = step_on_pages(device)
            q = tensor(4, 8, rows, 64, seed=rows, device=device)
            k, v = (one.transpose(1, 2) for one in narrow(given[1:3]))
            where = {"seqused_k": given[-1], "block_table": how["block_table"]}
            if not paged:
                k, v = (one[:4] for one in (k, v))
                where = {"seqused_k": given[-1].clamp(max=32)}
            last: dict[str, Any] = {"causal": True, "causal_variant": "bottom_right", "return_logsumexp": True}
            found[device] = attention(q, k, v, **where, **scales_of(device), **last)
        close(found["cuda"][0].cpu(), found["cpu"][0], 4)
        torch.testing.assert_close(found["cuda"][1].cpu(), found["cpu"][1], rtol=0.01, atol=0.01)


@pytest.mark.parametrize("packed", [False, True])
def test_what_is_appended_in_8_bits_is_what_it_is_on_a_cpu(packed: bool) -> None:
    """Values have the same bits, as each is one quotient, rounded once; keys were rotated before."""
    results = []
    for device in ("cuda", "cpu"):
        given = appending(device, packed)
        given |= dict(zip(("k_cache", "v_cache"), narrow([given["k_cache"], given["v_cache"]]), strict=True))
        kv_append(**given, **scales_of(device))
        results.append([given[name].cpu().float() for name in ("k_cache", "v_cache")])
    (k, v), (expected_k, expected_v) = results
    assert torch.equal(v, expected_v)
    torch.testing.assert_close(k, expected_k, rtol=0.13, atol=2.0**-9)
    assert (k != expected_k).float().mean() < 0.01


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_a_compiled_step_on_a_cache_of_8_bits_is_eager(backend: str) -> None:
    """In one graph, which writes into the caller's caches."""
    torch._dynamo.reset()
    results = []
    step = partial(flash.flash_attn_with_kvcache, **scales_of("cuda"))
    for call in (step, torch.compile(step, fullgraph=True, backend=backend)):
        given, how = step_on_pages("cuda")
        given[1:3] = narrow(given[1:3])
        results.append([call(*given, **how), *(one.float() for one in given[1:3])])
    assert all(map(torch.equal, *results))


def test_steps_on_a_cache_of_8_bits_in_a_cuda_graph() -> None:
    """Each replay writes a token behind those of before, and follows scales that change on the device."""
    scales = scales_of("cuda")
    step = partial(flash.flash_attn_with_kvcache, **scales)
    (given, how), (again, _) = step_on_pages("cuda"), step_on_pages("cuda")
    for tensors in (given, again):
        tensors[1:3] = narrow(tensors[1:3])
    step(*given, **how)  # loads images, and writes what the first replay writes
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = step(*given, **how)
        given[-1] += 1
    for factor in (1, 2, 3):
        scales["k_descale"] *= factor
        graph.replay()
        close(out, step(*again, **how), 1)
        again[-1] += 1
    assert all(torch.equal(a.float(), b.float()) for a, b in zip(given[1:3], again[1:3], strict=True))


def test_continuous_batching_of_the_example_runs_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """examples/transformers: chunks of prompts and decoding steps, on keys in pages; new tokens are the likeliest ones,
    but for roundings.
    """
    seen: list[bool] = []
    transformers, model = llama_of_the_example(monkeypatch, lambda q, k, how: seen.append("block_table" in how))
    model.set_attn_implementation("paged|aotriton")
    prompts = [[1 + n % 99 for n in range(length)] for length in (5, 300, 70, 1)]
    batching = transformers.ContinuousBatchingConfig(
        block_size=32, num_blocks=64, max_batch_tokens=128, use_cuda_graph=False
    )
    greedy = transformers.GenerationConfig(max_new_tokens=8, do_sample=False, pad_token_id=0)
    found = model.generate_batch(prompts, generation_config=greedy, continuous_batching_config=batching)
    model.set_attn_implementation("sdpa")
    model.double()
    for prompt, made in zip(prompts, found.values(), strict=True):
        tokens = torch.tensor(made.generated_tokens, device="cuda")
        with torch.no_grad():
            logits = model(torch.tensor([prompt + made.generated_tokens], device="cuda")).logits[0]
        wanted = logits[len(prompt) - 1 : -1]
        assert len(tokens) == 8
        assert (wanted.amax(1) - wanted.gather(1, tokens[:, None])[:, 0]).max() < 0.05
    assert any(seen)
