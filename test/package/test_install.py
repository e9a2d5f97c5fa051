"""The installed tree from outside: CMake package, pkg-config file, headers, aotriton-explain; wherever it is moved to.

Run by ctest, which installs first and says where.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from toy_database import FOLDER, cells, spec, winner

from aotriton.rules.arch import arch_spec
from aotriton.rules.database import TuningDatabase
from aotriton.rules.family import VARIABLE, operator
from aotriton.rules.kernel import KernelDescription

CONSUMER = Path(__file__).resolve().parent / "consumer"
WARNINGS = ("-std=c++17", "-Wall", "-Wextra", "-Werror")


def run(*command: str | Path, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(part) for part in command], capture_output=True, text=True, env=env)


def must(*command: str | Path) -> str:
    """The standard output of a command that succeeds."""
    done = run(*command)
    assert done.returncode == 0, f"{' '.join(map(str, command))}\n{done.stdout}{done.stderr}"
    return done.stdout


def has_gpu() -> bool:
    try:
        return bool(ctypes.CDLL("libcuda.so.1").cuInit(0) == 0)
    except OSError:
        return False


def compiler() -> str:
    return os.environ.get("CXX", "c++")


def test_a_cmake_project_finds_and_links_the_library(prefix: Path, tmp_path: Path) -> None:
    """A project with find_package(aotriton) builds and runs: right with a GPU, no_driver without."""
    cmake = os.environ.get("CMAKE_COMMAND", "cmake")
    must(cmake, "-G", "Ninja", "-S", CONSUMER, "-B", tmp_path, f"-DCMAKE_PREFIX_PATH={prefix}",
         f"-DCMAKE_CXX_COMPILER={compiler()}")  # fmt: skip
    must(cmake, "--build", tmp_path)
    done = run(tmp_path / "consumer")
    if has_gpu():
        assert done.returncode == 0, done.stderr
        assert "the README's example is right" in done.stdout
    else:
        assert done.returncode == 3, done.stderr
        assert "no_driver: " in done.stderr
        assert "libcuda.so.1" in done.stderr


FAMILY_PROJECT = """
cmake_minimum_required(VERSION 3.25)
project(user LANGUAGES CXX)
find_package(aotriton CONFIG REQUIRED)
aotriton_add_family(made_up "${CMAKE_CURRENT_SOURCE_DIR}/toy" ARCHS sm_90)
add_executable(user main.cc)
target_link_libraries(user PRIVATE made_up)
"""
FAMILY_MAIN = """
#include "scale.h"
#include <cstdio>
using namespace aotriton::v2;
int main() {
  toy::scale_params params;
  const auto bf16 = DType::bfloat16;
  params.x = Tensor<4>(nullptr, bf16, {3, 2, 1000, 32}, {64000, 32000, 32, 1});
  params.y = params.x;
  params.w = Tensor<2>(nullptr, bf16, {8, 32}, {32, 1});
  Explanation explanation;
  if (toy::explain(params, "sm_90", 132, &explanation) != Error::success) return 1;
  const KernelChoice& choice = explanation.kernels[0];
  std::printf("%s; %s; %s; %s\\n", choice.kernel, choice.functional, choice.tunables, choice.source);
  if (toy::explain(params, "gfx942", 0, &explanation) != Error::unknown_arch) return 2;
  if (toy::scale(params, {}) != Error::null_pointer) return 3;
  std::printf("%s\\n", last_error_message());
}
"""


def test_a_project_adds_a_family_of_its_own(prefix: Path, tmp_path: Path, toy: KernelDescription) -> None:
    """From a folder with descriptions, device code and winners the installed tree generates, compiles and links it, and
    its program is told what it would run. Nothing of this source tree is needed, and what lies beside the package, as
    in a folder that pip fills, does not take the place of what the compiler needs.
    """
    (prefix / "share" / "aotriton" / "python" / "triton.py").write_text("raise ImportError('another Triton')\n")
    shutil.copytree(FOLDER, tmp_path / "toy", ignore=shutil.ignore_patterns("__pycache__"))
    with TuningDatabase(tmp_path / "toy" / "rules" / "tuning_database.sqlite3") as database:
        for functional in toy.functionals("sm_90"):
            rows = [winner(spec(functional, 64, 8), cell, "imported", source="a list") for cell in cells(functional)]
            database.put_winners(rows)
    (tmp_path / "CMakeLists.txt").write_text(FAMILY_PROJECT)
    (tmp_path / "main.cc").write_text(FAMILY_MAIN)
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", VARIABLE)}
    environment["AOTRITON_IMAGE_STORE"] = str(tmp_path / "store")
    cmake, build = os.environ.get("CMAKE_COMMAND", "cmake"), tmp_path / "build"
    for command in (
        [cmake, "-G", "Ninja", "-S", tmp_path, "-B", build, f"-DCMAKE_PREFIX_PATH={prefix}",
         f"-DCMAKE_CXX_COMPILER={compiler()}", f"-DAOTRITON_PYTHON={sys.executable}"],
        [cmake, "--build", build],
        [build / "user"],
    ):  # fmt: skip
        done = run(*command, env=environment)
        assert done.returncode == 0, f"{done.stdout}{done.stderr}"
    assert done.stdout.splitlines() == [
        "scale_rows; T=bf16 BLOCK_DMODEL=32 ADDRESSING=descriptor; BLOCK_M=64 UNROLL=1; a list",
        "scale: x has no data",
    ]
    assert len(list((tmp_path / "store").glob("scale_rows_sm_90_*.cubin"))) == 8


def pkg_config_flags(file: Path) -> list[str]:
    """Compiler and linker flags of the .pc file, worked out as pkg-config does."""
    variables, fields = {"pcfiledir": str(file.parent)}, {}
    for line in file.read_text().splitlines():
        for name, value in variables.items():
            line = line.replace(f"${{{name}}}", value)
        if ":" in line and line.split(":")[0].isidentifier():
            fields[line.split(":")[0]] = line.split(":", 1)[1]
        elif "=" in line:
            variables[line.split("=")[0]] = line.split("=", 1)[1]
    assert "${" not in "".join(fields.values()), fields
    return f"{fields['Cflags']} {fields['Libs']}".split()


def test_the_pkg_config_file_gives_flags_that_build(prefix: Path, tmp_path: Path) -> None:
    """The README's example compiles and links with the flags of aotriton_v2.pc alone, as pkg-config reads them."""
    (file,) = prefix.rglob("pkgconfig/aotriton_v2.pc")
    flags = pkg_config_flags(file)
    main = tmp_path / "main.cc"
    main.write_text(
        "bool attention(void*, void*, void*, void*, void*);\nint main() { return attention(0, 0, 0, 0, 0); }\n"
    )
    program = tmp_path / "example"
    must(compiler(), *WARNINGS, main, CONSUMER / "readme_example.cc", *flags, "-o", program)
    done = run(program)
    assert done.returncode == 0, "null pointers are refused, so attention() is false"
    assert "null_pointer: attn_fwd: q " in done.stderr
    if tool := shutil.which("pkg-config"):
        (folder,) = prefix.rglob("pkgconfig")
        environment = {**os.environ, "PKG_CONFIG_PATH": str(folder)}
        answer = run(tool, "--cflags", "--libs", "aotriton_v2", env=environment)
        assert answer.returncode == 0, answer.stderr
        libraries = {flag for flag in flags if flag.startswith("-l")}
        assert {flag for flag in answer.stdout.split() if flag.startswith("-l")} == libraries


