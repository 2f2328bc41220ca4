"""The files of a report: one page on a run or a comparison, and a run's model card.

A comparison's figures are those of comparison.json; only the paired test is computed here. The wording is in
the templates. The page needs no network and runs no script.
"""

from collections.abc import Sequence
from pathlib import Path

from graphfed import __version__
from graphfed.data.graphs.overview import client_facts, graph_facts
from graphfed.data.sensors.overview import sensor_facts
from graphfed.errors import InputError
from graphfed.files import write_bytes, writing
from graphfed.methods.base import Method
from graphfed.methods.config import GraphSettings
from graphfed.methods.registry import METHODS
from graphfed.report import forecasts
from graphfed.report.charts import DOTS, result_charts
from graphfed.report.device import devices, worst_device
from graphfed.report.figures import Errors, Figures, Shares
from graphfed.report.forecast_charts import forecast_charts
from graphfed.report.forecast_table import SensorErrors
from graphfed.report.read import Run, Subject, read_subject
from graphfed.report.results import (
    best_row,
    class_rows,
    epsilon,
    followed_metric,
    metric_name,
    opening,
    result_table,
    run_scores,
)
from graphfed.report.templates import filled, sentences
from graphfed.report.transfers import left
from graphfed.runs.overview_schema import GraphOverview
from graphfed.runs.progress import human_bytes
from graphfed.tasks.headline import NAMES, headline, name_of
from graphfed.tasks.registry import task_or_default

__all__ = ["log_device", "write_card", "write_report"]


def write_report(
    folders: Sequence[str | Path], out: str | Path | None = None, *, device: int | None = None
) -> Path:
    """Write the report on the run or comparison in a folder, or on the runs in several.

    Args:
        folders: Of the runs, or of the comparison.
        out: The file; None for report.html in the folder. With several folders it must be given.
        device: The number of the client that is shown by itself, where a run keeps an account of each
            (clients.parquet); None for the one whose features are protected least.

    Returns:
        The path of the page.

    Raises:
        InputError: A folder cannot be reported on, or has no such device.
        GraphfedError: The disk refuses the file.
    """
    subject = read_subject(folders)
    if out is None and len(folders) > 1:
        raise InputError("a report on several folders needs a file to go to; give --out FILE.html")
    path = Path(folders[0]) / "report.html" if out is None else Path(out)
    if path.suffix != ".html":
        raise InputError(f"the report {path} must end in .html")
    page = _page(subject, device)
    with writing(f"the report {path}"):
        write_bytes(path, page.encode())
    return path


def log_device(folder: str | Path, device: int) -> list[str]:
    """What one device of the run in a folder (of a comparison: of its first that keeps an account of each)
    sent and gave away, in sentences; raises what `write_report` raises."""
    return devices(read_subject([folder]), device)[0].sentences


def write_card(folder: str | Path) -> Path:
    """Write model_card.md into the folder of a finished run: what its model is, was trained on and can do.

    Raises what `write_report` raises."""
    run = read_subject([folder]).first
    method = METHODS.find(run.result.method)
    alone = Subject({run.result.method: [run]}, None)
    figures = _figures(alone)
    text = filled(
        "card.md.jinja",
        run,
        version=__version__,
        result=run.result,
        manifest=run.manifest,
        training=run.manifest.config.training,
        network=_network(run, method),
        sensors=forecasts.sensors_of(run),
        forecast=" ".join(sentences("forecast_words", forecast=forecasts.forecast_of(run))),
        method_summary="" if method is None else method.summary,
        learns=method is None or method.trains,
        personal=method is not None and method.personal,
        summary=_answer(alone, figures).rstrip("."),
        caveats=_readings_caveats(alone, figures, None),
        scores=run_scores(run, figures),
        headline=figures.metric,
        left=left(run.result.method, run),
        worst=worst_device(run),
        audits=_audited(alone),
        epsilon=epsilon([run]),
        folder=run.folder.name,
        task=task_or_default(run.result.task),
    )
    path = Path(folder) / "model_card.md"
    with writing(path):
        write_bytes(path, text.encode())
    return path


def _network(run: Run, method: Method | None) -> str:
    """The name of the graph network of a run: the one that was chosen, or the only one of its method."""
    chosen = run.manifest.config.training.get("backbone")
    if chosen is None and method is not None and issubclass(method.config, GraphSettings):
        chosen = method.config().architecture
    return str(chosen or "graph network")


