"""Draws the charts of runs and comparisons as SVG elements of the page."""

from collections.abc import Mapping, Sequence

import numpy as np

from graphfed.drawing.canvas import DASHES, MUTED, WIDTH, short, svg_element
from graphfed.drawing.charts import XY, Axis, Bars, Heatmap, Series
from graphfed.report.figures import Errors, Figures
from graphfed.report.one_client import Statistics
from graphfed.report.overviews import class_bars, client_network, degree_bars
from graphfed.report.read import Run, Subject
from graphfed.report.results import best_row, class_names, confusion_of, followed_metric, metric_name
from graphfed.runs.overview_schema import GraphOverview
from graphfed.runs.progress import human_bytes
from graphfed.tasks.registry import task_or_default

#: The most points of a cumulative distribution, and the most clients that have a mark.
POINTS, DOTS = 200, 500
#: The directions in result.json, as the charts name them.
LINKS = {"up": "client to server", "down": "server to client", "peer": "client to client"}
#: The most transfers that have a bar.
DRAWN_TRANSFERS = 12
SENT = "bytes of set-up and training"


def byte_axis(label: str) -> Axis:
    """Return an axis of numbers of bytes, from 0."""
    return Axis(label, low=0, written=human_bytes)


def lines(
    rows: Mapping[str, Sequence[tuple[Sequence[float], Sequence[float]]]], among: Sequence[str] | None = None
) -> list[Series]:
    """Average the curves (x, y) of each row's runs, with a band of one sample standard deviation.

    The order of `among` (None: of the rows) determines the colours. A row with a single point becomes a
    horizontal line.
    """
    series = []
    for label, runs in rows.items():
        x, values = runs[0][0], np.array([y for _, y in runs], dtype=float)
        # A band needs several runs, and a line; a level has none.
        spread = values.std(0, ddof=1) if len(runs) > 1 and len(x) > 1 else None
        place = list(rows if among is None else among).index(label)
        level = len(x) == 1
        series.append(
            Series(label, () if level else x, values.mean(0), spread, place, dash="--" if level else "-")
        )
    return series


def result_charts(subject: Subject, figures: Figures) -> dict[str, str]:
    """Draw the results, the graph and the bytes: SVG elements by name, without empty charts."""
    drawn = {**_score_charts(subject, figures), **_byte_charts(subject), **_statistics_charts(subject)}
    overview = subject.first.overview
    if isinstance(overview, GraphOverview):
        if overview.drawing.nodes:
            drawn["partition"] = svg_element("the graph and its clients", [[client_network(overview)]])
        if any(sum(client.classes) for client in overview.clients):
            drawn["classes"] = svg_element("classes of each client", [[class_bars(overview)]])
        if overview.nodes:
            drawn["degrees"] = svg_element("neighbours of a node", [[degree_bars(overview)]])
    return drawn


def _score_charts(subject: Subject, figures: Figures) -> dict[str, str]:
    drawn: dict[str, str] = {}
    task = task_or_default(subject.first.result.task)
    unit = (figures.unit or f"unit of the {task.targets}") if isinstance(figures, Errors) else None
    followed = followed_metric(subject, figures)
    drawable = {label: _shared_rounds(runs, followed) for label, runs in subject.rows.items()}
    # A curve of percentages needs two points. Of forecasts, a row with one point is drawn as a level: a
    # method that trains nothing is what the others have to beat.
    drawable = {
        label: runs for label, runs in drawable.items() if len(runs[0][0]) >= (2 if unit is None else 1)
    }
    if any(len(runs[0][0]) > 1 for runs in drawable.values()):
        name = metric_name(followed, figures)
        drawn["curves"] = svg_element(
            f"{name} by round", [[curves(lines(drawable), name, task.scored, unit)]]
        )
    if subject.comparison is not None:
        costs = [
            (row["label"], sent, mean, row["test"][figures.metric]["std"])
            for row in subject.comparison.rows
            if (mean := row["test"][figures.metric]["mean"]) is not None
            and (sent := row["bytes"]["mean"]) is not None
        ]
        if any(sent for _, sent, _, _ in costs):
            title = f"test {figures.display_name} against bytes"
            drawn["costs"] = svg_element(title, [[_costs(costs, figures.display_name, unit)]])
    found = {label: runs[0].result.details.get("test_roc") for label, runs in subject.rows.items()}
    if any(found.values()):
        rocs = {label: points for label, points in found.items() if points}
        drawn["roc"] = svg_element("ROC curve", [[_roc(rocs)]], width=min(WIDTH, 3.6))
    shown = subject.rows[best_row(subject, figures)][0]
    counts = confusion_of(shown)
    if counts is not None:
        chart = confusion(counts, class_names(subject.first, len(counts)))
        drawn["confusion"] = svg_element("confusion matrix", [[chart]], width=chart.height / 0.86)
    dots = {label: runs[0].client_accuracy for label, runs in subject.rows.items() if runs[0].client_accuracy}
    # With a single test node the accuracy of a client is 0 or 1, which is not worth a chart.
    of_several = any(
        max(n for _, n in clients.values()) > 1 and len(clients) > 1 for clients in dots.values()
    )
    if of_several and figures.metric == "accuracy":
        drawn["clients"] = svg_element("accuracy of each client", [[_client_dots(dots)]])
    return drawn