def test_each_public_header_stands_alone(prefix: Path) -> None:
    """Every installed header compiles by itself, without warnings, and includes none that is not installed; that of the
    C interface is C99.
    """
    headers = sorted((prefix / "include" / "aotriton").glob("*.h"))
    assert {header.name for header in headers} >= {"c.h", "flash.h", "types.h", "runtime.h", "explain.h"}
    for header in headers:
        include = ("-I", prefix / "include", "-include", header)
        must(compiler(), *WARNINGS, "-pedantic", "-fsyntax-only", *include, "-x", "c++", os.devnull)
    include = ("-I", prefix / "include", "-include", prefix / "include" / "aotriton" / "c.h")
    must(compiler(), "-std=c99", *WARNINGS[1:], "-pedantic", "-fsyntax-only", *include, "-x", "c", os.devnull)


def test_an_error_that_is_thrown_away_is_a_warning(prefix: Path, tmp_path: Path) -> None:
    for handled in (True, False):
        source = tmp_path / "call.cc"
        call = "aotriton::v2::attn_fwd(params, {});"
        body = f"return {call}" if handled else f"{call} return {{}};"
        source.write_text(
            "#include <aotriton/flash.h>\n"
            f"aotriton::v2::Error call(const aotriton::v2::attn_fwd_params& params) {{ {body} }}\n"
        )
        done = run(compiler(), *WARNINGS, "-fsyntax-only", "-I", prefix / "include", source)
        assert (done.returncode == 0) == handled, done.stderr
        assert handled or "nodiscard" in done.stderr or "unused-result" in done.stderr, done.stderr


