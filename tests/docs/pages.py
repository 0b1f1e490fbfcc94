"""The Markdown of this repository: its pages, their blocks of code, headings and links."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent

ROOT = Path(__file__).resolve().parent.parent.parent
GENERATED = ROOT / "docs" / "reference"
PAGES = sorted(
    page
    for page in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    if page.parent != GENERATED
)
NOT_RUN = re.compile(r"<!-- not run: .+ -->$")
RUN_IN = re.compile(r"<!-- run in (tests/[\w/]+\.py) -->$")
FENCE = re.compile(
    r"(?:^ *(?P<mark><!-- .*? -->)\n)?"
    r"^(?P<indent> *)```(?P<language>[\w{}-]*)\n(?P<text>.*?)^(?P=indent)```$",
    re.M | re.S,
)


@dataclass(frozen=True)
class Block:
    language: str
    text: str
    mark: str
    """The comment right before it, if there is one."""

    @property
    def is_run(self) -> bool:
        return NOT_RUN.match(self.mark) is None

    @property
    def run_in(self) -> str:
        """The test that runs it, if one of its own does."""
        found = RUN_IN.match(self.mark)
        return found[1] if found else ""


def blocks(page: Path) -> list[Block]:
    found = FENCE.finditer(page.read_text())
    return [Block(one["language"], dedent(one["text"]), one["mark"] or "") for one in found]


def prose(page: Path) -> str:
    """A page without its blocks and spans of code."""
    text = re.sub(r"^( *)```.*?^\1```$", "", page.read_text(), flags=re.M | re.S)
    return re.sub(r"(`+).+?\1", "code", text)


def links(page: Path) -> Iterator[str]:
    for target in re.findall(r"\]\(([^()\s]+)\)", prose(page)):
        if not re.match(r"https?:|mailto:|\{", target):
            yield target


def anchors(page: Path) -> set[str]:
    """The headings of a page, as code hosts and Sphinx name them."""
    text = re.sub(r"^( *)```.*?^\1```$", "", page.read_text(), flags=re.M | re.S)
    found: set[str] = set()
    for heading in re.findall(r"^#{1,4} (.+)$", text, re.M):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        slug = re.sub(r"[^\w\- ]", "", plain.strip().lower()).replace(" ", "-")
        numbered = slug
        number = 1
        while numbered in found:
            numbered, number = f"{slug}-{number}", number + 1
        found.add(numbered)
    return found
