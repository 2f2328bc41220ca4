"""Every file that a text of the repository names is in the repository."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("benchmarks", "docker", "docs", "examples", "graphfed", "scripts", "tests")
ENDINGS = {".py", ".md", ".toml", ".txt", ".jinja", ".rst", ".yaml", ".css", ""}
#: Not written by hand.
MADE = {"_build", "_plots", "_tutorial", "__pycache__", "results"}
#: A page, or a file under one of the folders.
PAGE = r"(?<![\w./*{-])[\w-]+\.md\b"
PLACE = rf"(?<![\w./*{{-])(?:{'|'.join(FOLDERS)})(?:/[\w.-]+)*/[\w-]+(?:\.[\w-]+)*\.(?:py|md|json|toml|txt|yaml|jinja|svg|css)\b"
NAMED = re.compile(f"{PAGE}|{PLACE}")
#: Files that a run or a command writes, and those of examples in texts.
OF_OTHERS = {"model_card.md", "card.md", "examples/bank_fraud/bank.yaml"}


def texts() -> list[Path]:
    """What people wrote: code, tests, pages and what stands beside them."""
    inside = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*") if path.is_file()]
    beside = [path for path in ROOT.iterdir() if path.is_file() and not path.name.startswith(".")]
    return [
        path
        for path in (*inside, *beside)
        if path.suffix in ENDINGS and not MADE & {*path.relative_to(ROOT).parts}
    ]


def missing(text: str, folder: Path) -> set[str]:
    """The files that a text in a folder names and that are not there."""
    bases = (folder, ROOT, ROOT / "docs", ROOT / "docs/papers")
    found = {name for name in NAMED.findall(text) if name not in OF_OTHERS}
    return {name for name in found if not any((base / name).exists() for base in bases)}


def test_no_text_names_a_file_that_is_not_in_the_repository() -> None:
    gone = {
        path.relative_to(ROOT).as_posix(): sorted(names)
        for path in texts()
        if (names := missing(path.read_text(errors="replace"), path.parent))
    }
    assert gone == {}
