"""``aotriton.service``: the machines of a cluster, which tune for a program that has no GPU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aotriton.tune.autotune.autotune import autotune
from aotriton.tune.autotune.tuner import OnEvent, run_tuner


@dataclass(frozen=True)
class Service:
    """The machines that serve the scheduler at ``address``; ``product``, or a part of its name, says which GPUs of
    several are meant. ``price`` is what a GPU costs an hour, in dollars, where its machine says no other.

    ``budget`` of a call: trials of a problem (64), seconds ("60s") or dollars ("0.80usd") of its run; with one, a space
    is searched, and measured in full without. ``on_event`` is called with each event of a run, a mapping with
    ``event``, ``seconds`` since the run began, and:

    * joined: ``worker``, and ``gpu``, its product, or ``compilers``, how many images it compiles at a time;
    * left: ``worker``;
    * best: the fastest config of a problem so far: ``problem``, ``config``, ``median_us``, after so many ``trials``;
    * failed: ``problem``, ``config``, ``status`` and ``why`` it cannot be used;
    * decided: ``problem``, ``config``, ``median_us``; both None where no config is right;
    * note: ``text``, a line for a reader;
    * ended: ``trials``, and the ``dollars`` that the machines cost.

    What ``on_event`` raises ends the run, which the same call continues.
    """

    address: str
    product: str | None = None
    price: float | None = None

    def autotune(self, kernel: Any = None, *arguments: Any, budget: str | int | None = None, **named: Any) -> Any:
        """As ``aotriton.autotune``, on these machines."""
        more = named.pop("options", ())
        return autotune(kernel, *arguments, options=[*self._options(budget), *more], **named)

    def tune(
        self,
        family: str | Path,
        *,
        budget: str | int | None = None,
        on_event: OnEvent | None = None,
        options: Sequence[str] = (),
        **wanted: Any,
    ) -> dict[str, Mapping[str, Any]]:
        """Tunes problems of a family, by its name or its folder. Returns the event ``decided`` of each, by problem.

        ``wanted`` are options of ``tune.py`` that say which ones: ``m=4096`` is --m 4096, ``dtype=("fp16", "bf16")``
        several values, ``trans_a=False`` is --no-trans-a. ``options`` are others, as they are typed. RuntimeError
        where tuning did not finish.
        """
        asked = [word for name, value in wanted.items() for word in _spelled(name, value)]
        decided: dict[str, Mapping[str, Any]] = {}

        def take(event: Mapping[str, Any]) -> None:
            if event["event"] == "decided":
                decided[event["problem"]] = event
            if on_event:
                on_event(event)

        status = run_tuner(["--family", str(family), *asked, *self._options(budget), *options], take)
        if status:
            raise RuntimeError(f"tuning {family} ended with status {status}: it says above why")
        return decided

    def _options(self, budget: str | int | None) -> list[str]:
        given = {"scheduler": self.address, "product": self.product, "price": self.price, "budget": budget}
        return [word for name, value in given.items() if value is not None for word in _spelled(name, value)]


def service(address: str, product: str | None = None, price: float | None = None) -> Service:
    """The machines that serve the scheduler at ``address``, as tls://host:8786, to tune on. See ``Service``."""
    return Service(address, product, price)


def _spelled(name: str, value: Any) -> list[str]:
    """An option of the command line, with its value or values."""
    option = f"--{name.replace('_', '-')}"
    if isinstance(value, bool):
        return [option if value else f"--no-{option[2:]}"]
    several = isinstance(value, Sequence) and not isinstance(value, str)
    return [option, *map(str, value if several else [value])]
