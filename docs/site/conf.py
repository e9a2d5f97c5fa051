"""The site: the Markdown pages of the tree as they stand, and a reference that is read from sources without importing
them. ``sphinx-build -W -c docs/site . build/site`` builds it; nav.md, beside this file, is its order.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
sys.path[:0] = [str(HERE), str(ROOT)]

from aotriton import __version__  # noqa: E402
from aotriton.codegen import render, stub  # noqa: E402
from aotriton.rules.family import families  # noqa: E402

project = "aotriton_v2"
author = "the aotriton_v2 authors"
version = __version__

extensions = ["myst_parser", "sphinxcontrib.mermaid", "autoapi.extension", "headers"]
root_doc = "docs/README"
include_patterns = ["*.md", "docs/**.md", "docs/**.rst", "bench/*.md", "bench/notes/*.md"]
exclude_patterns = ["build", ".*", "docs/site"]

myst_heading_anchors = 6  # the anchors that a forge gives to headings
myst_fence_as_directive = ["mermaid"]
default_role = "code"  # `one` in a docstring

autoapi_dirs = [str(ROOT / "aotriton")]
autoapi_ignore = ["*/tritonsrc/*"]  # Triton's language is not Python to a reader of Python
autoapi_generate_api_docs = False  # the pages of docs/reference name what they show
autoapi_add_toctree_entry = False
autoapi_options = ["members", "undoc-members"]
suppress_warnings = [
    "autoapi.python_import_resolution",  # it does not see the names in `A = B = 1, 2`
    "myst.header",  # a heading may skip a level
]

html_theme = "furo"
html_title = f"{project} {version}"
html_copy_source = False


def write_stub(app: Sphinx) -> None:
    """Writes the types of the operators in the tree, as a build does."""
    signatures = [stub.values(operator) for family in families() for operator in family.operators]
    text = render.render("aotriton.pyi", operators=signatures)
    folder = ROOT / "build" / "docs"
    folder.mkdir(parents=True, exist_ok=True)
    render.write_if_changed(folder / "aotriton.pyi", text)


def add_nav(app: Sphinx, page: str, source: list[str]) -> None:
    """Adds the tables of contents to the root page, where a forge would show them as code."""
    if page == root_doc:
        source[0] += "\n" + (HERE / "nav.md").read_text()


def skip_imported(app: Sphinx, kind: str, name: str, found: Any, skip: bool, options: object) -> bool | None:
    """Whether a member is another module's, which has its own place; None leaves it to the other rules."""
    return True if getattr(found, "imported", False) else None


def as_prose(app: Sphinx, kind: str, name: str, found: object, options: object, lines: list[str]) -> None:
    """Escapes all of a docstring's signs that reStructuredText would take for markup, except backticks."""
    text = re.split(r"(`+[^`]+`+)", "\n".join(lines))
    text[::2] = [re.sub(r"[*|]|(?<=\w)_(?!\w)", r"\\\g<0>", part) for part in text[::2]]
    lines[:] = "".join(text).split("\n")


def keep_folders(app: Sphinx, page: nodes.document) -> None:
    """Leaves the text of each link to a folder of the tree, which is no page here."""
    for link in list(page.findall(addnodes.pending_xref)):
        if (
            link["reftype"] == "myst"
            and Path(app.env.doc2path(link["refdoc"])).parent.joinpath(link["reftarget"]).is_dir()
        ):
            link.replace_self(link.children)


def write_index(app: Sphinx, error: Exception | None) -> None:
    """Leads from the site's address to its root page."""
    if error is None and app.builder.format == "html":
        page = f'<!doctype html><meta http-equiv="refresh" content="0; url={root_doc}.html">\n'
        (Path(app.outdir) / "index.html").write_text(page)


def setup(app: Sphinx) -> None:
    app.connect("builder-inited", write_stub)
    app.connect("source-read", add_nav)
    app.connect("autodoc-skip-member", skip_imported)
    app.connect("autodoc-process-docstring", as_prose)
    app.connect("doctree-read", keep_folders)
    app.connect("build-finished", write_index)