EXAMPLE = (
    "--dtype",
    "bf16",
    "--head-dim",
    "64",
    "--seqlen-q",
    "1024",
    "--seqlen-k",
    "1024",
    "--batch",
    "2",
    "--heads-q",
    "16",
    "--heads-k",
    "4",
)


@pytest.mark.parametrize("arch", ["sm_90", "gfx942"])
@pytest.mark.parametrize("op", ["attn_fwd", "attn_bwd"])
def test_explain_answers_in_text_and_json(prefix: Path, arch: str, op: str) -> None:
    """aotriton-explain names functional, godel number, bin, image, config and provenance, alike in both forms."""
    command = (prefix / "bin" / "aotriton-explain", "--op", op, "--arch", arch, *EXAMPLE, "--causal")
    text, kernels = must(*command), json.loads(must(*command, "--json"))
    # Which backend a call gets is the database's to say. Kernels without programs are none of the answer.
    of_backends = [[kernel.name for kernel in backend.timed_kernels] for backend in operator(op).backends]
    assert [kernel["kernel"] for kernel in kernels] in of_backends
    for kernel in kernels:
        assert kernel["arch"] == arch
        assert kernel["provenance"] in ("measured", "borrowed", "predicted", "imported")
        for name in ("functional", "image", "tunables", "compile_options", "provenance"):
            assert kernel[name], name
            assert kernel[name] in text, name
        assert f"godel number {kernel['godel_number']}" in text
        assert kernel["keys"][0]["name"] == "max_seqlen_q"
        assert kernel["keys"][0]["value"] == 1024
        assert kernel["keys"][0]["representative"] >= 1024
        for runner_up in kernel["runners_up"]:
            assert runner_up["config"] in text
    if op == "attn_fwd":
        assert "CAUSAL=True" in kernels[0]["functional"]


def test_explain_refuses_an_unknown_arch(prefix: Path) -> None:
    """An arch that the build lacks is an error that lists those it has."""
    done = run(prefix / "bin" / "aotriton-explain", "--op", "attn_fwd", "--arch", "sm_42", *EXAMPLE)
    assert done.returncode == 2
    assert "unknown_arch: " in done.stderr
    assert "sm_42" in done.stderr
    assert "sm_90" in done.stderr


def test_explain_tells_its_options(prefix: Path) -> None:
    """--help lists every operator with its sizes, scalars and operands that may be left out, as options are spelled.
    The size of one number needs no option.
    """
    text = must(prefix / "bin" / "aotriton-explain", "--help")
    for name in ("attn_fwd", "attn_bwd"):
        (line,) = (line for line in text.splitlines() if line.startswith(f"  {name} "))
        of = operator(name)
        assert all(f"--{size.replace('_', '-')} N" in line for size in of.sizes if size != "one")
        assert "--one" not in line
        assert all(f"[--{one.name.replace('_', '-')}]" in line for one in of.operands if one.optional)
        for scalar in (scalar for scalar in of.scalars if not scalar.internal):
            option = f"--{scalar.name.replace('_', '-')}"
            operand = "" if scalar.dtype == "bool" else f" {'|'.join(scalar.values) or 'X'}"
            assert f"[{option}{operand}]" in line


def test_sizes_have_short_options(prefix: Path) -> None:
    """What sizes have in common stands for all of them, and a size that is named itself comes first."""
    start = (
        prefix / "bin" / "aotriton-explain",
        "--op",
        "attn_fwd",
        "--arch",
        "sm_90",
        "--dtype",
        "bf16",
        "--batch",
        "2",
    )
    rest = ("--head-dim", "64", "--sm-scale", "0.5", "--json")
    sizes = ("--heads-q", "16", "--heads-k", "16", "--seqlen-q", "1024", "--seqlen-k", "1024")
    assert must(*start, *sizes, *rest) == must(*start, "--heads", "16", "--seqlen", "1024", *rest)
    wider = ("--seqlen", "1024", "--seqlen-k", "300", "--heads", "16")
    keys = json.loads(must(*start, *wider, *rest))[0]["keys"]
    assert {key["name"]: key["value"] for key in keys[:2]} == {"max_seqlen_q": 1024, "max_seqlen_k": 300}


