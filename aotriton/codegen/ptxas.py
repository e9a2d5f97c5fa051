"""ptxas's warnings about an image."""

from __future__ import annotations

import re

# "Potential Performance Loss: wgmma.mma_async instructions are serialized", or that a wait is injected, and why.
SERIALISED = re.compile(r"\bC751\d\b")


def serialised(said: str) -> list[str]:
    """The codes of the messages in ``said`` that ptxas serialises matrix products; empty if there are none."""
    return sorted(set(SERIALISED.findall(said)))
