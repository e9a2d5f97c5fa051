"""What ptxas tells of an image beside its numbers."""

from __future__ import annotations

import re

# "Potential Performance Loss: wgmma.mma_async instructions are serialized", or that a wait is injected, and why.
SERIALISED = re.compile(r"\bC751\d\b")


def serialised(said: str) -> list[str]:
    """The codes of its messages that products of warp groups wait for each other; none where they do not."""
    return sorted(set(SERIALISED.findall(said)))
