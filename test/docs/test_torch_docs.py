"""docs/pytorch.md and the README's paragraph: their Python runs as it stands."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="torch is not installed: the preset torch has it")
pytest.importorskip(
    "aotriton.torch", reason="libaotriton_torch.so is not built: the preset torch does", exc_type=ImportError
)

ROOT = Path(__file__).resolve().parents[2]


def snippets(path: Path, about: str) -> list[str]:
    """The page's blocks of Python that have the word in them."""
    return [block for block in re.findall(r"```python\n(.*?)```", path.read_text(), re.DOTALL) if about in block]


def test_the_page_runs() -> None:
    """Its blocks run one after the other, as a reader types them in."""
    blocks = snippets(ROOT / "docs" / "pytorch.md", "")
    assert len(blocks) == 13
    names: dict[str, Any] = {}
    for block in blocks:  # under the name of no file: torch.compile would read the page as if it were Python
        exec(compile(block, "<docs/pytorch.md>", "exec"), names)
    assert names["q"].grad.abs().sum() > 0
    assert "schedule=dfs workspace_limit=1048576" in names["aotriton"].torch.stats()["hints"]["attn_fwd"]
    assert names["hidden"].shape == (64, 48)


def test_the_readme_runs() -> None:
    """So does what the README says of torch's attention."""
    (block,) = snippets(ROOT / "README.md", "aotriton.torch")
    names: dict[str, Any] = {}
    exec(compile(block, "<README.md>", "exec"), names)
    assert "forward" in names["aotriton"].torch.stats()