def test_explain_is_told_which_operands_lie_by_columns(prefix: Path) -> None:
    sizes = ("--batch", "1", "--m", "64", "--n", "4096", "--k", "4096")
    start = (
        prefix / "bin" / "aotriton-explain",
        "--op",
        "gemm",
        "--arch",
        "sm_90",
        "--dtype",
        "bf16",
        *sizes,
        "--json",
    )
    (choice,) = json.loads(must(*start, "--transposed-b"))
    assert "TRANS_B=True ADDRESSING=descriptor" in choice["functional"]
    refused = run(*start, "--transposed-bias")
    assert refused.returncode == 2
    assert "unknown option --transposed-bias of gemm" in refused.stderr


def first_line(text: str) -> str:
    return text.splitlines()[0]


def test_the_first_line_is_short_and_of_this_very_call(prefix: Path) -> None:
    """Kernel, backend, predicted time and what that is in TFLOP/s; what was measured nearby, and how this call differs
    from it, is below.
    """
    command = (prefix / "bin" / "aotriton-explain", "--op", "attn_fwd", "--device", "h200", "--dtype", "bf16")
    padded = (*command, "--batch", "2", "--heads", "16", "--seqlen", "1000", "--head-dim", "40")
    (choice,) = json.loads(must(*padded, "--json"))
    text = must(*padded)
    assert choice["flops"] == 4 * 2 * 16 * 1000 * 1000 * 40
    start = f"{choice['kernel']} (backend {choice['backend']}, sm_90): predicted "
    assert first_line(text).startswith(start)
    time, unit, speed, flops = first_line(text)[len(start) :].split(" ")
    assert float(time) == pytest.approx(choice["predicted_us"], rel=1e-3)
    assert float(speed) == pytest.approx(choice["flops"] / choice["predicted_us"] * 1e-6, abs=0.6)
    assert (unit, flops) == ("us,", "TFLOP/s")
    assert len(first_line(text)) < 100
    assert f"off by {100 * choice['predicted_error']:.1f} % in the median\n" in text
    mi300x = (*padded[:3], "--device", "mi300x", *padded[5:])
    (unmeasured,) = json.loads(must(*mi300x, "--json"))
    assert (unmeasured["measured"], unmeasured["predicted_error"]) == ("", 0)
    assert f" us, compared with no measurement: {unmeasured['model']}\n" in must(*mi300x)
    assert "    padding      BLOCK_DMODEL is 40: padded to 64\n" in text
    sizes = {key["name"]: (key["representative"], key["value"]) for key in choice["keys"]} | {"BLOCK_DMODEL": (64, 40)}
    measured, own = (" ".join(f"{name}={pair[i]}" for name, pair in sizes.items()) for i in (0, 1))
    assert f"    measured at  {measured}; this call has {own}\n" in text
    beyond = must(*command, "--batch", "2", "--heads", "16", "--seqlen", "100000", "--head-dim", "64")
    assert "; this call has max_seqlen_q=100000 max_seqlen_k=100000 waves=" in beyond
    assert re.search(r"predicted \d+\.?\d* ms, \d+ TFLOP/s$", first_line(beyond)), first_line(beyond)
    assert "e+" not in beyond
    alike = must(*command, "--batch", "1", "--heads", "1", "--seqlen", "64", "--head-dim", "64", "--causal")
    assert "    measured at  max_seqlen_q=64 max_seqlen_k=64 waves=1, which this call has, too\n" in alike


def test_what_was_measured_itself_has_a_predicted_time_too(prefix: Path) -> None:
    """4096 in every direction, where the cell decides, as 4088 beside it, where the models do."""
    command = (prefix / "bin" / "aotriton-explain", "--op", "gemm", "--device", "h200", "--dtype", "bf16")
    times = []
    for m in ("4096", "4088"):
        sizes = (*command, "--batch=1", "--m", m, "--n", "4096", "--k", "4096", "--transposed-b")
        (choice,) = json.loads(must(*sizes, "--json"))
        assert f"predicted {choice['predicted_us']:.4g} us, " in first_line(must(*sizes))
        assert choice["predicted_total_us"] == choice["predicted_us"]
        assert choice["predicted_error"] > 0
        times.append(choice["predicted_us"])
    assert times[0] == pytest.approx(times[1], rel=0.2)


