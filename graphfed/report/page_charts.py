"""What is drawn in a report: which chart of which figures."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from graphfed.methods.registry import METHODS
from graphfed.report import charts, forecasts
from graphfed.report.figures import Errors, Figures
from graphfed.report.forecast_table import SensorErrors
from graphfed.report.read import Run, Subject
from graphfed.studies.plan import ComparedRow
from graphfed.tasks.base import TaskDefinition
from graphfed.tasks.registry import task_or_default

__all__ = [
    "MAX_CLASSES",
    "best_row",
    "charts_of",
    "class_rows",
    "followed_metric",
    "metric_name",
    "run_scores",
    "task_of",
]


def run_scores(run: Run, figures: Figures) -> list[tuple[str, str, str]]:
    """Validation and test metrics of a single run."""
    val, test = run.result.val, run.result.test
    if isinstance(figures, Errors):
        known = figures.known(test)
        return [(figures.named(k), figures.cell(k, val.get(k)), figures.cell(k, test[k])) for k in known]
    return [(figures.name(k), figures.told(k, val.get(k)), figures.told(k, test[k])) for k in test]


def charts_of(subject: Subject, figures: Figures, tested: SensorErrors | None) -> dict[str, str]:
    """SVG by name; a chart that would be empty is left out."""
    drawn = {**_result_charts(subject, figures), **_byte_charts(subject), **_device_charts(subject)}
    if isinstance(figures, Errors) and task_of(subject.first.result.task).data.name == "sensors":
        shown = subject.rows[best_row(subject, figures)][0]
        return drawn | forecasts.charts_of(subject, shown, figures, tested)
    told = subject.first.overview
    if told is not None and told["drawing"]["vertices"]:
        named = {row["site"]: row["name"] for row in told["sites"]}
        drawn["partition"] = charts.partition_drawing(told["drawing"], named)
    if told is not None and any(sum(row["classes"]) for row in told["sites"]):
        drawn["classes"] = charts.site_classes(told["sites"], [c["name"] for c in told["classes"]])
    if told is not None and told["vertices"]:
        drawn["degrees"] = charts.degrees(told["degrees"]["histogram"])
    return drawn


def _result_charts(subject: Subject, figures: Figures) -> dict[str, str]:
    drawn: dict[str, str] = {}
    task = task_of(subject.first.result.task)
    unit = (figures.unit or f"unit of the {task.targets}") if isinstance(figures, Errors) else None
    followed = followed_metric(subject, figures)
    lines = {label: [_curve(run, followed) for run in runs] for label, runs in subject.rows.items()}
    # A row is drawn over the rounds in which every seed was evaluated. Of shares it must be more than a
    # point; a forecast that learns nothing is a level that the others have to reach.
    shared = {label: len(set.intersection(*(set(run) for run in runs))) for label, runs in lines.items()}
    least = 1 if unit else 2
    lines = {label: runs for label, runs in lines.items() if shared[label] >= least}
    if any(shared[label] > 1 for label in lines):
        drawn["curves"] = charts.curves(lines, metric_name(followed, figures), task.scored, unit or "")
    if subject.comparison is not None:
        costs = [
            (row["label"], sent, mean, row["test"][figures.metric]["std"])
            for row in subject.comparison.rows
            if (mean := row["test"][figures.metric]["mean"]) is not None
            and (sent := row["bytes"]["mean"]) is not None
        ]
        if any(crossed for _, crossed, _, _ in costs):
            drawn["costs"] = charts.score_against_bytes(costs, figures.called, unit)
    curves = {label: runs[0].result.details.get("test_roc") for label, runs in subject.rows.items()}
    if any(curves.values()):
        drawn["roc"] = charts.roc({label: curve for label, curve in curves.items() if curve})
    counts = subject.rows[best_row(subject, figures)][0].result.details.get("test_confusion")
    if counts and len(counts) <= MAX_CLASSES:
        drawn["confusion"] = charts.confusion(counts, _class_names(subject.first, len(counts)))
    dots = {label: runs[0].site_accuracy for label, runs in subject.rows.items() if runs[0].site_accuracy}
    # Of one vertex a site is right or wrong: nothing to draw.
    of_several = any(max(n for _, n in sites.values()) > 1 and len(sites) > 1 for sites in dots.values())
    if of_several and figures.metric == "accuracy":
        drawn["sites"] = charts.site_dots(dots)
    return drawn


#: Of a confusion matrix that can be read.
MAX_CLASSES = 40


def followed_metric(subject: Subject, figures: Figures) -> str:
    """The validation metric that is drawn by round: the first one where runs computed it in every round, else
    the one that rounds were selected by."""
    line: Mapping[str, Any] = next((line["val"] for line in subject.first.history if line.get("val")), {})
    selected = subject.first.result.details.get("selected_by")
    return figures.metric if figures.metric in line or not isinstance(selected, str) else selected


def metric_name(metric: str, figures: Figures) -> str:
    return figures.called if metric == figures.metric else figures.name(metric)


def class_rows(subject: Subject, figures: Figures) -> list[tuple[str, ...]]:
    """Of each class of the confusion matrix that is shown: its name, its test vertices, those predicted to be
    of it, how many of these are right, precision and recall."""
    details = subject.rows[best_row(subject, figures)][0].result.details
    counts, scores = details.get("test_confusion"), details.get("test_classes")
    if not counts or not isinstance(scores, list) or len(scores) != len(counts) or len(counts) > MAX_CLASSES:
        return []
    names = _class_names(subject.first, len(counts))
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


def _curve(run: Run, metric: str) -> dict[int, float]:
    """The validation metric by round."""
    points = ((line["round"], (line["val"] or {}).get(metric)) for line in run.history)
    return {number: value for number, value in points if value is not None}


def _byte_charts(subject: Subject) -> dict[str, str]:
    drawn: dict[str, str] = {}
    words = {"up": "site to server", "down": "server to site", "peer": "site to site"}
    links = []
    for label, runs in subject.rows.items():
        counted = runs[0].result.bytes
        amounts = {told: counted[key] for key, told in words.items() if counted[key]}
        if amounts:
            links.append((label, amounts))
    unit = "bytes of set-up and training"
    if links:
        drawn["links"] = charts.bars(links, unit, "bytes by link")
    by_transfer = subject.first.result.bytes["by_transfer"]
    if by_transfer and subject.comparison is None:
        largest = sorted(by_transfer.items(), key=lambda item: -item[1])[:12]
        drawn["transfers"] = charts.bars(
            [(name, {"bytes": amount}) for name, amount in largest], unit, "bytes by transfer"
        )
    return drawn


def _device_charts(subject: Subject) -> dict[str, str]:
    """How the account's figures are distributed over the devices: of each row, the first seed."""
    drawn: dict[str, str] = {}
    told = {label: a for label, runs in subject.rows.items() if (a := runs[0].accounts) is not None}
    kept = {label: accounts["kept"] for label, accounts in told.items() if "kept" in accounts}
    if kept:
        if len(kept) == 1:
            kept = {"kept": next(iter(kept.values()))}
        everyone = next((a["neighbours"] for a in told.values() if "neighbours" in a), None)
        rows = kept if everyone is None else {"all neighbours": everyone, **kept}
        drawn["kept"] = charts.cumulative(rows, "neighbours in a device's tree", "workload of devices")
    spent = {k: a["epsilon_colluding"] for k, a in told.items() if "epsilon_colluding" in a}
    if any(values.max() > 0 for values in spent.values()):
        named = "epsilon against all receivers of a device together"
        drawn["colluding"] = charts.cumulative(spent, named, "epsilon of devices")
    return drawn


