"""Claims about a build for models: which functionals and images it has, what a budget costs, and what is an error."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from ctest_environment import from_ctest
from fake_build import PRODUCTS, ROOT, of_halves, winners
from toy_database import model

from aotriton.codegen import costs, demand
from aotriton.codegen.costs import Models
from aotriton.codegen.demand import Decided, decide
from aotriton.codegen.generate import main
from aotriton.model_coverage import DRAWN, read_models
from aotriton.rules.database import TuningDatabase, Winner
from aotriton.rules.database.rows import Model
from aotriton.rules.family import family
from aotriton.rules.flash.features import ALIBI, SINKS, SOFTCAP
from aotriton.rules.image import ImageSpec
from aotriton.rules.kernel import Functional
from aotriton.rules.operators import Operator
from aotriton.rules.work import TERMS

ATTENTION = family("flash").operators
FORWARD = ATTENTION[0].lead
SM_90 = {"sm_90": PRODUCTS["sm_90"][:1]}
LLAMA = {"model_type": "llama", "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 64,
         "num_hidden_layers": 2}  # fmt: skip
GPT2 = {"model_type": "gpt2", "n_head": 4, "n_embd": 512, "n_layer": 2}
GENERATING = {"config": LLAMA, "for": "generating", "batch": [1, 16], "context": [64, 8192]}
TRAINING = {"config": GPT2, "for": "training", "dtypes": ["fp16"], "batch": 4, "context": [128, 1024]}


def written(folder: Path, *entries: Any, **top: Any) -> Path:
    path = folder / "models.json"
    path.write_text(json.dumps({"models": list(entries), **top}))
    return path


@pytest.fixture(scope="module")
def rows() -> list[Winner]:
    """Made-up winners of sm_90's usual product, of head dims 64 and 128."""
    product = SM_90["sm_90"][0].name
    words = ("BLOCK_DMODEL=64", "BLOCK_DMODEL=128")
    found = [row for operator in ATTENTION for row in winners(operator) if row.product == product]
    return [row for row in found if not row.functional or any(word in row.functional.split() for word in words)]


def made(path: Path, rows: Sequence[Winner], models: Models | None = None, size: int | None = 1000) -> Decided:
    return decide(ATTENTION, SM_90, read_models(path), rows, {}, None, models or Models(), lambda name: size)


def functionals(decided: Decided) -> dict[str, list[str]]:
    """The functionals of each kernel that has any."""
    tables = decided.plan.tables
    return {one.kernel.name: [str(each.functional) for each in one.functionals] for one in tables if one.functionals}


def images(decided: Decided) -> int:
    return sum(len(table.images) for table in decided.plan.tables)


def test_two_models_have_their_functionals_and_no_others(tmp_path: Path, rows: list[Winner]) -> None:
    """A prefill is causal and the token behind it is not; training in another type and head dim adds a backward. A
    window adds a level.
    """
    prefill, decode, forward = (
        f"T={dtype} BLOCK_DMODEL={width} CAUSAL={causal} ADDRESSING=descriptor"
        for dtype, width, causal in (("bf16", 64, True), ("bf16", 64, False), ("fp16", 128, True))
    )
    alone = functionals(made(written(tmp_path, GENERATING), rows))
    assert set(alone["attn_fwd"]) == {prefill, decode}
    words = {*prefill.split(), *decode.split()}
    assert {word for each in alone.values() for one in each for word in one.split()} == words
    assert not any("bwd" in name for name in alone)
    both = functionals(made(written(tmp_path, GENERATING, TRAINING), rows))
    assert set(both["attn_fwd"]) == {prefill, decode, forward}
    assert (both["attn_bwd_dq"], both["attn_bwd_dk_dv"]) == ([forward], [forward])
    assert both["attn_bwd_dsinks"] == [""]
    window = GENERATING | {"config": LLAMA | {"sliding_window": 1024}}
    general = "LEVEL=4 T=bf16 BLOCK_DMODEL=64 CAUSAL=False ADDRESSING=descriptor"
    assert set(functionals(made(written(tmp_path, window), rows))["attn_fwd"]) == {prefill, decode, general}


def test_every_call_is_served_by_what_is_left(tmp_path: Path, rows: list[Winner]) -> None:
    """Every functional has an image for each of its cells, among those that are shipped; every image is of a
    functional; the report counts them.
    """
    found = made(written(tmp_path, GENERATING, TRAINING, megabytes=1), rows)
    for table in found.plan.tables:
        for one in table.functionals:
            assert {cell.image for cell in one.cells} <= set(one.images)
            assert [len(cells) for cells in one.products] == [table.kernel.cell_count]
    count = sum(len(each) for each in functionals(found).values())
    told = f"    {images(found)} images, {images(found) / 1000:.3f} MB of at most 1 MB, {count} functionals\n"
    assert told in found.report
    assert found.report.startswith("models.json: 2 models, ")
    assert "estimate" not in found.report


