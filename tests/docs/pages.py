"""What tests of the documentation know of its pages: blocks, links, sentences. Needs no Sphinx."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
RUN = ("python", "ipython", "shell")  # languages of blocks that are run
_FENCE = re.compile(
    r"^(?:<!-- (?P<mark>[^\n]*?) -->\n)?```(?P<language>[\w{}-]*)\n(?P<body>.*?)^```$", re.DOTALL | re.MULTILINE
)


@dataclass(frozen=True)
class Block:
    """A fenced block: where it begins, its language, the mark above it ("not run: why", "file: name")."""

    line: int
    language: str
    body: str
    mark: str = ""

    @property
    def reason(self) -> str:
        """Why it is not run."""
        return self.mark.removeprefix("not run:").strip() if self.mark.startswith("not run:") else ""

    @property
    def file(self) -> str:
        """The file that it is the content of."""
        return self.mark.removeprefix("file:").strip() if self.mark.startswith("file:") else ""


def blocks(text: str) -> list[Block]:
    return [
        Block(text.count("\n", 0, found.start()) + 1, found["language"], found["body"], found["mark"] or "")
        for found in _FENCE.finditer(text)
    ]


def outputs(text: str) -> dict[int, str]:
    """The text block right below each block, by the line of the block: its expected output."""
    found = blocks(text)
    return {
        block.line: after.body for block, after in itertools.pairwise(found)
        if after.language == "text" and not after.mark and after.line == block.line + block.body.count("\n") + bool(block.mark) + 3
    }


def pages() -> list[Path]:
    """Every page of the site but those that are made when it is built."""
    return [path for path in sorted(DOCS.rglob("*.md")) if path.parent.name != "objects"] + sorted((DOCS / "tutorials").glob("*.ipynb"))


def read(path: Path) -> str:
    """The Markdown of a page; of a notebook its texts."""
    text = path.read_text(encoding="utf-8")
    if path.suffix != ".ipynb":
        return text
    cells = json.loads(text)["cells"]
    return "\n\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")


def without_code(text: str) -> str:
    text = re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r"<!--.*?-->", "", text, flags=re.DOTALL)
    return re.sub(r"`[^`\n]*`", "`x`", text)


def links(path: Path) -> Iterator[str]:
    """Where a page leads within the repository: links, pictures, the entries of its tables of contents."""
    text = read(path)
    for tree in re.findall(r"^```\{toctree\}\n(.*?)^```$", text, flags=re.DOTALL | re.MULTILINE):
        for entry in tree.splitlines():
            if entry.strip() and not entry.startswith(":"):
                yield entry.strip()
    for target in re.findall(r"\]\(([^)\s]+)\)", without_code(text)):
        if not re.match(r"[a-z]+:", target):
            yield target


def target(path: Path, link: str) -> Path | None:
    """The file that a link of a page means; None where there is none."""
    name = link.partition("#")[0]
    found = path if not name else (path.parent / name).resolve()
    if path.is_relative_to(DOCS) and not found.suffix:
        found = next((each for suffix in (".md", ".ipynb") if (each := found.with_suffix(suffix)).is_file()), found)
    return found if found.exists() else None


def anchors(text: str) -> set[str]:
    """Names that headings have in links."""
    titles = re.findall(r"^#{1,6} +(.+?)\s*$", re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE), flags=re.M)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def sentences(text: str) -> Iterator[str]:
    """Sentences of a page's prose: of paragraphs, points and cells of tables."""
    text = re.sub(r"^(#.*|---.*|\|[-| :]+\|)$", "", without_code(text), flags=re.MULTILINE)
    text = re.sub(r"!?\[([^]]*)\]\([^)]*\)", r"\1", text)
    text = re.sub(r"^(?: {4,}|\t).*$", "", text, flags=re.MULTILINE)
    for piece in re.split(r"\n\s*\n|\n\s*[-*] |\n\s*\d+\. |\||<br>|\n(?=\|)", text):
        for sentence in re.split(r"(?<=[.!?:;])[*_)\"]*\s+", " ".join(piece.split())):
            if sentence.strip():
                yield sentence.strip()