def test_measured_times_are_called_so_and_say_of_what(prefix: Path) -> None:
    """Behind what is predicted for this call, on the lines of the backends and of the runners-up."""
    command = (prefix / "bin" / "aotriton-explain", "--op", "attn_fwd", "--device", "h200", *EXAMPLE)
    (choice,) = json.loads(must(*command, "--json"))
    lines = [line[17:] for line in must(*command).splitlines()]
    told = 0
    for backend in choice["backends"]:
        (line,) = (line for line in lines if re.match(rf"{backend['name']}( \(this one\))?, ", line))
        if backend["predicted_us"]:
            assert f", predicted {backend['predicted_us']:.4g} us" in line
        assert ("; its bin's own problem was measured: " in line) == bool(backend["median_us"])
        told += bool(backend["median_us"])
    assert told
    for runner_up in choice["runners_up"]:
        assert f"measured there {runner_up['median_us']:.4g} us  {runner_up['config']}" in lines


def test_what_is_not_predicted_says_where_it_is_from(prefix: Path) -> None:
    """The provenance of the bin's image, and that its time is of another size."""
    command = (prefix / "bin" / "aotriton-explain", "--op", "gemm", "--device", "h200", "--dtype", "bf16")
    odd = (*command, "--batch", "1", "--m", "400", "--n", "401", "--k", "403")
    (choice,) = json.loads(must(*odd, "--json"))
    assert "ADDRESSING=general" in choice["functional"]
    assert choice["predicted_us"] == 0
    assert choice["image"] == choice["bin_image"]
    time = f"{choice['median_us']:.4g} us at a larger size" if choice["median_us"] else "no time"
    assert first_line(must(*odd)) == f"gemm (backend portable, sm_90): {choice['provenance']}, {time}"


def test_several_kernels_have_a_total_and_each_backend_says_why_it_cannot_serve(prefix: Path) -> None:
    command = (prefix / "bin" / "aotriton-explain", "--op", "attn_bwd", "--device", "h200", *EXAMPLE, "--deterministic")
    choices, text = json.loads(must(*command, "--json")), must(*command)
    measured = sum(choice["bin_median_us"] for choice in choices)
    assert choices[0]["total_us"] == pytest.approx(measured, rel=1e-5)
    predicted = sum(choice["predicted_us"] for choice in choices)
    assert choices[0]["predicted_total_us"] == pytest.approx(predicted, rel=1e-5)
    start = f"attn_bwd (backend {choices[0]['backend']}, sm_90): {len(choices)} kernels, predicted "
    assert first_line(text).startswith(start)
    assert first_line(text).endswith(" TFLOP/s together")
    assert float(first_line(text)[len(start) :].split(" ")[0]) == pytest.approx(predicted, rel=1e-3)
    (told,) = re.findall("    measured     (.*) us, the kernels' medians added up", text)
    assert float(told) == pytest.approx(measured, rel=1e-3)
    (hopper,) = (backend for backend in choices[0]["backends"] if backend["name"] == "hopper_pair")
    assert hopper["refusing_kernel"] == "attn_bwd_hopper_pair"
    assert f"hopper_pair, cannot serve this call: {hopper['refusal']} (attn_bwd_hopper_pair)" in text
    assert text.count("    backends     ") == 1


@pytest.mark.parametrize("op", ["attn_fwd", "attn_bwd"])
def test_explain_takes_hints_and_says_what_became_of_them(prefix: Path, op: str) -> None:
    """--hint, as often as one likes: each is in the text and in JSON, honoured or not, and why; without it none is."""
    command = (prefix / "bin" / "aotriton-explain", "--op", op, "--device", "h200", *EXAMPLE)
    assert all(choice["hints"] == {} for choice in json.loads(must(*command, "--json")))
    assert "honoured" not in must(*command)
    hinted = (*command, "--hint", "backend=portable deterministic", "--hint=throughput", "--hint", "colour=red")
    text = must(*hinted)
    for choice in json.loads(must(*hinted, "--json")):
        assert choice["backend"] == "portable"
        told = {name: (hint["honoured"], hint["why"]) for name, hint in choice["hints"].items()}
        assert list(told) == ["backend", "deterministic", "throughput", "colour"]
        assert [honoured for honoured, _ in told.values()] == [True, True, False, False]
        for name, (honoured, why) in told.items():
            line = f"{name}: {'' if honoured else 'not '}honoured{', ' if why else ''}{why}"
            assert len(re.findall(rf"^    (hints|     )        {re.escape(line)}$", text, re.MULTILINE)) == 1
    assert text.count("    hints        ") == 1