STEPS, ONE = TERMS.index("steps of the rounds"), TERMS.index("one")


@pytest.fixture
def models(monkeypatch: pytest.MonkeyPatch) -> Models:
    """Of the two functionals that generating reaches, each with four images: the longer one takes to begin, the faster
    are its steps. All save enough, the database says.
    """
    monkeypatch.setattr(costs, "_name", costs._name.__wrapped__)
    found: list[tuple[ImageSpec, Model]] = []
    for causal in (False, True):
        own: dict[str, Any] = {"T": "bf16", "BLOCK_DMODEL": 64, "CAUSAL": causal, "ADDRESSING": "descriptor"}
        for place, spec in enumerate(specs(FORWARD.functional("sm_90", **own))):
            coefficients = [0.0] * len(TERMS)
            coefficients[ONE], coefficients[STEPS] = 2.0 + 10 * place, 2.0**-place
            given = {"operator": "attn_fwd", "coefficients": tuple(coefficients), "saves": 0.1}
            found.append((spec, model(spec, SM_90["sm_90"][0].name, **given)))
    return Models([one for _, one in found], {spec.name: spec.config for spec, _ in found}, SM_90)


def specs(functional: Functional) -> list[ImageSpec]:
    tunables = {name: values[-1] for name, values in of_halves(FORWARD, "cuda").items()}
    compile_options = FORWARD.compile_option_values("cuda")
    every = [(warps, stages) for warps in compile_options["num_warps"] for stages in compile_options["num_stages"]][:4]
    return [ImageSpec.of(functional, tunables, {"num_warps": w, "num_stages": s}) for w, s in every]


def regret(decided: Decided) -> tuple[float, float]:
    found = re.search(r"regret against default coverage: (\S+) % in the mean, (\S+) % at most", decided.report)
    assert found
    return float(found[1]), float(found[2])


def test_a_budget_costs_time(tmp_path: Path, rows: list[Winner], models: Models) -> None:
    """Half of the megabytes have half of the images, and calls take longer; one image for each functional is the
    least. What only other calls need is left out without a budget, too.
    """
    whole = made(written(tmp_path, GENERATING), rows, models)
    assert (images(whole), regret(whole)) == (7, (0.0, 0.0))
    half = made(written(tmp_path, GENERATING, megabytes=3.5e-3), rows, models)
    assert images(half) == 3
    assert 0 < regret(half)[0] < regret(half)[1]
    assert re.search(r"at most: models\[0\] \(llama\): (prefill|decode), bf16 batch=\d+ seqlen_q=", half.report)
    least = made(written(tmp_path, GENERATING, megabytes=2e-3), rows, models)
    assert [len(one.images) for table in least.plan.tables for one in table.functionals] == [1, 1]
    assert regret(least)[0] > regret(half)[0]
    short = made(written(tmp_path, GENERATING | {"context": [64, 80]}), rows, models)
    assert images(short) < images(whole)
    assert regret(short)[1] < 0.1


def test_a_budget_drops_what_is_missed_least(tmp_path: Path, rows: list[Winner], models: Models) -> None:
    """Of long calls the image with the fastest steps is left."""
    path = written(tmp_path, GENERATING | {"context": [4096, 8192], "batch": [8, 16]}, megabytes=2e-3)
    kept = {name for table in made(path, rows, models).plan.tables for name in table.images}
    causal = FORWARD.functional("sm_90", T="bf16", BLOCK_DMODEL=64, CAUSAL=True, ADDRESSING="descriptor")
    assert [one.name in kept for one in specs(causal)] == [False, False, False, True]  # the fastest steps


def test_sizes_that_nobody_knows_are_estimates(tmp_path: Path, rows: list[Winner], models: Models) -> None:
    """The report counts them; the known ones of the kernel say how large they are."""
    found = made(written(tmp_path, GENERATING), rows, models, size=None)
    assert f"{7 * demand.TYPICAL / 1e6:.3f} MB, 2 functionals" in found.report
    assert "of 7 images the size is an estimate, as nobody has compiled it" in found.report


ENCODER = {"model_type": "bert", "num_attention_heads": 8, "hidden_size": 512, "num_hidden_layers": 1}


