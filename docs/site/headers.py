"""The directive ``header``: a public C or C++ header as sections, one for each block of declarations.

Our headers are written to be read: a comment, the declarations that it describes, an empty line. Tools such as doxygen
read only comments that are marked for them, so this extension splits a header at its empty lines instead.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby, takewhile
from pathlib import Path

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

COMMENT = re.compile(r"/\*.*?\*/|//[^\n]*", re.DOTALL)
RULE = re.compile(r"/\* -{4} (.+?) -+ \*/")  # begins a part of c.h
SCAFFOLD = re.compile(
    r'#(include|pragma|if|ifdef|ifndef|endif)\b.*|#define \w+_H|extern "C" \{|(inline )?namespace abi\d+ \{'
    r"|namespace aotriton::v2 \{|\} *"
)
NAME = re.compile(
    r"^(?:#define (\w+)|typedef \w+ (\w+);|typedef struct (\w+) \w+;|\} (\w+);|using (\w+) = .*"
    r"|inline constexpr \w+ (\w+) =|(?:struct|class|enum class|enum class \[\[nodiscard\]\]) (\w+) "
    r"|(?:AOTRITON_API|inline) [^(\n]*?(\w+)\("
    r"|(AOTRITON_OPERATOR\(\w+\)))",
    re.MULTILINE,
)
CONSTANT = re.compile(r"\bAOTRITON_[A-Z0-9_]+\b")
SPAN = re.compile(r"`(.+?)`|\b((?:aotriton|AOTRITON)_\w*[a-z0-9A-Z])\b")


@dataclass(frozen=True)
class Block:
    """Declarations that stand together, the comment above them, and the part of the header that they are in."""

    part: str
    comment: str
    code: str

    @property
    def titles(self) -> list[str]:
        """The names of what is declared; an enum without a name has that of its first constant."""
        bare = COMMENT.sub("", self.code)
        return [next(filter(None, found)) for found in NAME.findall(bare)] or CONSTANT.findall(bare)[:1]

    @property
    def names(self) -> list[str]:
        """All names that a link may lead to: those of the declarations and of constants."""
        constants = CONSTANT.findall(COMMENT.sub("", self.code)) if re.search(r"^enum \{", self.code, re.M) else []
        return list(dict.fromkeys(self.titles + constants))


def blocks_of(header: str) -> Iterator[Block]:
    """The header's blocks in order. One that has no code is a comment about the whole header."""
    part = ""
    hidden = COMMENT.sub(lambda found: re.sub(r"[^\n]", "/", found[0]), header)
    depth, numbered = 0, []  # an empty line outside of braces ends a block
    block = 0
    for line, bare in zip(header.splitlines(), hidden.splitlines(), strict=True):
        if depth == 0 and (not line or SCAFFOLD.fullmatch(bare.rstrip("/"))):
            block += not line
            continue
        depth += bare.count("{") - bare.count("}")
        numbered.append((block, line, not bare.strip(" /")))
    for _, lines in groupby(numbered, key=lambda one: one[0]):
        block_lines = list(lines)
        comment = [line for _, line, _ in takewhile(lambda one: one[2], block_lines)]
        code = [line for _, line, _ in block_lines[len(comment) :]]
        if not code and (found := RULE.fullmatch(comment[0])):
            part = found[1]
        elif not code or not code[0].startswith("namespace detail"):
            yield Block(part, _text("\n".join(comment)), "\n".join(code))


def _text(comment: str) -> str:
    """The comment without its marks."""
    return re.sub(r"^ ?(?:/\*|\*/|\*|//) ?|\s*\*/$", "", comment, flags=re.MULTILINE).strip("\n")


class Header(SphinxDirective):
    """``.. header:: file``, relative to the repository's root."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        path = Path(self.env.srcdir) / self.arguments[0]
        self.env.note_dependency(str(path))
        file = _section(path.name, [path.name])
        file += nodes.paragraph("", "", nodes.literal(text=f"#include <aotriton/{path.name}>"))
        blocks = list(blocks_of(path.read_text()))
        known = {name for block in blocks for name in block.names}
        for part, members in groupby(blocks, key=lambda block: block.part):
            inside = _section(part, [f"{path.name}-{part}"]) if part else file
            for block in members:
                inside += self.rendered(block, known, path.suffix == ".h" and path.name != "c.h")
            if part:
                file += inside
        return [file]

    def rendered(self, block: Block, known: set[str], cpp: bool) -> list[nodes.Node]:
        parts = list(_prose(block.comment, known))
        if not block.code:
            return parts
        code = nodes.literal_block(block.code, block.code, language="cpp" if cpp else "c")
        if not block.titles:
            return [*parts, code]
        section = _section(", ".join(block.titles), block.names)
        section += [*parts, code]
        return [section]


def _section(title: str, names: list[str]) -> nodes.section:
    """A section that a link reaches by each of the names."""
    section = nodes.section(ids=[nodes.make_id(name) if " " in name else name for name in names])
    section += nodes.title(title, title)
    return section


def _prose(comment: str, known: set[str]) -> Iterator[nodes.Node]:
    """The comment's paragraphs; a name that the header declares is a link, and an indented one is code."""
    for paragraph in re.split(r"\n\s*\n", comment):
        if paragraph.startswith("  "):
            yield nodes.literal_block(paragraph, re.sub(r"^  ", "", paragraph, flags=re.M), language="text")
            continue
        node, after = nodes.paragraph(), 0
        for found in SPAN.finditer(paragraph):
            node += nodes.Text(paragraph[after : found.start()])
            text, after = found[1] or found[2], found.end()
            literal = nodes.literal(text=text)
            node += nodes.reference("", "", literal, refid=text, internal=True) if text in known else literal
        node += nodes.Text(paragraph[after:])
        if node.astext().strip():
            yield node


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_directive("header", Header)
    return {"parallel_read_safe": True}