def test_times_of_another_cell_are_told_as_such(prefix: Path) -> None:
    """Of each call: a backend's time is plain where the first backend was measured, else it says where it is from; one
    that was never compared has none.
    """
    for rows, keys in ((64, 64), (64, 8000), (8000, 64), (600, 600), (3000, 30)):
        sizes = f"--batch=4 --heads=64 --seqlen-q={rows} --seqlen-k={keys} --head-dim=64".split()
        for arch in ("sm_90", "gfx942"):
            command = (prefix / "bin" / "aotriton-explain", "--op=attn_fwd", "--arch", arch, "--dtype=bf16", *sizes)
            text, (choice, *others) = must(*command), json.loads(must(*command, "--json"))
            if not others:  # else the first line is about the sum
                unknown = not choice["median_us"] and not choice["predicted_us"]
                assert (f"{arch}): {choice['provenance']}, no time" in text) == unknown
            lines = text[text.index("    backends     ") :].splitlines()[: len(choice["backends"])]
            for backend, line in zip(choice["backends"], lines, strict=True):
                assert line[17:].startswith(backend["name"])
                assert (", cannot serve this call: " in line) == bool(backend["refusal"])
                told = backend["refusal"] or backend["predicted_us"]
                own = choice["backends"][0]["total_us"] > 0 or told or not backend["median_us"]
                assert (" in the cell that it borrows from" in line) != bool(own)
                known = backend["median_us"] or backend["total_us"] or told
                assert (", not measured" in line) != bool(known)


def test_a_call_that_computes_nothing_runs_no_kernel(prefix: Path) -> None:
    command = (prefix / "bin" / "aotriton-explain", "--op=attn_fwd", "--arch=sm_90", "--dtype=bf16", "--batch=0")
    sizes = ("--heads=4", "--seqlen=100", "--head-dim=64")
    assert must(*command, *sizes) == "no kernel: the call has nothing to compute\n"
    assert json.loads(must(*command, *sizes, "--json")) == []


def test_archs_are_shown_one_after_the_other(prefix: Path) -> None:
    """By several --arch or commas; what one of them refuses does not hide the others, and is the exit status."""
    start = (prefix / "bin" / "aotriton-explain", "--op", "attn_fwd", *EXAMPLE)
    each = [must(*start, "--arch", arch) for arch in ("sm_90", "gfx942")]
    assert must(*start, "--arch", "sm_90", "--arch", "gfx942") == "\n".join(each)
    assert must(*start, "--arch=sm_90,gfx942,sm_90") == "\n".join(each)
    both = json.loads(must(*start, "--arch=sm_90,gfx942", "--json"))
    assert [choice["arch"] for choice in both] == ["sm_90", "gfx942"]
    done = run(*start, "--arch", "sm_42,gfx942")
    assert (done.returncode, done.stdout) == (2, each[1])
    assert "unknown arch sm_42: choose from sm_90, gfx942" in done.stderr


def test_products_are_named_by_a_part_of_their_name(prefix: Path) -> None:
    """Whatever its case; of several each is shown as if alone, and says whose tables it is from. An arch is its usual
    product, and with other multiprocessors a GPU that is like it.
    """
    start = (prefix / "bin" / "aotriton-explain", "--op", "attn_fwd", *EXAMPLE)
    h200, mi300x = "NVIDIA H200", "AMD Instinct MI300X"
    each = [must(*start, "--device", name) for name in ("H200", "mi300x")]
    assert must(*start, "--device=h200", "--device", mi300x, "--device=H200") == "\n".join(each)
    assert must(*start, "--arch", "gfx942") == each[1]
    assert f"    product      {h200}\n" in each[0]
    choices = json.loads(must(*start, "--arch=sm_90", "--device=h200", "--device=mi300x", "--json"))
    assert [choice["product"] for choice in choices] == [arch_spec("sm_90").product, h200, mi300x]
    assert all(choice["exact_product"] for choice in choices)
    _, measured, predicted = choices
    assert 0 < measured["low_us"] <= measured["bin_median_us"] <= measured["high_us"]
    (line,) = re.findall("    median       (.*) us \\((.*) us to (.*) us\\), of (.*), measured on (.*)\n", each[0])
    assert [float(time) for time in line[:3]] == pytest.approx(
        [measured[name] for name in ("bin_median_us", "low_us", "high_us")], rel=1e-3
    )
    assert line[3:] == (measured["shape"], measured["measured"])
    assert (predicted["shape"], predicted["measured"], predicted["high_us"]) == ("", "", 0)
    like = (*start, "--arch=gfx942", "--multiprocessors=228")
    assert [choice["exact_product"] for choice in json.loads(must(*like, "--json"))] == [False]
    assert f"    product      a GPU like {mi300x}\n" in must(*like)


