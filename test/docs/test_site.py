"""The documents as pages of a site, and as files on a forge: all of them are reached, and no link leads nowhere."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SITE = ROOT / "docs" / "site"
FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\((?!https?:)([^)\s#]*)(?:#([^)\s]+))?\)")
FILE = re.compile(r"`([\w/.-]+\.(?:py|cc|h|j2|cmake))`")
NOT_OURS = {"rms_norm.h", "flash.shared.h", "layer.cc", "test_transformers.py"}  # generated, a reader's, torch's


def pages() -> list[Path]:
    """All Markdown files that are documents."""
    folders = ("docs", "bench", "examples")
    found = [*ROOT.glob("*.md"), *(path for folder in folders for path in (ROOT / folder).rglob("*.md"))]
    return sorted(path for path in found if SITE not in path.parents)


def anchors(page: Path) -> set[str]:
    """Those that a forge gives to the page's headings."""
    names = []
    for heading in re.findall(r"^#+ (.+)$", FENCE.sub("", page.read_text()), re.MULTILINE):
        text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).strip().lower()
        names.append(re.sub(r"[^\w\- ]", "", text).replace(" ", "-"))
    before = [names[:number].count(name) for number, name in enumerate(names)]
    return {f"{name}-{count}" if count else name for name, count in zip(names, before, strict=True)}


def test_no_link_of_a_document_leads_nowhere() -> None:
    """Relative links of every Markdown file lead to a file or folder that is there, and their anchors to a heading."""
    wrong, checked = [], 0
    for page in pages():
        for target, anchor in LINK.findall(FENCE.sub("", page.read_text())):
            place = page.parent / target if target else page
            checked += 1
            if not place.exists() or (anchor and (place.suffix != ".md" or anchor not in anchors(place))):
                wrong.append(f"{page.relative_to(ROOT)}: {target}#{anchor}")
    assert wrong == []
    assert checked > 150


def test_files_that_documents_name_are_there() -> None:
    """A name of a file of code between backquotes is the end of a path in the tree. Only in documents that say what is,
    not in CHANGELOG and the lab book, which say what was.
    """
    folders = ("aotriton", "v2src", "cmake", "test", "bench", "docs", "examples")
    files = [path.relative_to(ROOT).as_posix() for one in folders for path in (ROOT / one).rglob("*.*")]
    endings = {path[at:] for path in files for at in (0, *(found.end() for found in re.finditer("/", path)))}
    named = {(page, name) for page in (ROOT / "docs").rglob("*.md") for name in FILE.findall(page.read_text())}
    wrong = {f"{page.relative_to(ROOT)}: {name}" for page, name in named if name not in endings | NOT_OURS}
    assert wrong == set()
    assert len(named) > 250


def test_the_nav_has_every_page_once() -> None:
    """Each document is named once in docs/site/nav.md, but for the page that has the nav, and nothing else is."""
    named = re.findall(r"^(?:.* <)?/([\w/-]+)>?$", (SITE / "nav.md").read_text(), re.MULTILINE)
    reference = [path.relative_to(ROOT) for path in (ROOT / "docs" / "reference").glob("*.rst")]
    shown = [path.relative_to(ROOT) for path in pages() if "examples" not in path.parts]
    assert sorted(named) == sorted(
        str(path.with_suffix("")) for path in (*shown, *reference) if str(path) != "docs/README.md"
    )


def test_indexes_for_readers_of_the_files_are_whole() -> None:
    """docs/README.md links to each page of docs/, and docs/architecture.md to each of docs/architecture/."""
    for index, folder in (("README.md", "."), ("architecture.md", "architecture")):
        text = (ROOT / "docs" / index).read_text()
        there = {path for path in (ROOT / "docs" / folder).glob("*.md") if path.name != index}
        linked = {(ROOT / "docs" / target).resolve() for target, _ in LINK.findall(text)}
        assert there - linked == set(), index


def test_the_reference_names_what_is_there() -> None:
    """Each module, class and function that a page of docs/reference shows is in the package's source."""
    text = "".join(path.read_text() for path in (ROOT / "docs" / "reference").glob("*.rst"))
    shown = re.findall(r"^\.\. autoapi(module|class|function):: ([\w.]+)$", text, re.MULTILINE)
    assert len(shown) > 10
    for kind, name in shown:
        module, _, member = (name, "", "") if kind == "module" else name.rpartition(".")
        stem = ROOT / module.replace(".", "/")
        file = next(path for path in (stem.with_suffix(".py"), stem / "__init__.py") if path.is_file())
        defined = [getattr(node, "name", "") for node in ast.parse(file.read_text()).body]
        assert not member or member in defined, name
    for header in re.findall(r"^\.\. header:: (.+)$", text, re.MULTILINE):
        assert (ROOT / header).is_file(), header
    headers = {path.name for path in (ROOT / "v2src" / "include" / "aotriton").glob("*.h")}
    assert headers == {Path(header).name for header in re.findall(r"^\.\. header:: (.+)$", text, re.MULTILINE)}


def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    """Sphinx builds it strictly, and the C reference has an anchor for each function that c.h declares."""
    for module in ("sphinx", "myst_parser", "furo", "autoapi", "sphinxcontrib.mermaid"):
        pytest.importorskip(module, reason="the extra `docs` is not installed")
    command = ["-m", "sphinx", "-W", "--keep-going", "-q", "-c", str(SITE), str(ROOT), str(tmp_path)]
    done = subprocess.run([sys.executable, *command], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    page = (tmp_path / "docs" / "reference" / "c.html").read_text()
    header = (ROOT / "v2src" / "include" / "aotriton" / "c.h").read_text()
    functions = re.findall(r"^AOTRITON_API .*?(\w+)\(", header, re.MULTILINE)
    assert len(functions) > 20
    assert [name for name in functions if f'id="{name}"' not in page] == []
    assert (tmp_path / "index.html").is_file()
