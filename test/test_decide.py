"""Decisions: pure functions from measurements to racers, winners and what is borrowed."""

from __future__ import annotations

import random

from aotriton.rules.binning import bin_text
from aotriton.rules.database import Outcome
from aotriton.rules.flash.forward import ATTN_FWD as KERNEL
from aotriton.rules.image import ImageSpec
from aotriton.rules.kernel import Functional
from aotriton.tune.decide import decide, race_is_due, racers, siblings, spec_of

FAST, SLOW = ({"BLOCK_M": m, "BLOCK_N": 64} for m in (128, 64))
COPTS = {"num_warps": 4, "num_stages": 2}
KEYS = KERNEL.tuning_keys


def functional(T: str = "bf16", addressing: str = "descriptor", causal: bool = False) -> Functional:
    return KERNEL.functional("sm_90", T=T, BLOCK_DMODEL=64, CAUSAL=causal, ADDRESSING=addressing)


class Log:
    """Outcomes as the database would give them."""

    def __init__(self) -> None:
        self.outcomes: list[Outcome] = []

    def add(
        self,
        where: Functional,
        cell: tuple[int, ...],
        psels: dict[str, int],
        median_us: float,
        phase: str = "sweep",
        session: int = 1,
        status: str = "ok",
        image: str | None = None,
    ) -> str:
        spec = ImageSpec.of(where, psels, COPTS)
        bin = bin_text(KERNEL.tuning_keys, cell)
        row = (len(self.outcomes), "sm_90", KERNEL.name, str(where), bin, "{}", image or spec.name, spec.config)
        self.outcomes.append(Outcome(*row, session, phase, status, median_us))
        return image or spec.name


def test_a_config_is_read_back() -> None:
    """``spec_of`` undoes ``ImageSpec.config``; a config that the rules no longer know gives None."""
    spec = ImageSpec.of(functional(), FAST, COPTS)
    assert spec_of(functional(), spec.config) == spec
    assert spec_of(functional(), "BLOCK_M=64") is None
    assert spec_of(functional(), spec.config + " maxnreg=128") is None
    assert spec_of(functional(), "nonsense") is None


def test_siblings_differ_in_type_and_addressing_only() -> None:
    """Nothing is borrowed across head dims or masks."""
    found = siblings(functional())
    assert functional() in found
    assert len(found) == 4
    assert {(one["BLOCK_DMODEL"], one["CAUSAL"]) for one in found} == {(64, False)}


def test_the_fastest_right_image_wins_its_bin() -> None:
    """Wrong and failed candidates do not win, however fast; runners-up follow with their medians."""
    log, cell = Log(), (512, 512, 8)
    log.add(functional(), cell, SLOW, 20.0)
    name = log.add(functional(), cell, FAST, 10.0)
    log.add(functional(), cell, {"BLOCK_M": 64, "BLOCK_N": 32}, 1.0, status="wrong")
    (winner,) = [w for w in decide([functional()], log.outcomes) if w.provenance == "measured"]
    assert (winner.image, winner.median_us, winner.psels) == (name, 10.0, FAST)
    assert winner.runners_up == (("BLOCK_M=64 BLOCK_N=64 num_warps=4 num_stages=2", 20.0),)
    assert (winner.bin, winner.source) == ("max_seqlen_q=512 max_seqlen_k=512 waves=8", "")


def test_the_race_decides() -> None:
    """A sweep's luck does not beat a race; an image that failed in the race is out."""
    log, cell = Log(), (512, 512, 8)
    for psels, sweep, raced in ((FAST, 10.0, 10.6), (SLOW, 10.1, 10.4)):
        log.add(functional(), cell, psels, sweep)
        name = log.add(functional(), cell, psels, raced, "race")
    log.add(functional(), cell, {"BLOCK_M": 64, "BLOCK_N": 32}, 10.3)
    (winner,) = [w for w in decide([functional()], log.outcomes) if w.provenance == "measured"]
    assert winner.image == name
    log.add(functional(), cell, SLOW, 0.0, "race", session=2, status="crashed")
    (winner,) = [w for w in decide([functional()], log.outcomes) if w.provenance == "measured"]
    assert winner.psels == FAST


def test_only_todays_images_count() -> None:
    """A measurement of an image that the kernel's source no longer gives decides nothing."""
    log = Log()
    log.add(functional(), (512, 512, 8), FAST, 10.0, image="attn_fwd_sm_90_0123456789abcdef")
    assert decide(siblings(functional()), log.outcomes) == []


def test_every_cell_of_every_sibling_gets_a_winner() -> None:
    """One measured bin is enough; each borrowed winner names its source and the image of its own functional."""
    log = Log()
    log.add(functional(), (512, 512, 8), FAST, 10.0)
    winners = decide(siblings(functional()), log.outcomes)
    assert len(winners) == 4 * len(list(KERNEL.cells()))
    assert len({(w.functional, w.bin) for w in winners}) == len(winners)
    for winner in winners:
        own = next(f for f in siblings(functional()) if str(f) == winner.functional)
        assert winner.image == ImageSpec.of(own, FAST, COPTS).name
        if winner.provenance == "borrowed":
            assert winner.source
            assert winner.median_us == 0.0
            assert winner.runners_up == ()
    assert [w.provenance for w in winners].count("measured") == 1


