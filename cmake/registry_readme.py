"""README.md as a package registry shows it, where no other file of the project is: a provider of scikit-build-core.

A link to a file becomes the file's name in text, a picture goes away, and a line says where those files are.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

CODE = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)
PICTURE = re.compile(r"^!\[[^\]]*\]\((?!https?:)[^)]*\)\n*", re.MULTILINE)
LINK = re.compile(r"(?P<before>\(?)\[(?P<text>[^\]]+)\]\((?!https?:)(?P<target>[^)]+)\)(?P<after>\)?)")
WHERE = "Files that are named here, such as `docs/cpp.md`, are in the source distribution.\n\n"


def text_of(readme: str) -> str:
    """Without a link or a picture that is relative to the file."""
    parts = CODE.split(readme)
    parts[::2] = [LINK.sub(_named, PICTURE.sub("", part)) for part in parts[::2]]
    title, _, rest = "".join(parts).partition("\n\n")
    return f"{title}\n\n{WHERE}{rest}"


def dynamic_metadata(settings: Mapping[str, object], project: Mapping[str, object]) -> dict[str, dict[str, str]]:
    """What the build backend asks for: ``readme``, of the project whose pyproject.toml names this file."""
    if settings:
        raise ValueError(f"{project['name']}: readme takes no settings, not {dict(settings)}")
    readme = Path(__file__).resolve().parent.parent / "README.md"
    return {"readme": {"content-type": "text/markdown", "text": text_of(readme.read_text(encoding="utf-8"))}}


def _named(link: re.Match[str]) -> str:
    text, target = link["text"], link["target"].partition("#")[0]
    if not target or text.strip("`") == target or target.startswith("bench/results/"):  # results are in no distribution
        named = text
    else:
        named = f"{text}: `{target}`" if link["before"] and link["after"] else f"{text} (`{target}`)"
    return link["before"] + named + link["after"]