@pytest.mark.parametrize(
    ("config", "step", "scalars"),
    [
        (LLAMA, "prefill", (0, 1, 0, 0, 0)),
        (LLAMA, "decode", (0, 0, 0, 0, 0)),
        (LLAMA | {"sliding_window": 128}, "prefill", (2, 0, -127, 0, 0)),
        (LLAMA | {"sliding_window": 128}, "decode", (2, 0, 1999 - 127, 1999, 0)),
        (LLAMA | {"attn_logit_softcapping": 9.0}, "prefill", (4, 0, -2000, 0, SOFTCAP.bit)),
        (LLAMA | {"model_type": "bloom"}, "prefill", (5, 0, -2000, 0, ALIBI.bit)),
        (LLAMA | {"model_type": "gpt_oss"}, "decode", (4, 0, -1, 2000, SINKS.bit)),
        (LLAMA | {"head_dim": 60}, "prefill", (4, 0, -2000, 0, 0)),
        (ENCODER | {"sliding_window": 128}, "forward", (2, 0, -64, 64, 0)),
    ],
)
def test_checks_make_levels_and_bands(
    tmp_path: Path, config: dict[str, Any], step: str, scalars: tuple[int, ...]
) -> None:
    """Level, causal, the ends of the band and features of 2,000 tokens, as v2src/flash/band.cc makes them."""
    calls = read_models(written(tmp_path, GENERATING | {"config": config, "batch": 1, "context": 2000})).calls
    (found,) = (call for call in calls if call.call.step == step)
    assert tuple(found.scalars[name] for name in ("level", "causal", "lo", "hi", "features")) == scalars


@pytest.mark.parametrize(
    ("top", "entry", "message"),
    [
        ({"megabyte": 3}, {}, r"models.json: unknown key 'megabyte': a file of models has models, archs, megabytes"),
        ({"megabytes": -1}, {}, r"models.json: megabytes must be a positive number, not -1"),
        ({"archs": ["sm_80"]}, {}, r"models.json: archs must be a list of sm_90, gfx942, not \['sm_80'\]"),
        ({}, {"size": 3}, r"models.json: models\[1\]: unknown key 'size': an entry has config, for, dtypes, batch"),
        ({}, {"config": "nowhere"}, r"models.json: models\[1\]: \S+/nowhere: .*No such file"),
        ({}, {"config": 3}, r"models\[1\]: config must be the path of a config.json, from the folder of this file"),
        ({}, {"config": LLAMA | {"is_encoder_decoder": True}}, r"models\[1\]: llama has an encoder and a decoder"),
        ({}, {"config": {"model_type": "x"}}, r"models\[1\]: x: the config has no num_attention_heads"),
        ({}, {"for": "fun"}, r"models\[1\]: for must be generating, training, both, not 'fun'"),
        ({}, {"for": ["both"]}, r"models\[1\]: for must be generating, training, both, not \['both'\]"),
        ({}, {"dtypes": ["int8"]}, r"models\[1\]: dtypes must be a list of fp16, bf16, fp32, not \['int8'\]"),
        ({}, {"batch": [8, 1]}, r"models\[1\]: batch must be a positive number, or a list of the least and the most"),
        ({}, {"context": None}, r"models\[1\]: context must be a positive number, .* not None"),
    ],
)
def test_bad_input_is_named(tmp_path: Path, top: dict[str, Any], entry: dict[str, Any], message: str) -> None:
    """With the file, the entry and what it must be."""
    with pytest.raises(ValueError, match=message):
        read_models(written(tmp_path, GENERATING, GENERATING | entry, **top))