def source(winners: list, where: Functional, cell: tuple[int, ...]) -> str:
    bin = bin_text(KERNEL.tuning_keys, cell)
    (found,) = [w for w in winners if (w.functional, w.bin) == (str(where), bin)]
    return found.source


def test_a_bin_borrows_from_the_nearest() -> None:
    """Nearest in octaves of the keys; at the same distance the own type before the other, and the larger bin."""
    log = Log()
    log.add(functional(), (64, 64, 8), SLOW, 5.0)
    log.add(functional(), (8192, 8192, 8), FAST, 50.0)
    winners = decide(siblings(functional()), log.outcomes)
    assert source(winners, functional(), (2048, 8192, 8)) == "max_seqlen_q=8192 max_seqlen_k=8192 waves=8"
    assert source(winners, functional(), (64, 512, 1)) == "max_seqlen_q=64 max_seqlen_k=64 waves=8"
    assert source(winners, functional("fp16"), (64, 64, 8)) == "T=bf16 in the same bin"
    assert source(winners, functional("fp16"), (64, 64, 1)) == "T=bf16 max_seqlen_q=64 max_seqlen_k=64 waves=8"
    log.add(functional("fp16"), (512, 512, 8), FAST, 9.0)
    winners = decide(siblings(functional()), log.outcomes)
    assert source(winners, functional("fp16"), (64, 64, 8)) == "T=bf16 in the same bin"
    assert source(winners, functional("fp16"), (512, 512, 1)) == "max_seqlen_q=512 max_seqlen_k=512 waves=8"


def test_general_prefers_its_own_kind() -> None:
    """The general addressing borrows from its one measured bin, and from the fast addressing only where it has none."""
    log, general = Log(), functional(addressing="general")
    log.add(functional(), (8192, 8192, 8), FAST, 50.0)
    assert (
        source(decide(siblings(general), log.outcomes), general, (8192, 8192, 8))
        == "ADDRESSING=descriptor in the same bin"
    )
    log.add(general, (512, 512, 8), SLOW, 12.0)
    winners = decide(siblings(general), log.outcomes)
    assert source(winners, general, (8192, 8192, 8)) == "max_seqlen_q=512 max_seqlen_k=512 waves=8"
    assert source(winners, functional("fp16", "general"), (512, 512, 8)) == "T=bf16 in the same bin"


def test_what_would_spill_where_it_is_borrowed_makes_way() -> None:
    """The next best of the lender's cell takes its place; where none is left, the best stays, for the build to tell."""
    log, cell, other = Log(), (512, 512, 8), functional("fp16")
    for psels, median in ((FAST, 10.0), (SLOW, 20.0)):
        log.add(functional(), cell, psels, median)
    fast, slow = (ImageSpec.of(other, psels, COPTS).name for psels in (FAST, SLOW))
    for unfit, expected in (((), fast), ((fast,), slow), ((slow,), fast), ((fast, slow), fast)):
        winners = decide(siblings(functional()), log.outcomes, unfit)
        assert {w.image for w in winners if w.functional == str(other)} == {expected}
        assert {w.source for w in winners if w.functional == str(other) and w.bin == bin_text(KEYS, cell)} == {
            "T=bf16 in the same bin"
        }
        assert [w.psels for w in winners if w.provenance == "measured"] == [FAST]


def test_decisions_do_not_depend_on_the_order_of_rows() -> None:
    """The same measurements give the same winners, ties included."""
    log = Log()
    for cell in ((64, 64, 1), (512, 512, 8), (2048, 2048, 8)):
        for psels in (FAST, SLOW):
            log.add(functional(), cell, psels, 10.0)
    expected = decide(siblings(functional()), log.outcomes)
    for seed in range(5):
        random.Random(seed).shuffle(log.outcomes)
        assert decide(siblings(functional()), log.outcomes) == expected


def test_racers_are_the_close_leaders() -> None:
    """At most four within 5 % of the best sweep; nobody races alone."""
    log, cell = Log(), (512, 512, 8)
    names = [
        log.add(functional(), cell, {"BLOCK_M": m, "BLOCK_N": n}, median)
        for m, n, median in (
            (64, 32, 10.0),
            (64, 64, 10.4),
            (64, 128, 10.6),
            (128, 32, 10.1),
            (128, 64, 10.2),
            (128, 128, 10.3),
        )
    ]
    assert racers(log.outcomes) == [names[0], names[3], names[4], names[5]]
    assert racers(log.outcomes[2:3]) == []
    assert racers(log.outcomes[:1] + log.outcomes[2:3]) == []


def test_a_race_is_run_once() -> None:
    """It is due until all racers have run since their last sweep; one that failed in it does not call for another."""
    log, cell = Log(), (512, 512, 8)
    names = {log.add(functional(), cell, psels, 10.0) for psels in (FAST, SLOW)}
    assert set(race_is_due(log.outcomes)) == names
    log.add(functional(), cell, FAST, 10.0, "race")
    assert set(race_is_due(log.outcomes)) == names
    log.add(functional(), cell, SLOW, 11.0, "race")
    assert race_is_due(log.outcomes) == []
    log.add(functional(), cell, SLOW, 10.0, session=2)
    assert set(race_is_due(log.outcomes)) == names
    log.add(functional(), cell, SLOW, 0.0, "race", session=2, status="crashed")
    assert race_is_due(log.outcomes) == []
