"""The scores in a report: those of a run, of the rows of a comparison, and of classes."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from graphfed.methods.references import TESTED_AGAINST
from graphfed.methods.registry import METHODS
from graphfed.report.figures import Errors, Figures
from graphfed.report.read import Run, Subject
from graphfed.report.transfers import noised_protections
from graphfed.runs.overview_schema import GraphOverview
from graphfed.runs.progress import human_bytes, human_seconds
from graphfed.studies.comparison import ComparedRow
from graphfed.studies.paired import PairedDifference, correct_by_holm, paired_difference
from graphfed.studies.plan import Statistic

#: The statistic of a row without a score on the pooled graph.
NOT_SCORED: Statistic = {"mean": None, "std": None, "values": []}
#: The most classes of a confusion matrix that is still legible.
MAX_CLASSES = 40


def run_scores(run: Run, figures: Figures) -> list[tuple[str, str, str]]:
    """Return the name, the validation value and the test value of each metric of a single run."""
    val, test = run.result.val, run.result.test
    if isinstance(figures, Errors):
        known = figures.distinct_metrics(test)
        return [
            (figures.name_with_unit(k), figures.cell(k, val.get(k)), figures.cell(k, test[k])) for k in known
        ]
    return [(figures.name(k), figures.with_unit(k, val.get(k)), figures.with_unit(k, test[k])) for k in test]


def epsilon(runs: Sequence[Run]) -> str:
    """Return the privacy budget that the ledgers state, as in "ldp(eps=2)"; "none" without one."""
    return ", ".join(noised_protections(entry for run in runs for entry in run.entries)) or "none"


def followed_metric(subject: Subject, figures: Figures) -> str:
    """Return the validation metric that is drawn by round.

    It is the metric that ranks the rows, if the runs computed it in every round; otherwise the metric by
    which they selected the round.
    """
    line = next((line.val for line in subject.first.history if line.val), {})
    selected = subject.first.result.details.get("selected_by")
    return figures.metric if figures.metric in line or not isinstance(selected, str) else selected


def metric_name(metric: str, figures: Figures) -> str:
    """Return the name of a metric in a chart."""
    return figures.display_name if metric == figures.metric else figures.name(metric)


# ---- classes -----------------------------------------------------------------------------------------------


def confusion_of(run: Run) -> list[list[float]] | None:
    """Return counts [C, C] of true by predicted classes; None if there are none or too many to read."""
    counts: list[list[float]] | None = run.result.details.get("test_confusion")
    return counts if counts and len(counts) <= MAX_CLASSES else None


def class_names(run: Run, count: int) -> list[str]:
    """Return the names of the classes in the overview; their numbers if it has no names."""
    if isinstance(run.overview, GraphOverview) and len(run.overview.classes) == count:
        return [row.name for row in run.overview.classes]
    return [str(c) for c in range(count)]


def class_rows(subject: Subject, figures: Figures) -> list[tuple[str, ...]]:
    """Return the table of classes that belongs to the confusion matrix on the page, empty without one.

    A class has its name, the number of its test nodes, of those predicted as this class, of correct
    predictions among them, precision and recall.
    """
    run = subject.rows[best_row(subject, figures)][0]
    counts, scores = confusion_of(run), run.result.details.get("test_classes")
    if counts is None or not isinstance(scores, list) or len(scores) != len(counts):
        return []
    names = class_names(subject.first, len(counts))
    return [
        (
            names[c],
            f"{sum(counts[c]):,.10g}",
            f"{sum(row[c] for row in counts):,.10g}",
            f"{counts[c][c]:,.10g}",
            figures.with_unit("precision", score["precision"]),
            figures.with_unit("recall", score["recall"]),
        )
        for c, score in enumerate(scores)
    ]


# ---- the rows of a comparison ------------------------------------------------------------------------------


def best_row(subject: Subject, figures: Figures) -> str:
    """Return the label of the row whose confusion matrix or sensors are shown.

    It is the federated row with the best validation metric, or the best row if none is federated.
    """
    if subject.comparison is None:
        return next(iter(subject.rows))
    rows = [row for row in subject.comparison.rows if _is_federated(row)] or list(subject.comparison.rows)
    return _best_of(rows, "val", figures)["label"]


def _is_federated(row: ComparedRow) -> bool:
    """Return whether the clients of a row send something in training and keep their data."""
    known = METHODS.find(row["method"])
    return bool(row["bytes"]["mean"]) and not (known is not None and known.pooled)


def _best_of(rows: Sequence[ComparedRow], part: Literal["val", "test"], figures: Figures) -> ComparedRow:
    """Return the row with the best mean of the ranking metric on a part of the split."""
    # Of errors the smallest is the best.
    sign = -1 if isinstance(figures, Errors) else 1

    def score(row: ComparedRow) -> float:
        mean = row[part][figures.metric]["mean"]
        return -math.inf if mean is None else sign * mean

    return max(rows, key=score)


@dataclass(frozen=True)
class Opening:
    """The row that the report on a comparison opens with.

    Attributes:
        label: The row with the best test metric among those in which clients train together, or among all.
        figure: Its metric, with the spread.
        federated: Whether clients train together in some row.
        others: Labels and figures of the rows in which clients do not train together.
        smaller: Labels of those of them whose error is smaller.
    """

    label: str
    figure: str
    federated: bool
    others: list[tuple[str, str]]
    smaller: list[str]


def opening(subject: Subject, figures: Figures) -> Opening | None:
    """Find the row that the report on a comparison opens with; None if no row has the test metric."""
    assert subject.comparison is not None
    metric, errors = figures.metric, isinstance(figures, Errors)
    test = {row["label"]: row["test"][metric] for row in subject.comparison.rows}
    means = {label: score["mean"] for label, score in test.items() if score["mean"] is not None}
    if not means:
        return None
    scored = [row for row in subject.comparison.rows if row["label"] in means]
    federated = [row for row in scored if _is_federated(row)]
    best = _best_of(federated or scored, "test", figures)["label"]
    others = [row["label"] for row in scored if row["label"] != best and not _is_federated(row)]
    smaller = [label for label in others if errors and federated and means[label] < means[best]]
    # The unit of errors is written once, with the figure of the best row.
    write = figures.cell if errors else figures.with_unit
    return Opening(
        best,
        figures.with_unit(metric, means[best], test[best]["std"]),
        bool(federated),
        [(label, write(metric, means[label], test[label]["std"])) for label in others],
        smaller,
    )


@dataclass(frozen=True)
class TableRow:
    """A row of a comparison's table; `changes` are its settings that differ from the method's defaults.

    `best` are the columns in which it is the best row and marked.
    """

    label: str
    cells: list[str]
    changes: str
    best: list[int]


@dataclass(frozen=True)
class ResultTable:
    """The table of a comparison.

    Attributes:
        metrics: The metrics that have a column.
        pooled: Whether a column has the scores on the pooled graph.
        tested: Labels of the rows to which a column gives the difference.
    """

    metrics: list[str]
    pooled: bool
    tested: list[str]
    rows: list[TableRow]


def result_table(subject: Subject, figures: Figures) -> ResultTable:
    comparison = subject.comparison
    assert comparison is not None
    rows = comparison.rows
    metrics = figures.table_metrics(rows[0]["test"])
    pooled = any(row.get("test_pooled") for row in rows)
    known = TESTED_AGAINST.get(comparison.task, ("",))
    # A comparison without the usual reference rows has a column of dashes, which shows that they lack.
    references = {name: row for name in known for row in rows if row["label"] == name}
    tested = list(references) or list(known[:1])
    # The smallest error of a column is marked.
    means = {m: [mean for row in rows if (mean := row["test"][m]["mean"]) is not None] for m in metrics}
    least = {m: min(of) for m, of in means.items() if isinstance(figures, Errors) and len(of) > 1}
    differences = [_difference_cells(rows, references.get(name), figures) for name in tested]
    lines: list[TableRow] = []
    for row in rows:
        shown = [(metric, row["test"][metric]) for metric in metrics]
        if pooled:
            scores = row.get("test_pooled") or {}
            shown.append((figures.metric, scores.get(figures.metric) or NOT_SCORED))
        cells = [figures.cell(metric, figure["mean"], figure["std"]) for metric, figure in shown]
        cells += [column[len(lines)] for column in differences]
        cells += [human_bytes(row["bytes"]["mean"] or 0.0), human_seconds(row["seconds"]["mean"] or 0.0)]
        changes = ", ".join(f"{key}={value}" for key, value in row["changed_settings"].items())
        best = [i for i, m in enumerate(metrics) if m in least and row["test"][m]["mean"] == least[m]]
        lines.append(TableRow(row["label"], [*cells, epsilon(subject.rows[row["label"]])], changes, best))
    return ResultTable(metrics, pooled, tested, lines)


def _difference_cells(
    rows: Sequence[ComparedRow], reference: ComparedRow | None, figures: Figures
) -> list[str]:
    """Return for each row the difference of its test metric to that of a reference row, over the same seeds.

    A cell is "-" for the reference row itself, and if a seed is missing in one of the rows. With several
    seeds it has the 95 % interval and p values, corrected by Holm's method for the number of rows.
    """
    none = [None] * len(rows)
    found = none if reference is None else [_difference(row, reference, figures) for row in rows]
    tested = {
        k: (each.t_test, each.wilcoxon)
        for k, each in enumerate(found)
        if each is not None and each.t_test is not None and each.wilcoxon is not None
    }
    # Each kind of test is a family of its own.
    t_tests = correct_by_holm([t_test for t_test, _ in tested.values()])
    signed_ranks = correct_by_holm([wilcoxon for _, wilcoxon in tested.values()])
    corrected = dict(zip(tested, zip(t_tests, signed_ranks, strict=True), strict=True))
    cells = []
    for k, each in enumerate(found):
        if each is None:
            cells.append("-")
            continue
        cell = figures.difference(figures.metric, each.mean)
        if k in corrected:
            low, high = (figures.difference(figures.metric, end or 0.0) for end in (each.low, each.high))
            p, wilcoxon = (_p_value(p) for p in corrected[k])
            cell += f" ({low} to {high}; p {p}, Wilcoxon {wilcoxon})"
        cells.append(cell)
    return cells


def _difference(row: ComparedRow, reference: ComparedRow, figures: Figures) -> PairedDifference | None:
    if row is reference:
        return None
    # The values are those of equal seeds, in the same order.
    scores, reference_scores = (one["test"][figures.metric]["values"] for one in (row, reference))
    return paired_difference(scores, reference_scores)


def _p_value(p: float) -> str:
    return "< 0.001" if p < 0.001 else f"= {p:.3f}"
