"""Draws results as figures of matplotlib, for notebooks and programs, with the charts of the report."""

from typing import TYPE_CHECKING

from graphfed.drawing.canvas import draw_figure
from graphfed.drawing.charts import XY, Axis, Series
from graphfed.errors import InputError, did_you_mean
from graphfed.report.charts import curves, lines
from graphfed.runs.result import Result
from graphfed.studies.comparison import Comparison
from graphfed.tasks.headline import headline
from graphfed.tasks.registry import get_task

if TYPE_CHECKING:
    from graphfed.drawing.canvas import Figure


def draw_history(result: Result, metric: str | None) -> "Figure":
    """Draw a validation metric of a run by round; None for the metric that selected the round."""
    task = get_task(result.task)
    evaluated = [(line["round"], line["val"]) for line in result.history if line["val"] is not None]
    known = list(dict.fromkeys(name for _, val in evaluated for name in val))
    if metric is None:
        metric = str(result.details.get("selected_by") or task.metric)
    points = [(float(number), val[metric]) for number, val in evaluated if val.get(metric) is not None]
    if not points:
        raise InputError(
            f"no round of this run has a validation metric {metric!r}; {did_you_mean(metric, known)}"
        )
    x, y = zip(*points, strict=True)
    unit = f"unit of the {task.targets}" if task.error else None
    chart = curves(lines({result.method: [(x, y)]}), metric.replace("_", " "), task.scored, unit)
    return draw_figure([[chart]])


def draw_comparison(comparison: Comparison, metric: str | None) -> "Figure":
    """Draw a test metric of every row with one standard deviation; None for the one that ranks the rows."""
    first = comparison.rows[0]["test"]
    if metric is None:
        metric = headline(comparison.task, comparison.rows[0], first)[0]
    if metric not in first:
        raise InputError(f"this comparison has no test metric {metric!r}; {did_you_mean(metric, first)}")
    series = []
    for place, row in enumerate(comparison.rows):
        found = row["test"][metric]
        if found["mean"] is not None:
            spread = [found["std"] or 0.0]
            series.append(Series("", [found["mean"]], [place], spread, place, dash="", size=7.0))
    y = Axis(
        ticks={k: row["label"] for k, row in enumerate(comparison.rows)},
        low=len(comparison.rows) - 0.5,
        high=-0.5,
    )
    x = Axis(f"test {metric.replace('_', ' ')} ({len(comparison.seeds)} seeds)")
    return draw_figure([[XY(series, x, y, spread="across", height=0.9 + 0.42 * len(comparison.rows))]])
