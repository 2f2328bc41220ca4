"""Bring what the README takes from the program up to date: its picture, its rows of a report, and the address
of the built pages in its links (`Documentation` in pyproject.toml).

    python scripts/readme.py

tests/integration/test_readme.py fails where the README differs from what this script writes."""

import re
import sys
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
README = ROOT / "README.md"
PICTURE = ROOT / "docs" / "images" / "federation.svg"

#: The run whose report the README quotes, and the transfers that it shows.
RUN = {"method": "fedgcn", "data": "digits", "clients": 3, "rounds": 60, "seed": 0}
SHOWN = ("fedgcn/border_ids", "fedgcn/partial_sums", "gradient")
HEAD = "| what it is | transfer | protection | bytes |\n|---|---|---|---|\n"


def picture() -> str:
    """The first picture of the docs' front page, as a file."""
    sys.path.insert(0, str(ROOT / "docs" / "_ext"))
    from flow_picture import first_picture

    return first_picture((ROOT / "docs" / "index.md").read_text())


def rows_of_a_report(folder: Path) -> str:
    """The table of "What left each client" for the transfers that the README shows.

    Args:
        folder: An empty folder for the run.
    """
    import graphfed
    from graphfed.report.read import read_subject
    from graphfed.report.transfers import left
    from graphfed.runs.progress import human_bytes

    graphfed.run(**RUN, out=folder)
    lines = {line.name: line for line in left(RUN["method"], read_subject([folder]).first).out}
    shown = [lines[name] for name in SHOWN]
    rows = [
        f"| {line.description} | `{line.name}` | {line.protected_by} | {human_bytes(line.bytes)} |"
        for line in shown
    ]
    return HEAD + "\n".join(rows) + "\n"


def site() -> str:
    """The address of the built pages."""
    content = tomllib.loads((ROOT / "pyproject.toml").read_text())
    return str(content["project"]["urls"]["Documentation"])


def with_links_to_the_site(text: str) -> str:
    """The README with links to built pages where it had links to pages of docs/, as files or elsewhere."""

    def link(found: re.Match[str]) -> str:
        page, heading = found[1], found[2] or ""
        return f"]({site()}/{page}.html{heading})" if (ROOT / f"docs/{page}.md").exists() else found[0]

    return re.sub(r"\]\((?:docs|https?:[^)\s]*?)/((?:papers/)?\w+)\.(?:md|html)(#[\w-]+)?\)", link, text)


def brought_up_to_date(text: str, folder: Path) -> str:
    """The README's text with everything that the program decides filled in.

    Args:
        text: The README as it is.
        folder: An empty folder for a run.
    """
    text = with_links_to_the_site(text)
    rows = rows_of_a_report(folder)
    return re.sub(rf"^{re.escape(HEAD)}(?:\|.*\n)+", lambda _: rows, text, flags=re.MULTILINE)


if __name__ == "__main__":
    PICTURE.write_text(picture())
    with tempfile.TemporaryDirectory() as new:
        README.write_text(brought_up_to_date(README.read_text(), Path(new) / "run"))
