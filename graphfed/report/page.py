"""Writes the files of a report: one page on a run or a comparison, and the model card of a run.

The figures of a comparison are those of comparison.json; only the paired test is computed here. The wording
is in the templates. The page needs no network and runs no script.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

from graphfed import __version__
from graphfed.data.graphs.overview import client_facts, graph_facts
from graphfed.data.sensors.overview import sensor_facts
from graphfed.errors import InputError
from graphfed.files import write_bytes, writing
from graphfed.methods.base import Method
from graphfed.methods.registry import METHODS
from graphfed.methods.settings import value
from graphfed.report import forecasts
from graphfed.report.charts import DOTS, result_charts
from graphfed.report.figures import Errors, Figures, Percentages
from graphfed.report.forecast_charts import forecast_charts
from graphfed.report.forecast_table import SensorErrors
from graphfed.report.one_client import clients_shown, worst_client
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
from graphfed.report.templates import fill_template, sentences
from graphfed.report.transfers import left
from graphfed.runs.overview_schema import GraphOverview
from graphfed.runs.progress import human_bytes
from graphfed.tasks.headline import NAMES, headline, name_of
from graphfed.tasks.registry import task_or_default


def write_report(
    folders: Sequence[str | Path], out: str | Path | None = None, *, client: int | None = None
) -> Path:
    """Write the report on a run, on a comparison, or on several runs.

    Args:
        folders: The folder of a run or a comparison, or the folders of several runs.
        out: The file; None for report.html in the folder. Several folders need a file.
        client: The number of the client that the page shows by itself, if the run has per-client statistics
            (clients.parquet); None for the client whose features are protected least.

    Returns:
        The path of the page.

    Raises:
        InputError: A folder cannot be reported on, or its run has no such client.
        GraphfedError: The file cannot be written.
    """
    subject = read_subject(folders)
    if out is None and len(folders) > 1:
        raise InputError("a report on several folders needs an output file; give --out FILE.html")
    path = Path(folders[0]) / "report.html" if out is None else Path(out)
    if path.suffix != ".html":
        raise InputError(f"the name of the report {path} must end in .html")
    # The page is complete before the file is opened, so a failure leaves no part of it.
    page = _page(subject, client)
    with writing(f"the report {path}"):
        write_bytes(path, page.encode())
    return path


def describe_client(folder: str | Path, client: int) -> list[str]:
    """Describe what one client of a run, or of a comparison's first run with statistics, disclosed.

    Raises:
        InputError: The folder cannot be reported on, or its run has no such client.
    """
    return clients_shown(read_subject([folder]), client)[0].sentences


def write_card(folder: str | Path) -> Path:
    """Write model_card.md into the folder of a finished run.

    The card says what the model is, what it was trained on, how good it is, and where its limits are.

    Raises:
        InputError: The folder cannot be reported on.
        GraphfedError: The file cannot be written.
    """
    run = read_subject([folder]).first
    method = METHODS.find(run.result.method)
    # The card is about one run, also if its folder lies in that of a comparison.
    alone = Subject({run.result.method: [run]}, None)
    figures = _figures(alone)
    text = fill_template(
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
        worst=worst_client(run),
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
    """Return the name of a run's graph network: the chosen one, or the only one of its method."""
    chosen = run.manifest.config.training.get("backbone")
    if chosen is None and method is not None:
        # A method with one network has no such setting, but its default config names the network.
        chosen = value(method.configure({}), "backbone")
    return str(chosen or "graph network")


