"""What a report says of scores: those of a run, of a comparison's rows, and of classes."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from graphfed.methods.references import TESTED_AGAINST
from graphfed.methods.registry import METHODS
from graphfed.report.figures import Errors, Figures
from graphfed.report.read import Run, Subject
from graphfed.runs.overview_schema import GraphOverview
from graphfed.runs.progress import human_bytes, human_seconds
from graphfed.studies.plan import ComparedRow, Statistic

__all__ = [
    "Opening",
    "best_row",
    "class_names",
    "class_rows",
    "confusion_of",
    "epsilon",
    "followed_metric",
    "metric_name",
    "opening",
    "result_table",
    "run_scores",
]

#: A row without a score on the pooled graph.
NOT_SCORED: Statistic = {"mean": None, "std": None, "values": []}
#: Of a confusion matrix that can be read.
MAX_CLASSES = 40


def run_scores(run: Run, figures: Figures) -> list[tuple[str, str, str]]:
    """Validation and test metrics of a single run."""
    val, test = run.result.val, run.result.test
    if isinstance(figures, Errors):
        known = figures.known(test)
        return [(figures.named(k), figures.cell(k, val.get(k)), figures.cell(k, test[k])) for k in known]
    return [(figures.name(k), figures.told(k, val.get(k)), figures.told(k, test[k])) for k in test]


def epsilon(runs: Sequence[Run]) -> str:
    """The privacy budget that the ledger states; "none" where nothing is differentially private."""
    found = {e.protection for run in runs for e in run.entries if "dp(" in e.protection}
    return ", ".join(sorted(found)) or "none"


def followed_metric(subject: Subject, figures: Figures) -> str:
    """The validation metric that is drawn by round: the first one where runs computed it in every round, else
    the one that rounds were selected by."""
    line = next((line.val for line in subject.first.history if line.val), {})
    selected = subject.first.result.details.get("selected_by")
    return figures.metric if figures.metric in line or not isinstance(selected, str) else selected


def metric_name(metric: str, figures: Figures) -> str:
    return figures.called if metric == figures.metric else figures.name(metric)


# ---- classes -----------------------------------------------------------------------------------------------


def confusion_of(run: Run) -> list[list[float]] | None:
    """The confusion matrix of a run, None where there is none, or none that can be read."""
    counts: list[list[float]] | None = run.result.details.get("test_confusion")
    return counts if counts and len(counts) <= MAX_CLASSES else None


def class_names(run: Run, count: int) -> list[str]:
    """The names of `count` classes, their numbers where the overview does not have them."""
    if isinstance(run.overview, GraphOverview) and len(run.overview.classes) == count:
        return [row.name for row in run.overview.classes]
    return [str(c) for c in range(count)]


def class_rows(subject: Subject, figures: Figures) -> list[tuple[str, ...]]:
    """Of each class of the confusion matrix that is shown: its name, its test nodes, those predicted to be
    of it, how many of these are right, precision and recall."""
    shown = subject.rows[best_row(subject, figures)][0]
    counts, scores = confusion_of(shown), shown.result.details.get("test_classes")
    if counts is None or not isinstance(scores, list) or len(scores) != len(counts):
        return []
    names = class_names(subject.first, len(counts))
    return [
        (
            names[c],
            f"{sum(counts[c]):,.10g}",
            f"{sum(row[c] for row in counts):,.10g}",
            f"{counts[c][c]:,.10g}",
            figures.told("precision", score["precision"]),
            figures.told("recall", score["recall"]),
        )
        for c, score in enumerate(scores)
    ]


# ---- the rows of a comparison ------------------------------------------------------------------------------


def best_row(subject: Subject, figures: Figures) -> str:
    """The row whose confusion matrix, or whose sensors, are shown: the federated one with the best metric of
    validation."""
    if subject.comparison is None:
        return next(iter(subject.rows))
    rows = [row for row in subject.comparison.rows if _is_federated(row)] or list(subject.comparison.rows)
    return _best_of(rows, "val", figures)["label"]


def _is_federated(row: ComparedRow) -> bool:
    """Whether something crosses between the clients of a row in training, and they keep their data."""
    known = METHODS.find(row["method"])
    return bool(row["bytes"]["mean"]) and not (known is not None and known.pooled)


def _best_of(rows: Sequence[ComparedRow], part: Literal["val", "test"], figures: Figures) -> ComparedRow:
    """The row with the best mean of the metric that decides on a part of the split."""
    sign = -1 if isinstance(figures, Errors) else 1

    def score(row: ComparedRow) -> float:
        mean = row[part][figures.metric]["mean"]
        return -math.inf if mean is None else sign * mean

    return max(rows, key=score)


@dataclass(frozen=True)
class Opening:
    """The row that the report on a comparison opens with.

    Attributes:
        label: The row with the best test metric of those in which clients work together, or of all.
        figure: Its metric, with the spread.
        federated: Whether clients work together in some row.
        others: Labels and figures of the rows in which they do not.
        smaller: Those of them whose error is smaller.
    """

    label: str
    figure: str
    federated: bool
    others: list[tuple[str, str]]
    smaller: list[str]


def opening(subject: Subject, figures: Figures) -> Opening | None:
    """The row that a comparison's report opens with, None where no row has the test metric."""
    assert subject.comparison is not None
    metric, errors = figures.metric, isinstance(figures, Errors)
    scored = [row for row in subject.comparison.rows if row["test"][metric]["mean"] is not None]
    if not scored:
        return None
    federated = [row for row in scored if _is_federated(row)]
    best = _best_of(federated or scored, "test", figures)
    others = [row for row in scored if row is not best and not _is_federated(row)]
    smaller = [row for row in others if _mean(row, metric) < _mean(best, metric)] if errors else []
    # Errors have their unit once, in the figure of the best row.
    write = figures.cell if errors else figures.told
    return Opening(
        best["label"],
        figures.told(metric, best["test"][metric]["mean"], best["test"][metric]["std"]),
        bool(federated),
        [
            (row["label"], write(metric, row["test"][metric]["mean"], row["test"][metric]["std"]))
            for row in others
        ],
        [row["label"] for row in smaller] if federated else [],
    )


