"""benchmarks/README.md is what benchmarks/readme.py writes from the records."""

import json
import shutil
import sys
from pathlib import Path

import pytest

pytest.importorskip("jmespath", reason="the extra 'docs' is not installed")

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "benchmarks/results"
sys.path[:0] = [str(ROOT / "docs/_ext"), str(ROOT / "benchmarks")]

from readme import written  # noqa: E402
from recorded_figures import RecordError, Records, brief  # noqa: E402


def test_the_page_is_what_the_program_writes() -> None:
    """`python benchmarks/readme.py` writes it anew."""
    assert (ROOT / "benchmarks/README.md").read_text() == written(Records(RESULTS))


def changed(folder: Path, ratio: float) -> Records:
    """The records, with another ratio of SAPGNN's epochs on Cora."""
    copy = folder / "results"
    shutil.copytree(RESULTS, copy)
    path = copy / "split_learning.json"
    content = json.loads(path.read_text())
    content["graphs"][0]["ratios"]["three holders / one"]["of_minima"] = ratio
    path.write_text(json.dumps(content))
    return Records(copy)


def test_a_changed_record_changes_the_page(tmp_path: Path) -> None:
    page = written(changed(tmp_path, 1.9))
    assert page != (ROOT / "benchmarks/README.md").read_text()
    assert "| 1.9 (1.6; 1.6 to 1.7) |" in page


def test_a_record_that_contradicts_a_sentence_ends_the_program(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="contradict this sentence: The aim is not reached on either graph"):
        written(changed(tmp_path, 1.2))


@pytest.mark.parametrize(
    ("number", "text"),
    [(0, "0"), (0.0731, "0.073"), (0.98, "0.98"), (0.996, "1.0"), (1.86, "1.9"), (9.96, "10"), (51.8, "52"), (1118.3, "1 118")],
)  # fmt: skip
def test_a_number_has_two_digits_and_every_one_before_the_point(number: float, text: str) -> None:
    assert brief(number) == text