def _page(subject: Subject, client: int | None) -> str:
    """Return the HTML of the page, which shows `client` by itself if the runs have per-client statistics.

    Texts from files of runs are escaped; only the charts, which are our own SVG, are not.
    """
    first, comparison = subject.first, subject.comparison
    result, figures = first.result, _figures(subject)
    shown = best_row(subject, figures)
    tested, charts = None, result_charts(subject, figures)
    if isinstance(figures, Errors):
        tested = forecasts.tested(subject.rows[shown][0])
        charts |= forecast_charts(subject, subject.rows[shown][0], figures, tested)
    return fill_template(
        "page.html.jinja",
        first,
        version=__version__,
        title=f"{', '.join(subject.rows)} on {result.dataset}",
        answer=_answer(subject, figures),
        caveats=[*_readings_caveats(subject, figures, tested), *_caveats(subject)],
        result=result,
        comparison=comparison,
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
        clients=clients_shown(subject, client),
        dots=DOTS,
        audits=_audited(subject),
        rows=subject.rows,
        manifest=first.manifest,
        seeds=sorted({run.result.seed for runs in subject.rows.values() for run in runs}),
    )


def _figures(subject: Subject) -> Figures:
    """Return how the metrics of these runs are written."""
    result = subject.first.result
    task = task_or_default(result.task)
    if task.error:
        return forecasts.errors_of(subject)
    if not task.chooses_headline:
        return Percentages(task.metric, task.metric_name)
    first = tuple(headline(result.task, result.details, result.test))
    return Percentages(first[0], name_of(first[0]), first, NAMES)


def _answer(subject: Subject, figures: Figures) -> str:
    """Return the sentence that opens a report: the result, its spread, and the rows to compare it with."""
    run = subject.first
    sensors = task_or_default(run.result.task).data.name == "sensors"
    forecast = forecasts.forecast_of(run) if sensors else None
    if subject.comparison is not None:
        best, errors = opening(subject, figures), isinstance(figures, Errors)
        return sentences("comparison_answer", best=best, figures=figures, forecast=forecast, errors=errors)[0]
    # If the first metric is not accuracy, the other metrics of the headline follow it in brackets.
    belonging: Sequence[str] = ()
    if isinstance(figures, Percentages) and figures.metric != "accuracy":
        belonging = figures.headline[1:]
    test = run.result.test
    others = [(figures.name(m), figures.with_unit(m, test[m])) for m in belonging if test.get(m) is not None]
    sent = human_bytes(run.result.bytes["total"])
    return sentences(
        "run_answer", result=run.result, figures=figures, forecast=forecast, others=others, sent=sent
    )[0]


def _readings_caveats(subject: Subject, figures: Figures, tested: SensorErrors | None) -> list[str]:
    return forecasts.readings_caveats(subject, figures, tested) if isinstance(figures, Errors) else []


def _caveats(subject: Subject) -> list[str]:
    """Return what a reader must know about the runs before trusting the figures."""
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
    noised = epsilon([run for _, run in runs]) != "none"
    # The sites whose signed statements about a deployed run were verified.
    statements = [run.result.details.get("verified") for _, run in runs]
    verified = {site for each in statements if isinstance(each, Mapping) for site in each["sites"]}
    return sentences(
        "caveats",
        diverged=diverged,
        warnings=warnings,
        deployed=deployed,
        verified=sorted(verified),
        noised=noised,
        comparison=comparison,
    )


def _facts(run: Run) -> list[tuple[str, str]]:
    """Return the names and values of an overview's numbers; none without an overview."""
    if run.overview is None:
        return []
    overview = run.overview.model_dump()
    if isinstance(run.overview, GraphOverview):
        return [*graph_facts(overview), *client_facts(overview)]
    observed = run.overview.sensors.observed
    trained = [("sensors trained on", f"{sum(observed):,} of {len(observed):,}")] * (not all(observed))
    return [*sensor_facts(overview), *trained, ("clients", f"{run.result.clients:,}")]


def _audited(subject: Subject) -> list[tuple[str, Run]]:
    """Return, for each row that has one, the first run that `graphfed audit` has attacked."""
    audited = [(label, run) for label, runs in subject.rows.items() for run in runs if run.audit is not None]
    # Reversed, so that the first run of a label remains in the dictionary.
    return list({label: (label, run) for label, run in reversed(audited)}.values())[::-1]