def _page(subject: Subject, device: int | None) -> str:
    """The page's HTML, with a device of its own where the runs keep an account of each. Texts of the run's
    files are escaped; charts are our own SVG."""
    first, comparison = subject.first, subject.comparison
    result, figures = first.result, _figures(subject)
    shown = best_row(subject, figures)
    tested, charts = None, result_charts(subject, figures)
    if isinstance(figures, Errors):
        tested = forecasts.tested(subject.rows[shown][0])
        charts |= forecast_charts(subject, subject.rows[shown][0], figures, tested)
    return filled(
        "page.html.jinja",
        first,
        version=__version__,
        title=f"{', '.join(subject.rows)} on {result.dataset}",
        answer=_answer(subject, figures),
        caveats=[*_readings_caveats(subject, figures, tested), *_caveats(subject)],
        result=result,
        table=None if comparison is None else result_table(subject, figures),
        task=task_or_default(result.task),
        figures=figures,
        unit=figures.unit if isinstance(figures, Errors) else "",
        scores=None if comparison is not None else run_scores(first, figures),
        classes=class_rows(subject, figures),
        followed=metric_name(followed_metric(subject, figures), figures),
        charts=charts,
        shown=shown,
        overview=first.overview if isinstance(first.overview, GraphOverview) else None,
        facts=_facts(first),
        left=[left(label, runs[0]) for label, runs in subject.rows.items()],
        devices=devices(subject, device),
        dots=DOTS,
        audits=_audited(subject),
        rows=subject.rows,
        manifest=first.manifest,
        seeds=sorted({run.result.seed for runs in subject.rows.values() for run in runs}),
    )


def _figures(subject: Subject) -> Figures:
    """How the figures of these runs are written."""
    result = subject.first.result
    task = task_or_default(result.task)
    if task.error:
        return forecasts.errors_of(subject)
    if task.headline is None:
        return Shares(task.metric, task.metric_name)
    first = tuple(headline(result.task, result.details, result.test))
    return Shares(first[0], name_of(first[0]), first, NAMES)


def _answer(subject: Subject, figures: Figures) -> str:
    """One sentence: the result, with its spread and the row that bounds it."""
    run = subject.first
    sensors = task_or_default(run.result.task).data.name == "sensors"
    forecast = forecasts.forecast_of(run) if sensors else None
    if subject.comparison is not None:
        best, errors = opening(subject, figures), isinstance(figures, Errors)
        told = sentences("comparison_answer", best=best, figures=figures, forecast=forecast, errors=errors)
        return told[0]
    # The other metrics that belong to the first one, where that is not accuracy.
    belonging = figures.headline[1:] if isinstance(figures, Shares) and figures.metric != "accuracy" else ()
    test = run.result.test
    others = [(figures.name(m), figures.told(m, test[m])) for m in belonging if test.get(m) is not None]
    sent = human_bytes(run.result.bytes["total"])
    (told_run,) = sentences(
        "run_answer", result=run.result, figures=figures, forecast=forecast, others=others, sent=sent
    )
    return told_run


def _readings_caveats(subject: Subject, figures: Figures, tested: SensorErrors | None) -> list[str]:
    """What a reader must know of sensors' readings before believing the errors."""
    told = forecasts.readings(subject, figures, tested) if isinstance(figures, Errors) else None
    return [] if told is None else sentences("readings_caveats", readings=told)


def _caveats(subject: Subject) -> list[str]:
    """What a reader must know of the runs before believing the figures."""
    runs = [(label, run) for label, those in subject.rows.items() for run in those]
    diverged = [
        (label, run.result.seed, lost)
        for label, run in runs
        if (lost := run.result.details.get("diverged_in_round"))
    ]
    comparison = subject.comparison
    if comparison is None:
        warnings = [one["text"] for one in subject.first.result.details.get("warnings", ())]
    else:
        warnings = [warning.text for warning in comparison.warnings]
    deployed = any(run.deployed for _, run in runs)
    return sentences(
        "caveats", diverged=diverged, warnings=warnings, deployed=deployed, comparison=comparison
    )


def _facts(run: Run) -> list[tuple[str, str]]:
    """An overview's numbers, in words and for people; none where there is no overview."""
    if run.overview is None:
        return []
    told = run.overview.model_dump()
    if isinstance(run.overview, GraphOverview):
        return [*graph_facts(told), *client_facts(told)]
    observed = run.overview.sensors.observed
    trained = [("sensors trained on", f"{sum(observed):,} of {len(observed):,}")] * (not all(observed))
    return [*sensor_facts(told), *trained, ("clients", f"{run.result.clients:,}")]


def _audited(subject: Subject) -> list[tuple[str, Run]]:
    """Of each row that has one, the first run that `graphfed audit` has attacked."""
    audited = [(label, run) for label, runs in subject.rows.items() for run in runs if run.audit is not None]
    return list({label: (label, run) for label, run in reversed(audited)}.values())[::-1]