def test_the_page_has_a_file_that_is_read(tmp_path: Path) -> None:
    """docs/packaging.md's example, with the config that it names; 24 random pairs are drawn, as the page says."""
    page = (ROOT / "docs" / "packaging.md").read_text()
    (block,) = re.findall(r"^```json\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    (tmp_path / "models.json").write_text(block)
    (tmp_path / "llama").mkdir()
    (tmp_path / "llama" / "config.json").write_text(json.dumps(LLAMA))
    found = read_models(tmp_path / "models.json")
    assert (found.archs, found.budget, found.configs) == (("sm_90",), 200_000, ("llama/config.json",))
    assert {call.call.step for call in found.calls} == {"prefill", "decode", "forward", "backward"}
    pairs = {(call.sizes["batch"], call.sizes["seqlen_k"]) for call in found.calls}
    assert {(1, 128), (1, 32768), (64, 128), (64, 32768)} < pairs
    assert len(pairs) == 4 + DRAWN
    assert f"{DRAWN} random pairs" in page


def test_a_file_without_models_is_named(tmp_path: Path) -> None:
    """One that is no JSON, is no object or has no entries."""
    path = tmp_path / "models.json"
    for text, message in (
        ("[", "Expecting value"),
        ("[]", "a file of models must be an object of JSON, not list"),
        ('{"models": []}', "models must be a list with an entry for each model"),
        ('{"models": [3]}', r"models\[0\]: an entry must be an object of JSON, not int"),
    ):
        path.write_text(text)
        with pytest.raises(ValueError, match=f"models.json: .*{message}" if "models[" not in message else message):
            read_models(path)


def test_what_can_not_be_built_is_an_error(tmp_path: Path, rows: list[Winner], models: Models) -> None:
    """A budget below what the fewest images take; models of which nothing is served, with the reason."""
    with pytest.raises(
        ValueError,
        match=r"models.json: megabytes is 0.001, and the fewest images that serve all of its calls, 2, take 0.002 MB:"
        r" raise megabytes, or ask for fewer models, dtypes or archs",
    ):
        made(written(tmp_path, GENERATING, megabytes=1e-3), rows, models)
    large = GENERATING | {"config": LLAMA | {"head_dim": 520}}
    with pytest.raises(ValueError, match=r"nothing serves any call of its models: .* from 1 to 512"):
        made(written(tmp_path, large), rows)
    chunked = GENERATING | {"config": LLAMA | {"layer_types": ["chunked_attention"]}}
    found = made(written(tmp_path, GENERATING, chunked), rows)
    assert re.search(r"not served: models\[1\] \(llama\): decode, bf16, \d+ calls: keys are in chunks", found.report)


@pytest.fixture
def generated(tmp_path: Path, rows: list[Winner]) -> list[str]:
    """The options of a run of the generator for generating, over a database with made-up winners."""
    reached = ("attn_fwd", "attn_fwd_hopper")
    with TuningDatabase(tmp_path / "tuning.sqlite3") as opened:
        opened.put_winners([row for row in rows if row.kernel in reached and row.provenance == "measured"])
    (tmp_path / "llama.json").write_text(json.dumps(LLAMA))
    path = written(tmp_path, GENERATING | {"config": "llama.json"})
    given = {"database": tmp_path / "tuning.sqlite3", "arch": "sm_90", "coverage": path, "out": tmp_path / "out"}
    return [f"--{name}={value}" for name, value in given.items()]


def test_the_generator_writes_a_build_for_models(
    tmp_path: Path, generated: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """It prints what the file coverage.txt says, and lists configs for the build system. A run without news prints the
    same; another config is news.
    """
    assert main(generated) == 0
    out, told = tmp_path / "out", capsys.readouterr().out
    report = (out / "coverage.txt").read_text()
    assert told.startswith(report)
    assert report.startswith("models.json: 1 model, ")
    packs = json.loads((out / "images.json").read_text())["packs"]
    assert f"    {sum(len(pack['images']) for pack in packs)} images, " in report
    assert {pack["kernel"] for pack in packs} <= {"attn_fwd", "attn_fwd_hopper"}
    assert '"llama.json"' in (out / "sources.cmake").read_text()
    assert main(generated) == 0
    again = capsys.readouterr().out
    assert again == re.sub(r"\d+ files written", "0 files written", told)
    (tmp_path / "llama.json").write_text(json.dumps(LLAMA | {"head_dim": 128}))
    before = (out / "attn_fwd.sm_90.lut.cc").read_text()
    assert main(generated) == 0
    after = (out / "attn_fwd.sm_90.lut.cc").read_text()
    assert ["BLOCK_DMODEL=64" in text for text in (before, after)] == [True, False]
    assert main([*generated, "--coverage=none"]) == 0
    assert not (out / "coverage.txt").exists()


def test_a_kernel_without_functionals_has_an_empty_table(tmp_path: Path, generated: list[str]) -> None:
    """So a call of it is outside of the coverage, not of the archs; and what is generated compiles."""
    assert main(generated) == 0
    out = tmp_path / "out"
    for operator in all_operators():
        assert f"{operator.lead.name}_sm_90_table" in (out / f"{operator.name}.operator.cc").read_text()
    backward = out / "attn_bwd_dq.sm_90.lut.cc"
    assert "extern Image" not in backward.read_text()
    folders = [f"-I{ROOT / 'v2src'}", f"-I{ROOT / 'v2src' / 'include'}", f"-I{out}"]
    subprocess.run([from_ctest("CXX"), "-std=c++20", "-fsyntax-only", *folders, backward], check=True)


def all_operators() -> list[Operator]:
    return [*ATTENTION, *family("gemm").operators]


def test_the_generator_names_what_a_build_can_not_have(
    tmp_path: Path, generated: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Archs of the file that the build is not for, a family of one's own, and a word that is no coverage."""
    written(tmp_path, GENERATING, archs=["gfx942"])
    assert main(generated) == 1
    assert "models.json: archs has gfx942, and the build is for sm_90" in capsys.readouterr().err
    assert main([*generated, "--alone"]) == 1
    assert "a family of your own has a coverage by name" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main([*generated, "--coverage=nowhere.json"])
    assert "'nowhere.json' is none of none, small, default, full, and no file of models" in capsys.readouterr().err