def best_row(subject: Subject, figures: Figures) -> str:
    """The row whose confusion matrix, or whose sensors, are shown: the federated one with the best metric of
    validation."""
    if subject.comparison is None:
        return next(iter(subject.rows))
    rows = [row for row in subject.comparison.rows if is_federated(row)] or list(subject.comparison.rows)
    return best_of(rows, "val", figures)["label"]


def _class_names(run: Run, count: int) -> list[str]:
    if run.overview is not None and len(run.overview["classes"]) == count:
        return [str(row["name"]) for row in run.overview["classes"]]
    return [str(c) for c in range(count)]


def task_of(name: str) -> TaskDefinition:
    """What a folder says its task is; of another version's, node classification."""
    return task_or_default(name)


def is_federated(row: Mapping[str, Any]) -> bool:
    """Whether something crosses between the sites of a row in training, and they keep their data."""
    known = METHODS.find(row["method"])
    return bool(row["bytes"]["mean"]) and not (known is not None and known.pooled)


def best_of(rows: Sequence[ComparedRow], part: Literal["val", "test"], figures: Figures) -> ComparedRow:
    """The row with the best mean of the metric that decides on a part of the split."""
    sign = -1 if isinstance(figures, Errors) else 1

    def score(row: ComparedRow) -> float:
        mean = row[part][figures.metric]["mean"]
        return -math.inf if mean is None else sign * mean

    return max(rows, key=score)