def test_options_are_spelled_with_a_space_or_an_equals_sign(prefix: Path) -> None:
    program = prefix / "bin" / "aotriton-explain"
    sizes = ("--batch", "2", "--heads", "16", "--seqlen", "1000", "--head-dim", "64")
    plain = must(program, "--op", "attn_fwd", "--arch", "sm_90", "--dtype", "bf16", *sizes, "--causal")
    joined = [f"{name}={value}" for name, value in zip(sizes[::2], sizes[1::2], strict=True)]
    for dtype in ("bf16", "bfloat16"):
        assert must(program, "--op=attn_fwd", "--arch=sm_90", f"--dtype={dtype}", *joined, "--causal=1") == plain
    full = must(program, "--op=attn_fwd", "--arch=sm_90", "--dtype=bf16", *joined)
    assert full != plain
    assert must(program, "--op=attn_fwd", "--arch=sm_90", "--dtype=bf16", *joined, "--causal=0") == full


def test_explain_says_its_version(prefix: Path) -> None:
    assert must(prefix / "bin" / "aotriton-explain", "--version").startswith("aotriton ")
    (file,) = prefix.rglob("pkgconfig/aotriton_v2.pc")
    version = next(line.split()[1] for line in file.read_text().splitlines() if line.startswith("Version:"))
    assert must(prefix / "bin" / "aotriton-explain", "--version") == f"aotriton {version}\n"


