"""The README as a forge and an index show it: rendered by a CommonMark library, no cell and no text is lost."""

import re
import runpy
from pathlib import Path

import pytest

pytest.importorskip("markdown_it", reason="the extra 'docs' is not installed")

from markdown_it import MarkdownIt
from markdown_it.token import Token

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()
#: A "|" that ends a cell, by the rules of GitHub: also one in code or in a comment.
BAR = re.compile(r"(?<!\\)\|")


def parsed(text: str) -> list[Token]:
    return MarkdownIt("commonmark").enable("table").parse(text)


def visible(token: Token) -> str:
    """The text of a paragraph or cell that a reader sees."""
    return "".join(
        child.content if child.type in ("text", "code_inline") else " " * (child.type == "softbreak")
        for child in token.children or ()
    )


def lost_cells(text: str) -> list[str]:
    """The rows of tables whose number of cells is not that of their heads, or with a cell in which nothing is
    shown."""
    lines, tokens, lost = text.splitlines(), parsed(text), []
    width = 0
    for number, token in enumerate(tokens):
        if token.type == "tr_open" and token.map:
            source = lines[token.map[0]].strip()
            cells = len(BAR.findall(source)) - 1
            width = cells if tokens[number - 1].type == "thead_open" else width
            if cells != width:
                lost.append(f"{cells} cells under {width}: {source}")
        if token.type in ("td_open", "th_open") and not visible(tokens[number + 1]).strip():
            lost.append(f"an empty cell: {source}")
    return lost


def test_no_cell_of_a_table_is_lost() -> None:
    assert lost_cells(README) == []
    assert sum(token.type == "table_open" for token in parsed(README)) == 3


def test_links_to_pages_lead_to_the_built_site_and_to_headings_that_exist() -> None:
    """Read as a file, a page has placeholders for its figures."""
    site = runpy.run_path(str(ROOT / "scripts/readme.py"))["site"]()
    links = re.findall(rf"\]\({re.escape(site)}/([\w/]+)\.html(?:#([\w-]+))?\)", README)
    assert len(links) > 10
    assert not re.findall(r"\]\(docs/\S+\.md", README)
    for page, heading in links:
        text = (ROOT / f"docs/{page}.md").read_text()
        headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
        anchors = {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in headings}
        assert not heading or heading in anchors, (page, heading)
