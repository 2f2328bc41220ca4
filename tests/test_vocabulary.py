"""Names and texts use the words of docs/glossary.md: one noun for each thing, and the field's own."""

import ast
import io
import re
import tokenize
from collections.abc import Iterator, Set
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
#: Parts of identifiers that another word has replaced, and that word.
NAMES = {
    "told": "what was sent or reported", "tell": "report", "tells": "report", "news": "message",
    "wish": "stop request",
    "vertex": "node", "vertices": "node", "holder": "client", "holders": "client", "silo": "client",
    "silos": "client",
    "dealt": "partitioned", "dealing": "partition", "hood": "neighbourhood", "hoods": "neighbourhoods",
    "crossing": "transfer", "crossed": "sent", "crosses": "sent", "charge": "record",
    "converse": "run_protocol",
    "mine": "local", "theirs": "remote", "recipe": "reproduction or preset", "manieth": "every k-th",
    "narrowed": "restricted", "widened": "expanded",
}  # fmt: skip
#: Phrases that readers of a page, a message or a comment had to guess at.
PHRASES = {
    r"vert(ex|ices)": "node", r"silos?": "client", r"(is|are|was|were|be) told": "say who sends what to whom",
    r"deal(s|t|ing)?": "partition", r"in (the )?clear": "in plaintext", r"cut edges?": "cross-client edge",
    r"manieth": "every k-th", r"but for": "except", r"by so many": "by n",
    r"hand(s|ed)? back": "scatter", r"convers(e|ing) with": "run a two-party protocol",
}  # fmt: skip
#: Where an old word is meant, with the reason.
MEANT = {
    "tests/test_vocabulary.py": "this list",
    "CHANGELOG.md": "names what was renamed",
}
#: Words in their ordinary sense, and names that are stored: part of a line, and its file.
ORDINARY = (
    ("dealing cards", "graphfed/data/partitions/overlapping.py"),
    ('"dealing"', "graphfed/methods/lumos/feature_encoding.py"),  # the key of a random draw
    ('"vertex"', "graphfed/methods/common/entity_alignment.py"),  # the key of a hash
    ('"vertex"', "graphfed/methods/cnfgnn/graph_network.py"),  # the name of weights
    ("<edge|vertex|global>", "graphfed/methods/cnfgnn/graph_network.py"),
    ("deals with", "examples/shared_customers/make_data.py"),
    ("Dealing with", "tests/integration/test_shared_customers.py"),
    ('"vertex"', "tests/laws/test_ledger_formulas.py"),
    ('"vertex"', "tests/papers/test_sapgnn.py"),
    ("{path}.vertex", "tests/papers/test_cnfgnn_graph_network.py"),
    ('"deal"', "benchmarks/growth.py"),  # keys of records
    ('"dealt"', "benchmarks/fedgat.py"),
)
#: The holders of a secret key or of shares of it, who are no clients yet.
OF_KEYS = {"holder", "holders"}
#: A field of a record, in a page: records keep the words of their time.
FIELD = re.compile(r'\b(?:value|number|values|times)\("[^)]*\)')


#: Whether a source has any of the names; most have none.
ANY_NAME = re.compile(rf"(?:(?<![a-zA-Z])|(?<=[a-z])(?=[A-Z]))(?i:{'|'.join(NAMES)})(?![a-z])")


def names_in(source: str) -> Iterator[tuple[int, str]]:
    """Every name that a source defines: functions, classes, parameters, variables and attributes."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.lineno, node.name
        elif isinstance(node, ast.arg):
            yield node.lineno, node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.attr


def replaced_names(source: str, meant: Set[str] = frozenset()) -> list[str]:
    """The names in a source that have a part which was replaced, except the parts in `meant`."""
    if not ANY_NAME.search(source):
        return []
    found, replaced = [], NAMES.keys() - meant
    for line, name in names_in(source):
        parts = re.split(r"_+|(?<=[a-z])(?=[A-Z])", name.strip("_"))
        found += [f"{line}: {name}: {NAMES[part.lower()]}" for part in parts if part.lower() in replaced]
    return found


def texts_in(source: str) -> Iterator[tuple[int, str]]:
    """The comments and strings of a source, docstrings and messages among them."""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type in (tokenize.STRING, tokenize.COMMENT, getattr(tokenize, "FSTRING_MIDDLE", -1)):
            for number, line in enumerate(token.string.splitlines()):
                yield token.start[0] + number, line


#: Whether a file or a line has any of them; most have none.
ANY_PHRASE = re.compile(rf"(?<![\w-])(?:{'|'.join(PHRASES)})(?![\w-])", re.IGNORECASE)


def replaced_phrases(lines: Iterator[tuple[int, str]], place: str) -> list[str]:
    """The phrases in lines of text that were replaced, except those of `ORDINARY`."""
    found = []
    for number, line in lines:
        text = FIELD.sub("", line)
        if not ANY_PHRASE.search(text):
            continue
        for phrase, word in PHRASES.items():
            hit = re.search(rf"(?<![\w-]){phrase}(?![\w-])", text, re.IGNORECASE)
            if hit and not any(place == where and part in line for part, where in ORDINARY):
                found.append(f"{number}: {hit[0]}: {word}: {line.strip()[:80]}")
    return found


def sources() -> list[Path]:
    folders = ("graphfed", "tests", "benchmarks", "scripts", "examples")
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


def pages() -> list[Path]:
    return sorted([*(ROOT / "docs").rglob("*.md"), *(ROOT / "graphfed").rglob("*.jinja"), *ROOT.glob("*.md")])


def test_names_have_no_part_that_was_replaced() -> None:
    found = {}
    for path in sources():
        place = path.relative_to(ROOT).as_posix()
        meant = OF_KEYS if place.startswith("tests/crypto/") else frozenset()
        if place not in MEANT and (names := replaced_names(path.read_text(), meant)):
            found[place] = names
    assert found == {}


def test_texts_have_no_phrase_that_was_replaced() -> None:
    found = {}
    for path in (*sources(), *pages()):
        place = path.relative_to(ROOT).as_posix()
        text = path.read_text()
        if not ANY_PHRASE.search(text):
            continue
        lines = texts_in(text) if path.suffix == ".py" else iter(enumerate(text.splitlines(), 1))
        if place not in MEANT and (phrases := replaced_phrases(lines, place)):
            found[place] = phrases
    assert found == {}


def test_every_exception_is_still_needed() -> None:
    for part, place in ORDINARY:
        assert part in (ROOT / place).read_text(), (part, place)
    assert all((ROOT / place).exists() for place in MEANT)


@pytest.mark.parametrize(
    "source", ["def dealt(x): ...", "numVertices = 2", "def f(told): ...", "self.hoods_of = 1"]
)
def test_a_replaced_name_is_noticed(source: str) -> None:
    assert len(replaced_names(source)) == 1


@pytest.mark.parametrize("line", ["# all but for one", "'The vertices are sent.'", '"""Who is told what."""'])
def test_a_replaced_phrase_is_noticed(line: str) -> None:
    assert len(replaced_phrases(texts_in(f"{line}\n"), "a new module")) == 1