def _mean(row: ComparedRow, metric: str) -> float:
    mean = row["test"][metric]["mean"]
    assert mean is not None
    return mean


@dataclass(frozen=True)
class TableRow:
    """A row of a comparison's table. changed_settings: those that differ from their defaults; best: columns
    that are marked."""

    label: str
    cells: list[str]
    changed_settings: str
    best: list[int]


@dataclass(frozen=True)
class ResultTable:
    """A comparison's table. tested: the columns that have differences to a row, with its label; pooled:
    whether a column has scores on the pooled graph."""

    metrics: list[str]
    pooled: bool
    tested: list[str]
    rows: list[TableRow]


def result_table(subject: Subject, figures: Figures) -> ResultTable:
    """The table of a comparison's page."""
    comparison = subject.comparison
    assert comparison is not None
    rows = comparison.rows
    metrics = figures.shown(rows[0]["test"])
    pooled = any(row.get("test_pooled") for row in rows)
    known = TESTED_AGAINST.get(comparison.task, ("",))
    references = {name: row for name in known for row in rows if row["label"] == name}
    tested = list(references) or list(known[:1])
    # Of errors the smallest is marked, where there are several.
    means = {m: [mean for row in rows if (mean := row["test"][m]["mean"]) is not None] for m in metrics}
    least = {m: min(of) for m, of in means.items() if isinstance(figures, Errors) and len(of) > 1}
    lines = []
    for row in rows:
        shown = [(metric, row["test"][metric]) for metric in metrics]
        if pooled:
            whole = row.get("test_pooled") or {}
            shown.append(
                (figures.metric, whole.get(figures.metric) or {"mean": None, "std": None, "values": []})
            )
        cells = [figures.cell(metric, figure["mean"], figure["std"]) for metric, figure in shown]
        cells += [_difference(row, references.get(name), figures) for name in tested]
        cells += [human_bytes(row["bytes"]["mean"] or 0.0), human_seconds(row["seconds"]["mean"] or 0.0)]
        changed = ", ".join(f"{key}={value}" for key, value in row["changed_settings"].items())
        best = [i for i, m in enumerate(metrics) if m in least and row["test"][m]["mean"] == least[m]]
        lines.append(TableRow(row["label"], [*cells, epsilon(subject.rows[row["label"]])], changed, best))
    return ResultTable(metrics, pooled, tested, lines)


def _difference(row: ComparedRow, reference: ComparedRow | None, figures: Figures) -> str:
    """Mean difference of the test metric over the same seeds, and the p value of the paired t-test."""
    if reference is None or row is reference:
        return "-"
    this, that = (one["test"][figures.metric]["values"] for one in (row, reference))
    pairs = [(a, b) for a, b in zip(this, that, strict=False) if a is not None and b is not None]
    if not len(pairs) == len(this) == len(that):
        return "-"
    differences = [a - b for a, b in pairs]
    difference = figures.difference(figures.metric, sum(differences) / len(pairs))
    # Equal up to rounding: no spread to test against.
    if len(pairs) < 2 or max(differences) - min(differences) < 1e-9:
        return difference
    from scipy.stats import ttest_rel

    p = float(ttest_rel([a for a, _ in pairs], [b for _, b in pairs]).pvalue)
    return f"{difference} ({'p < 0.001' if p < 0.001 else f'p = {p:.3f}'})"
