"""The verdicts on printed claims follow from the records, and a record that changes contradicts the page."""

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

pytest.importorskip("math_core", reason="the extra 'docs' is not installed")
pytest.importorskip("sphinx", reason="the extra 'docs' is not installed")

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "docs/_ext"))

from recorded_figures import RecordError, Records  # noqa: E402
from verdicts import FAILS, HOLDS, PARTLY, UNDECIDED, Finding, Judged, check, judge  # noqa: E402

from graphfed.reproductions import PAPERS  # noqa: E402

RESULTS = ROOT / "benchmarks/results"
RECORDS = Records(RESULTS)
CLAIMS = yaml.safe_load((ROOT / "docs/papers/claims.yaml").read_text())
SP = "Separate training (SP) has the printed accuracy on Cora"


def claim_that_begins(start: str) -> dict[str, Any]:
    (found,) = [dict(claim) for claim in CLAIMS if claim["claim"].startswith(start)]
    return found


def records_with(folder: Path, changed: dict[str, list[float]]) -> Records:
    """The records, with other accuracies of rows of SAPGNN's Table IV."""
    copy = folder / "results"
    shutil.copytree(RESULTS, copy)
    path = copy / "reproduce_sapgnn.json"
    content = json.loads(path.read_text())
    (table,) = [item for item in content["items"] if item["item"] == "table4"]
    for row in table["rows"]:
        if values := changed.get(row["label"]):
            row["seeds"] = [*range(len(values))]
            row["ours"]["accuracy"] = {"mean": sum(values) / len(values), "std": 1.0, "values": values}
    path.write_text(json.dumps(content))
    return Records(copy)


def compared(records: Records, **more: Any) -> str:
    asked = {
        "item": "sapgnn/table4",
        "metric": "accuracy",
        "ahead": "Cora SP 1",
        "of": "Cora SAPGNN 1",
        **more,
    }
    claim = {"paper": "sapgnn", "source": "test", "claim": "test", "verdict": "", "compare": [asked]}
    return judge(records, claim).verdict


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: f"{claim['paper']}: {claim['claim'][:50]}")
def test_every_claim_has_the_verdict_that_the_records_give(claim: dict[str, Any]) -> None:
    check(judge(RECORDS, claim))


def test_every_paper_has_claims_and_a_table_of_them() -> None:
    page = (ROOT / "docs/papers/claims.md").read_text()
    assert {claim["paper"] for claim in CLAIMS} == {*PAPERS}
    assert all(f"```{{verdicts}} {paper}\n" in page for paper in PAPERS)


def test_a_record_that_contradicts_a_verdict_is_an_error(tmp_path: Path) -> None:
    """With more seeds and a higher mean the row is ahead where the page says that it is not."""
    records = records_with(tmp_path, {"Cora SP 2": [75.0, 75.2, 75.4, 75.1, 75.3]})
    with pytest.raises(RecordError, match="is stated as 'does not hold', and the records say 'holds partly'"):
        check(judge(records, claim_that_begins(SP)))


@pytest.mark.parametrize(
    ("values", "verdict"),
    [
        ([90.0, 91.0, 90.5, 90.2, 90.9], HOLDS),
        ([60.0, 61.0, 60.5, 60.2, 60.9], FAILS),
        ([60.0, 95.0, 78.0, 79.0, 77.0], UNDECIDED),
        ([90.0], UNDECIDED),
    ],
)
def test_the_interval_decides(values: list[float], verdict: str, tmp_path: Path) -> None:
    assert compared(records_with(tmp_path, {"Cora SP 1": values})) == verdict


def test_a_margin_moves_the_bound_and_smaller_turns_it(tmp_path: Path) -> None:
    records = records_with(tmp_path, {"Cora SP 1": [90.0, 91.0, 90.5, 90.2, 90.9]})
    assert compared(records, by=5) == HOLDS
    assert compared(records, by=30) == FAILS
    assert compared(records, smaller=True) == FAILS
    assert compared(records, ahead="Cora SAPGNN 1", of="Cora SP 1", smaller=True, by=5) == HOLDS
    assert compared(records, percent=True, by=10) == HOLDS
    assert compared(records, percent=True, by=25) == FAILS


def test_a_difference_in_percent_is_of_the_other_row_with_the_same_seed(tmp_path: Path) -> None:
    """A row that is lower by a half with every seed is, however much the seeds differ."""
    values = [90.0, 30.0, 60.0, 10.0, 75.0]
    records = records_with(tmp_path, {"Cora SAPGNN 1": values, "Cora SP 1": [0.49 * v for v in values]})
    assert compared(records, percent=True, smaller=True, by=50) == HOLDS
    assert compared(records, percent=True, smaller=True, by=52) == FAILS
    assert compared(records, smaller=True, by=25) == UNDECIDED


@pytest.mark.parametrize(
    ("verdicts", "whole"),
    [
        ([HOLDS, HOLDS], HOLDS),
        ([HOLDS, FAILS], PARTLY),
        ([HOLDS, UNDECIDED], PARTLY),
        ([FAILS, UNDECIDED], FAILS),
        ([UNDECIDED, UNDECIDED], UNDECIDED),
    ],
)
def test_a_claim_with_several_comparisons(verdicts: list[str], whole: str) -> None:
    assert Judged({}, tuple(Finding("", "", each) for each in verdicts)).verdict == whole


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"cause": ""}, "give its cause"),
        ({"verdict": "true"}, "is stated as 'true'"),
        ({"reason": "a typo of cause"}, "missing or unknown: reason"),
        ({"near": []}, "compares nothing"),
        (
            {"near": [{"item": "sapgnn/table4", "metric": "auc", "rows": "Cora SP 2", "within": 1}]},
            "has no 'auc'",
        ),
        ({"near": [{"item": "sapgnn/table4", "metric": "auc", "row": "Cora SP 2"}]}, "unknown row in near"),
    ],
)
def test_a_claim_that_is_not_complete_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(RecordError, match=message):
        check(judge(Records(RESULTS), {**claim_that_begins(SP), **changes}))