def _shared_rounds(runs: Sequence[Run], metric: str) -> list[tuple[list[float], list[float]]]:
    """Return each run's validation metric in the rounds in which all runs were evaluated."""
    curves = [
        {line.round: value for line in run.history if (value := (line.val or {}).get(metric)) is not None}
        for run in runs
    ]
    shared = sorted(set.intersection(*map(set, curves)))
    return [([float(r) for r in shared], [curve[r] for r in shared]) for curve in curves]


def curves(series: Sequence[Series], metric: str, scored: str, unit: str | None) -> XY:
    """Draw the validation metric by round.

    The errors of the first rounds may be so large that all later ones would look equal. The axis then ends
    below them, and its label says so. `unit` is that of an error, None for a percentage.
    """
    means = [np.asarray(one.y, dtype=float) for one in series]
    later = np.concatenate([mean[len(mean) // 5 :] for mean in means])
    # The limits follow from the last four fifths of the rounds.
    low, high = float(later.min()), float(later.max())
    more = 0.2 * max(high - low, 0.05 * high)
    above = unit is not None and max(mean.max() for mean in means) > high + more + 2 * (high - low)
    x = Axis("communication round" + (" (the first rounds are above the frame)" if above else ""), whole=True)
    label = f"{metric}, validation {scored}" if len(metric) < 12 else f"validation {metric}"
    label = label if unit is None else f"validation {metric} ({unit})"
    y = Axis(label, low=low - more, high=high + more) if above else Axis(label)
    return XY(series, x, y, height=2.9)


def _costs(rows: Sequence[tuple[str, float, float, float | None]], metric: str, unit: str | None) -> XY:
    """Draw a test metric against bytes: (label, bytes, mean, deviation) of each row.

    Rows that sent nothing are at the left end of the logarithmic axis. `unit` is that of an error, "" if it
    is not known, and None for a fraction, which is drawn in percent.
    """
    sent = [amount for _, amount, _, _ in rows if amount]
    low, high = min(sent), max(sent)
    # Zero has no place on a logarithmic axis, so it stands left of the smallest amount.
    nothing, scale = low / 8, 100 if unit is None else 1
    powers = range(int(np.floor(np.log10(low))) - 1, int(np.ceil(np.log10(high))) + 1)
    steps = [factor * 10.0**e for e in powers for factor in (1, 2, 5)]
    ticks = [t for t in steps if max(low / 3, 2 * nothing) < t < 3 * high]
    # Too many texts would overlap: whole powers of ten only.
    ticks = ticks if len(ticks) <= 7 else [t for t in ticks if np.log10(t) % 1 == 0]
    series = [
        Series(label, [amount or nothing], [scale * mean], [scale * (std or 0.0)], i, dash="", size=7.0)
        for i, (label, amount, mean, std) in enumerate(rows)
    ]
    named = {nothing: "nothing", **{t: human_bytes(t) for t in ticks}}
    shown = "percent" if unit is None else unit
    x = Axis("bytes of set-up and training, mean over runs", scale="log", ticks=named)
    return XY(series, x, Axis(f"test {metric}, {shown}" if shown else f"test {metric}"), spread="bars")


def _roc(rows: Mapping[str, Sequence[Sequence[float]]]) -> XY:
    guess = Series("", [0, 1], [0, 1], colour=MUTED, dash="--", marker="")
    series = [
        Series(label, [x for x, _ in points], [y for _, y in points], place=i)
        for i, (label, points) in enumerate(rows.items())
    ]
    x = Axis("false positive rate", low=-0.02, high=1.02)
    y = Axis("true positive rate", low=-0.02, high=1.02)
    return XY([guess, *series], x, y, height=3.2, square=True)


def confusion(counts: Sequence[Sequence[float]], names: Sequence[str]) -> Heatmap:
    """Draw nodes [C, C] by true class (rows) and predicted class: percentage of the true class, and number.

    A class without nodes has dashes.
    """
    size = len(names)
    table = np.array(counts, dtype=float)
    known = table.sum(1)
    fractions = table[:, :size] / np.maximum(known[:, None], 1)
    texts = {
        (i, j): (f"{100 * fractions[i, j]:.0f}", f"{table[i, j]:,.6g}") if known[i] else ("\N{EN DASH}", "")
        for i in range(size)
        for j in range(size)
        if size <= 12
    }
    rows = {i: short(name, 20) + ("" if known[i] else " (none)") for i, name in enumerate(names)}
    x = Axis("predicted class", ticks={i: short(name, 14) for i, name in enumerate(names)}, room=40)
    y = Axis("true class", low=size - 0.5, high=-0.5, ticks=rows)
    return Heatmap(fractions, x, y, texts=texts, height=0.86 * min(WIDTH, 2.2 + 0.42 * size))


def _client_dots(rows: Mapping[str, Mapping[str, tuple[float, int]]]) -> XY:
    """Draw (accuracy, test nodes) of every client as a dot whose area grows with the number of test nodes.

    Of more than DOTS clients, those with the most test nodes are drawn.
    """
    most = max((count for clients in rows.values() for _, count in clients.values()), default=1)
    series = []
    for place, clients in enumerate(rows.values()):
        # Clients with the most test nodes have the most reliable accuracies.
        drawn = sorted(clients.values(), key=lambda client: -client[1])[:DOTS]
        values = [100 * accuracy for accuracy, _ in drawn]
        size = np.sqrt([12 + 90 * count / most for _, count in drawn])
        series.append(Series("", values, [place] * len(values), place=place, size=size, alpha=0.55))
    y = Axis(ticks={i: short(label) for i, label in enumerate(rows)}, low=len(rows) - 0.5, high=-0.5)
    x = Axis("test accuracy, percent (a larger mark has more test nodes)")
    return XY(series, x, y, height=0.9 + 0.42 * len(rows))


def _byte_charts(subject: Subject) -> dict[str, str]:
    drawn: dict[str, str] = {}
    counted = {label: runs[0].result.bytes for label, runs in subject.rows.items()}
    links = {label: sent for label, sent in counted.items() if any(sent[key] for key in LINKS)}
    if links:
        used = {key: label for key, label in LINKS.items() if any(sent[key] for sent in links.values())}
        parts = {label: [sent[key] for sent in links.values()] for key, label in used.items()}
        drawn["links"] = svg_element("bytes by link", [[_byte_bars(list(links), parts)]])
    by_transfer = subject.first.result.bytes["by_transfer"]
    if by_transfer and subject.comparison is None:
        # Small transfers would have bars without width.
        largest = dict(sorted(by_transfer.items(), key=lambda item: -item[1])[:DRAWN_TRANSFERS])
        chart = _byte_bars(list(largest), {"bytes": list(largest.values())})
        drawn["transfers"] = svg_element("bytes by transfer", [[chart]])
    return drawn


def _byte_bars(names: Sequence[str], parts: Mapping[str, Sequence[float]]) -> Bars:
    largest = max(sum(amounts) for amounts in zip(*parts.values(), strict=True))
    # The axis leaves room for the sum at the end of the longest bar.
    amount = Axis(SENT, low=0, high=1.16 * max(largest, 1), written=human_bytes)
    return Bars(names, parts, amount, across=True, total=human_bytes)


def _statistics_charts(subject: Subject) -> dict[str, str]:
    """Draw how per-client statistics are distributed over the clients, for the first seed of each row."""
    drawn: dict[str, str] = {}
    found = {label: s for label, runs in subject.rows.items() if (s := runs[0].statistics) is not None}
    workload = {label: statistics["kept"] for label, statistics in found.items() if "kept" in statistics}
    if workload:
        if len(workload) == 1:
            workload = {"in its tree": next(iter(workload.values()))}
        degree = next((s["neighbours"] for s in found.values() if "neighbours" in s), None)
        rows = workload if degree is None else {"all neighbours": degree, **workload}
        chart = _cumulative(rows, "neighbours in a client's tree")
        drawn["workload"] = svg_element("workload of clients", [[chart]])
    spent = {label: s["epsilon_colluding"] for label, s in found.items() if "epsilon_colluding" in s}
    if any(values.max() > 0 for values in spent.values()):
        chart = _cumulative(spent, "epsilon against all receivers of a client together")
        drawn["colluding"] = svg_element("epsilon of clients", [[chart]])
    return drawn


def _cumulative(rows: Statistics, quantity: str) -> XY:
    """Draw the cumulative distribution over clients of a quantity, values [K] by label."""
    series = []
    for i, (label, values) in enumerate(rows.items()):
        ordered = np.sort(values)
        at = np.unique(ordered)
        # An SVG element has every point, and a page on many clients stays small.
        if len(at) > POINTS:
            at = np.unique(np.quantile(ordered, np.linspace(0, 1, POINTS), method="inverted_cdf"))
        fraction = np.searchsorted(ordered, at, side="right") / len(ordered)
        # The first step begins at a fraction of 0.
        series.append(Series(label, [at[0], *at], [0, *fraction], place=i, dash=DASHES[i % 4], marker=""))
    x = Axis(quantity, scale="symlog", low=0)
    return XY(series, x, Axis("fraction of clients", low=0, high=1.02), steps=True)