def test_explain_lists_what_the_build_has(prefix: Path) -> None:
    """Every operator's backends and kernels with their functionals and bins by arch; of one operator each functional,
    which is one that a call is told of.
    """
    program = prefix / "bin" / "aotriton-explain"
    text, listed = must(program, "--list"), json.loads(must(program, "--list", "--json"))
    assert listed["archs"] == ["sm_90", "gfx942"]
    assert first_line(text) == f"aotriton {listed['version']} for sm_90, gfx942"
    assert [one["op"] for one in listed["operators"]] == ["attn_fwd", "attn_bwd", "kv_append", "gemm"]
    for one in listed["operators"]:
        of = operator(one["op"])
        assert f"\n{of.name}\n" in text
        assert [backend["name"] for backend in one["backends"]] == [backend.name for backend in of.backends]
        for backend, description in zip(one["backends"], of.backends, strict=True):
            assert backend["needs_workspace"] == bool(description.workspace)
            kernels = {kernel.name: kernel for kernel in description.kernels}
            assert [kernel["kernel"] for kernel in backend["kernels"]] == [name for name in kernels for _ in range(2)]
            for kernel in backend["kernels"]:
                there = f"    {kernel['kernel']} {kernel['arch']}: "
                if not kernel["functionals"]:
                    assert f"    {kernel['kernel']} as above\n" in text or f"{there}not in this build\n" in text
                    continue
                keys = kernels[kernel["kernel"]].tuning_keys
                assert kernel["bins"] == {key.name: list(key.representatives) for key in keys}
                assert f"{there}{len(kernel['functionals'])} functional" in text
                of_arch = kernels[kernel["kernel"]].functionals(kernel["arch"])
                names = {str(functional): functional.godel_number for functional in of_arch}
                for row in kernel["functionals"]:
                    assert row["godel_number"] == names[row["functional"]]
                    assert list(row["cells"]) == listed["products"][kernel["arch"]]
                    cells = len(list(kernels[kernel["kernel"]].cells()))
                    assert {sum(counts.values()) for counts in row["cells"].values()} == {cells}
    one = must(program, "--list", "--op", "attn_fwd", "--arch=gfx942")
    assert "gemm" not in one
    assert "sm_90" not in one
    (choice,) = json.loads(must(program, "--op", "attn_fwd", "--arch", "gfx942", *EXAMPLE, "--json"))
    assert f"      F{choice['godel_number']} {choice['functional']}\n" in one
    for arch, products in listed["products"].items():
        assert f"\n  {arch}: {', '.join(products)}\n" in text
    other = must(program, "--list", "--op", "gemm", "--device", "h200")
    assert "  sm_90: NVIDIA H200\n" in other
    assert "H100" not in other
    assert len(json.loads(must(program, "--list", "--op=gemm", "--json"))["operators"]) == 1
    for arguments, status, message in (
        (("--arch", "sm_42"), 2, "unknown_arch: list: unknown arch sm_42: choose from sm_90, gfx942"),
        (("--op", "gemv"), 2, "unknown op gemv"),
        (("--op", "gemm", "--m", "4"), 2, "unknown option --m of --list"),
        (("--dtype", "bf16"), 2, "unknown option --dtype of --list"),
    ):
        done = run(program, "--list", *arguments)
        assert (done.returncode, done.stdout) == (status, "")
        assert message in done.stderr


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["--arch", "sm_90"], 2, "--op is missing"),
        (["--op", "gemv"], 2, "unknown op gemv: choose from attn_fwd, "),
        (["--arch", "sm_90", "--op"], 2, "--op needs a value"),
        (["--op", "--arch", "sm_90"], 2, "--op needs a value"),
        (["--op="], 2, "unknown op : choose from attn_fwd, "),
        (["--op", "attn_fwd", *EXAMPLE], 2, "--device or --arch is missing"),
        (
            ["--op", "attn_fwd", "--device", "riva", *EXAMPLE],
            2,
            "no product has 'riva' in its name: choose from NVIDIA ",
        ),
        (
            ["--op", "attn_fwd", "--device=nvidia", *EXAMPLE],
            2,
            "several products have 'nvidia' in their names: NVIDIA ",
        ),
        (["--op", "attn_fwd", "--device", *EXAMPLE], 2, "--device needs a value"),
        (["--op", "attn_fwd", "--arch=", *EXAMPLE], 2, "--arch needs a value"),
        (["--op", "attn_fwd", "--arch=sm_90,", *EXAMPLE], 2, "--arch has an empty name in 'sm_90,'"),
        (["--op", "attn_fwd", "--arch", "sm_90", "--rows", *EXAMPLE], 2, "unknown option --rows of attn_fwd"),
        (["--op", "attn_fwd", "--arch", "sm_90", "--rows=4", *EXAMPLE], 2, "unknown option --rows of attn_fwd"),
        (["--op", "attn_fwd", "--arch", "sm_90", *EXAMPLE, "--causal=yes"], 2, "--causal takes 0 or 1, not 'yes'"),
        (["--op", "attn_fwd", "--arch", "sm_90", *EXAMPLE, "--json=1"], 2, "--json takes no value"),
        (["--op", "attn_fwd", "--arch", "sm_90", *EXAMPLE, "--batch=4"], 2, "--batch is given twice"),
        (["--op", "attn_fwd", "--arch", "sm_90", *EXAMPLE, "--heads_q=4"], 2, "--heads_q is given twice"),
        (["--op", "attn_fwd", "--arch", "sm_90", *EXAMPLE[2:]], 2, "--dtype is missing"),
        (["--op", "attn_fwd", "--arch", "sm_90", *EXAMPLE, "--rows", "4"], 2, "unknown option --rows of attn_fwd"),
        (["--op", "attn_fwd", "--arch", "sm_90", *EXAMPLE, "--batch"], 2, "--batch needs a value"),
        (["--op", "attn_fwd", "--arch", "sm_90", *EXAMPLE, "--batch", "many"], 2, "--batch takes a whole number"),
        (["--op", "attn_fwd", "--arch", "sm_90", *EXAMPLE, "--batch", "-1"], 2, "that is not negative, not '-1'"),
        (["--op", "attn_fwd", "--arch", "sm_90", *EXAMPLE, "12"], 2, "unexpected 12"),
        (["--op", "attn_fwd", "--arch", "sm_90", *EXAMPLE, "--hint"], 2, "--hint needs a value"),
        (
            ["--op", "attn_fwd", "--arch", "sm_90", *EXAMPLE, "--hint=schedule=up"],
            2,
            "--hint: hints: schedule is 'up', which must be auto, bfs or dfs",
        ),
        (
            ["--op", "attn_fwd", "--arch", "sm_90", *EXAMPLE, "--hint", "backend=halves"],
            1,
            "attn_fwd: hint backend=halves: its backends are portable, hopper, hopper_slim, portable_slim",
        ),
        (["--op", "attn_fwd", "--arch", "sm_90", *EXAMPLE[:-2]], 2, "heads_k of attn_fwd is missing"),
        (["--op", "attn_fwd", "--arch", "sm_90", *EXAMPLE[:-1], "5"], 1, "a multiple of the 5 of k"),
    ],
)
def test_explain_names_what_is_wrong(prefix: Path, arguments: list[str], status: int, message: str) -> None:
    """2 where the question is not understood, 1 where the call is refused, as --help says; the message says what and
    why.
    """
    assert "Exit status: 0 where everything was answered; 1 where the call is refused" in must(
        prefix / "bin" / "aotriton-explain", "--help"
    )
    done = run(prefix / "bin" / "aotriton-explain", *arguments)
    assert (done.returncode, done.stdout) == (status, "")
    assert message in done.stderr
