"""The page: what a report says, in which order, and the file.

A comparison's figures are those of comparison.json; nothing is worked out here but the paired test. The page
needs no network and runs no script.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from graphfed import __version__
from graphfed.data.graphs.overview import graph_facts, site_facts
from graphfed.deployment.participant import MESSAGES as DEPLOYED
from graphfed.errors import GraphfedError, InputError
from graphfed.federation.ledger import is_readable, is_simulated
from graphfed.files import write_bytes
from graphfed.methods.base import Method
from graphfed.methods.common.entity_alignment import OWNER_MESSAGES
from graphfed.methods.config import GraphSettings
from graphfed.methods.references import TESTED_AGAINST
from graphfed.methods.registry import METHODS
from graphfed.report import charts, forecasts
from graphfed.report.device import device_of, device_told, worst_told
from graphfed.report.figures import Errors, Figures, Shares
from graphfed.report.forecast_table import SensorErrors
from graphfed.report.page_charts import (
    best_of,
    best_row,
    charts_of,
    class_rows,
    followed_metric,
    is_federated,
    metric_name,
    run_scores,
    task_of,
)
from graphfed.report.read import Run, Subject, read_subject
from graphfed.runs.progress import human_bytes, human_seconds
from graphfed.runs.train import MESSAGES
from graphfed.tasks.headline import NAMES, headline, name_of
from graphfed.terminal import printable

__all__ = ["tell_device", "write_card", "write_report"]

PROTECTION = {
    "clear": "none: the receiver reads it",
    "public": "public: it says nothing of anyone's data",
    "aggregate": "the receiver gets only the total",
    "shared": "secret shares",
    "encrypted": "encrypted",
    "keyed hash": "a keyed hash: the receiver can compare, not read",
    "simulated": "simulated: nothing is hidden in this run",
}
#: More sites than this have no column each in the table of what each sent.
SITE_COLUMNS = 12
#: From the ledger's ends to words.
LINKS = {
    ("clients", "server"): "site to server",
    ("server", "clients"): "server to site",
    ("clients", "clients"): "site to site",
}


def write_report(
    folders: Sequence[str | Path], out: str | Path | None = None, *, device: int | None = None
) -> Path:
    """Write the report on the run or comparison in a folder, or on the runs in several, and give its path.

    out: the file; None for report.html in the folder (with several folders it must be given). device: the
    number of the client that is shown by itself, where a run keeps an account of each (clients.parquet); None
    for the one whose features are protected least.
    Raises InputError for folders that cannot be reported on and a device that they do not have, GraphfedError
    when the disk refuses the file."""
    subject = read_subject(folders)
    if out is None and len(folders) > 1:
        raise InputError("a report on several folders needs a file to go to; give --out FILE.html")
    path = Path(folders[0]) / "report.html" if out is None else Path(out)
    if path.suffix != ".html":
        raise InputError(f"the report {path} must end in .html")
    page = render(subject, device)
    try:
        write_bytes(path, page.encode())
    except OSError as error:
        raise GraphfedError(f"the report {path} could not be written: {error.strerror or error}") from error
    return path


def tell_device(folder: str | Path, device: int) -> list[str]:
    """What one device of the run in a folder (of a comparison: of its first that keeps an account of each)
    sent and gave away, in sentences; raises what `write_report` raises."""
    (told, *_) = _devices(read_subject([folder]), device)
    return list(told["sentences"])


def write_card(folder: str | Path) -> Path:
    """Write model_card.md into the folder of a finished run: what its model is, was trained on and can do.

    Raises what `write_report` raises."""
    run = read_subject([folder]).first
    path = Path(folder) / "model_card.md"
    method = METHODS.find(run.result.method)
    alone = Subject({run.result.method: [run]}, None)
    figures = _figures(alone)
    text = _filled(
        "card.md.jinja",
        run,
        version=__version__,
        result=run.result,
        manifest=run.manifest,
        training=run.manifest["config"]["training"],
        network=_network(run, method),
        sensors=forecasts.sensors_of(run),
        forecast=forecasts.what_is_forecast(run),
        method_summary="" if method is None else method.summary,
        learns=method is None or bool(method.state.model),
        personal=method is not None and method.personal,
        summary=_answer(alone, figures).rstrip("."),
        caveats=forecasts.caveats(alone, figures, None) if isinstance(figures, Errors) else [],
        scores=run_scores(run, figures),
        headline=figures.metric,
        left=_left(run.result.method, run),
        worst=worst_told(run),
        audits=_audits(alone),
        epsilon=_epsilon([run]),
        folder=run.folder.name,
        task=task_of(run.result.task),
    )
    try:
        write_bytes(path, text.encode())
    except OSError as error:
        raise GraphfedError(f"{path} could not be written: {error.strerror or error}") from error
    return path


def _network(run: Run, method: Method | None) -> str:
    """The name of the graph network of a run: the one that was chosen, or the only one of its method."""
    chosen: str | None = run.manifest["config"]["training"].get("backbone")
    if chosen is None and method is not None and issubclass(method.config, GraphSettings):
        chosen = method.config().architecture
    return chosen or "graph network"


def _environment(escape: bool) -> Any:
    """The templates beside this file; a name that a template lacks is an error."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("graphfed.report", "."),
        autoescape=escape,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_html_text if escape else _markdown_text,
    )
    environment.filters["code"] = _markdown_code
    return environment


def _filled(template: str, run: Run, **values: Any) -> str:
    """A template with its values; InputError where the manifest lacks what the template shows of it."""
    from jinja2 import UndefinedError

    try:
        return str(_environment(escape=".html" in template).get_template(template).render(**values))
    except UndefinedError as error:
        raise InputError(
            f"{run.folder / 'manifest.json'} is damaged, or of another version of graphfed: {error}"
        ) from None


def _html_text(value: Any) -> Any:
    """A value as the page shows it; autoescaping comes after this."""
    return printable(value) if isinstance(value, str) and not hasattr(value, "__html__") else value


def _markdown_text(value: Any) -> Any:
    """A value as plain text in Markdown, in one line: no markup, link, HTML or border of a table."""
    if hasattr(value, "__html__"):
        return value
    return re.sub(r"([\\`*\[\]<>|&])", r"\\\1", re.sub(r"\s", " ", printable(value)))


def _markdown_code(value: Any) -> Any:
    """A value in a span of code, between the backticks of the template."""
    from markupsafe import Markup

    # A backslash is no escape there.
    return Markup(re.sub(r"\s", " ", printable(value).translate(str.maketrans("`|<", "'//"))))


def render(subject: Subject, device: int | None = None) -> str:
    """The page's HTML, with a device of its own where the runs keep an account of each. Texts of the run's
    files are escaped; charts are our own SVG."""
    first, comparison = subject.first, subject.comparison
    result = first.result
    figures = _figures(subject)
    shown = best_row(subject, figures)
    tested = forecasts.tested(subject.rows[shown][0]) if isinstance(figures, Errors) else None
    return _filled(
        "page.html.jinja",
        first,
        version=__version__,
        title=f"{', '.join(subject.rows)} on {result.dataset}",
        answer=_answer(subject, figures),
        caveats=_caveats(subject, figures, tested),
        result=result,
        table=None if comparison is None else _table(subject, figures),
        comparison=comparison,
        task=task_of(result.task),
        called=figures.called,
        unit=figures.unit if isinstance(figures, Errors) else "",
        scores=None if comparison is not None else run_scores(first, figures),
        classes=class_rows(subject, figures),
        followed=metric_name(followed_metric(subject, figures), figures),
        charts=charts_of(subject, figures, tested),
        shown=shown,
        data=_data(first),
        left=[_left(label, runs[0]) for label, runs in subject.rows.items()],
        devices=_devices(subject, device),
        dots=charts.DOTS,
        audits=_audits(subject),
        how=[_how(label, runs) for label, runs in subject.rows.items()],
        manifest=first.manifest,
        seeds=sorted({run.result.seed for runs in subject.rows.values() for run in runs}),
    )


# ---- what is said ------------------------------------------------------------------------------------------


def _figures(subject: Subject) -> Figures:
    """How the figures of these runs are written."""
    result = subject.first.result
    task = task_of(result.task)
    if task.error:
        return forecasts.errors_of(subject)
    if task.headline is None:
        return Shares(task.metric, task.metric_name)
    first = tuple(headline(result.task, result.details, result.test))
    return Shares(first[0], name_of(first[0]), first, NAMES)


def _answer(subject: Subject, figures: Figures) -> str:
    """One sentence: the result, with its spread and the row that bounds it."""
    result = subject.first.result
    metric, called = figures.metric, figures.called
    errors = isinstance(figures, Errors)
    of_sensors = task_of(result.task).data.name == "sensors"
    what = forecasts.what_is_forecast(subject.first) if of_sensors else ""
    if subject.comparison is None:
        reached = (
            f"{called} of {figures.told(metric, result.test.get(metric))}{_beside(result.test, figures)}"
        )
        does = f"forecasts {what}, with a test {reached}" if what else f"reached a test {reached}"
        return (
            f"{result.method} {does}{_as_read(result.test, figures)} on {result.dataset}, dealt over "
            f"{result.clients} sites, with seed {result.seed}; {human_bytes(result.bytes['total'])} crossed."
        )
    found = {row["label"]: row["test"][metric]["mean"] for row in subject.comparison.rows}
    means = {label: mean for label, mean in found.items() if mean is not None}
    scored = [row for row in subject.comparison.rows if row["label"] in means]
    if not scored:
        return f"No row of this comparison has a test {called}."
    federated = [row for row in scored if is_federated(row)]
    best = best_of(federated or scored, "test", figures)
    who = "Of the rows in which sites work together," if federated else "Sites work together in no row;"
    does = f"has the {'smallest' if errors else 'highest'}"
    if what:
        does = f"forecasts {what}, with the smallest"
    text = f"{who} {best['label']} {does} mean test {called}: {figures.told(metric, *_mean(best, metric))}"
    others = [row for row in scored if row is not best and not is_federated(row)]
    if others:
        text += f" ({', '.join(_told(row, figures, bare=errors) for row in others)})"
    smaller = [row for row in others if means[row["label"]] < means[best["label"]]]
    if errors and federated and smaller:
        text += f". A smaller one without sites working together: {', '.join(r['label'] for r in smaller)}"
    return text + "."


def _beside(test: Mapping[str, float | None], figures: Figures) -> str:
    """The other metrics that belong to the first one, where that is not accuracy."""
    if not isinstance(figures, Shares) or figures.metric == "accuracy":
        return ""
    others = [
        f"{figures.name(m)} {figures.told(m, test[m])}"
        for m in figures.headline[1:]
        if test.get(m) is not None
    ]
    return f" ({', '.join(others)})" if others else ""


def _mean(row: Mapping[str, Any], metric: str) -> tuple[float | None, float | None]:
    """A test metric's mean and standard deviation."""
    return row["test"][metric]["mean"], row["test"][metric]["std"]


def _told(row: Mapping[str, Any], figures: Figures, *, bare: bool) -> str:
    """A row and its figure; bare: without the unit."""
    write = figures.cell if bare else figures.told
    return f"{row['label']} {write(figures.metric, *_mean(row, figures.metric))}"


def _as_read(test: Mapping[str, float | None], figures: Figures) -> str:
    """The other error, where readings are missing."""
    if not isinstance(figures, Errors) or not figures.missing or figures.metric != "rmse":
        return ""
    return f" ({figures.cell('rmse_as_read', test.get('rmse_as_read'))} as read)"


def _caveats(subject: Subject, figures: Figures, tested: SensorErrors | None) -> list[str]:
    """What a reader must know before believing the figures."""
    told = forecasts.caveats(subject, figures, tested) if isinstance(figures, Errors) else []
    for label, runs in subject.rows.items():
        for run in runs:
            lost = run.result.details.get("diverged_in_round")
            if lost:
                told.append(f"{label}, seed {run.result.seed}: training diverged in round {lost}.")
    comparison = subject.comparison
    if comparison is None:
        told += [f"Warning: {one['text']}" for one in subject.first.result.details.get("warnings", ())]
    else:
        told += [f"Warning: {warning.text}" for warning in comparison.warnings]
    if any("deployment" in run.manifest for runs in subject.rows.values() for run in runs):
        told.append(
            "Deployed: what sites sent to each other is in their own ledgers only (graphfed site sent KIT, at"
            " each site), and their predictions are theirs."
        )
    if comparison is None:
        told.append("One run with one seed: how much another seed would change the figures is not known.")
    else:
        n = len(comparison.seeds)
        told.append(
            "One seed: there is no spread, and no difference here is significant."
            if n == 1
            else f"{n} seeds: a spread and a test over so few say little; small differences may be chance."
            if n < 5
            else f"{n} seeds."
        )
        if comparison.missing:
            told.append(f"Reference rows that are missing here: {', '.join(comparison.missing)}.")
        if comparison.added:
            told.append(f"Rows added for reference: {', '.join(comparison.added)}.")
    return told


def _table(subject: Subject, figures: Figures) -> dict[str, Any]:
    """The comparison: head and rows of text; best: of each row the columns that are marked."""
    comparison = subject.comparison
    assert comparison is not None
    metrics = figures.shown(comparison.rows[0]["test"])
    pooled = any(row.get("test_pooled") for row in comparison.rows)
    known = TESTED_AGAINST.get(comparison.task, ("",))
    references = {name: row for name in known for row in comparison.rows if row["label"] == name}
    tested = list(references) or list(known[:1])
    rows = []
    for row in comparison.rows:
        cells = [figures.cell(m, row["test"][m]["mean"], row["test"][m]["std"]) for m in metrics]
        if pooled:
            whole = (row.get("test_pooled") or {}).get(figures.metric) or {"mean": None, "std": None}
            cells.append(figures.cell(figures.metric, whole["mean"], whole["std"]))
        cells += [_difference(row, references.get(name), figures) for name in tested]
        cells += [
            human_bytes(row["bytes"]["mean"] or 0.0),
            human_seconds(row["seconds"]["mean"] or 0.0),
            _epsilon(subject.rows[row["label"]]),
        ]
        recipe = ", ".join(f"{key}={value}" for key, value in row["recipe"].items())
        rows.append(
            {
                "label": row["label"],
                "cells": cells,
                "recipe": recipe,
                "best": [i for i, m in enumerate(metrics) if _smallest(row, comparison.rows, m, figures)],
            }
        )
    head = [figures.head(name) for name in metrics]
    if pooled:
        head.append(f"{figures.called} on the pooled graph, %")
    head += [figures.difference_head(name) for name in tested]
    return {"head": [*head, "bytes", "seconds", "epsilon"], "rows": rows}


def _smallest(
    row: Mapping[str, Any], rows: Sequence[Mapping[str, Any]], metric: str, figures: Figures
) -> bool:
    """Whether a row has the smallest mean of an error, of several rows."""
    means = [mean for other in rows if (mean := other["test"][metric]["mean"]) is not None]
    return isinstance(figures, Errors) and len(means) > 1 and row["test"][metric]["mean"] == min(means)


def _difference(row: Mapping[str, Any], reference: Mapping[str, Any] | None, figures: Figures) -> str:
    """Mean difference of the test metric over the same seeds, and the p value of the paired t-test."""
    if reference is None or row is reference:
        return "-"
    mine, theirs = (one["test"][figures.metric]["values"] for one in (row, reference))
    if None in mine or None in theirs or len(mine) != len(theirs):
        return "-"
    differences = [a - b for a, b in zip(mine, theirs, strict=True)]
    difference = figures.difference(figures.metric, sum(differences) / len(mine))
    # Equal up to rounding: no spread to test against.
    if len(mine) < 2 or max(differences) - min(differences) < 1e-9:
        return difference
    from scipy.stats import ttest_rel

    p = float(ttest_rel(mine, theirs).pvalue)
    return f"{difference} ({'p < 0.001' if p < 0.001 else f'p = {p:.3f}'})"


def _epsilon(runs: Sequence[Run]) -> str:
    """The privacy budget that the ledger states; none where nothing is differentially private."""
    found = {e["protection"] for run in runs for e in run.entries if "dp(" in e["protection"]}
    return ", ".join(sorted(found)) or "none"


def _data(run: Run) -> dict[str, Any] | None:
    """The graph and its sites, or the sensors, from overview.json."""
    told = run.overview
    if told is None:
        return None
    sensors = forecasts.sensors_of(run)
    if sensors is not None:
        facts = [*forecasts.facts(sensors), ("sites", f"{run.result.clients:,}")]
        return {"facts": facts, "sites": [], "num_sites": run.result.clients, "drawing": None}
    return {
        "facts": [*graph_facts(told), *site_facts(told)],
        "sites": told["sites"],
        "num_sites": told["num_sites"],
        "drawing": told["drawing"],
    }


def _left(label: str, run: Run) -> dict[str, Any]:
    """What left the sites and what reached them in one run: a line for each named transfer."""
    words = words_of(run.result.method)
    lines: dict[tuple[str, str, str], dict[str, Any]] = {}
    for entry in run.entries:
        link = LINKS.get((entry["from"], entry["to"]), f"{entry['from']} to {entry['to']}")
        line = lines.setdefault(
            (entry["name"], link, entry["protection"]),
            {
                "bytes": 0,
                "sites": None,
                "transfers": 0,
                "messages": 0,
                "kind": entry["kind"],
                "phases": [],
            },
        )
        each = entry["received"] if entry["from"] == "server" else entry["sent"]
        line["bytes"] += entry["bytes"]
        line["transfers"] += entry["transfers"]
        line["messages"] += entry["messages"]
        line["sites"] = (
            each if line["sites"] is None else [a + b for a, b in zip(line["sites"], each, strict=True)]
        )
        line["phases"].append(entry["phase"])
    told = [
        {
            "name": name,
            "link": link,
            "words": words.get(name, "This method has no words for it."),
            "bytes": human_bytes(line["bytes"]),
            "sites": line["sites"],
            "each": _range(line["sites"] or [0]),
            "transfers": f"{line['transfers']:,}",
            "times": line["transfers"],
            "messages": line["messages"],
            "phases": ", ".join(dict.fromkeys(line["phases"])),
            "kind": line["kind"],
            "protection": PROTECTION.get(protection, protection),
            "open": is_readable(protection),
            "simulated": is_simulated(protection),
        }
        for (name, link, protection), line in lines.items()
    ]
    out = [line for line in told if not line["link"].startswith("server")]
    return {
        "label": label,
        "seed": run.result.seed,
        "out": out,
        "in": [line for line in told if line["link"].startswith("server")],
        "sentence": _sentence(run, out),
        "sent": _sent(run, out),
    }


def _sent(run: Run, out: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """What each site sent: a line for every transfer that leaves the sites, with the bytes of each site, of
    many sites with the smallest, the median and the largest. None where nothing left a site, or training was
    pooled."""
    known = METHODS.find(run.result.method)
    count = run.result.clients
    if not out or (known is not None and known.pooled) or any(len(line["sites"]) != count for line in out):
        return None
    named = run.manifest.get("partition", {}).get("site_names") or ()
    names = [str(name) for name in named] if len(named) == count else [f"site {k}" for k in range(count)]
    total = [sum(each) for each in zip(*(line["sites"] for line in out), strict=True)]
    many = count > SITE_COLUMNS
    return {
        "names": ["smallest", "median", "largest"] if many else names,
        "many": many,
        "rows": [{**line, "cells": _cells(line["sites"], many)} for line in out],
        "total": _cells(total, many),
    }


def _cells(each: Sequence[int], many: bool) -> list[str]:
    """Bytes of every site, or of many the smallest, the median and the largest."""
    return [human_bytes(amount) for amount in ((min(each), median(each), max(each)) if many else each)]


def _devices(subject: Subject, wanted: int | None) -> list[dict[str, Any]]:
    """A device of the first seed of every row that keeps an account of each; InputError where one is wanted
    and no row does."""
    first = {label: runs[0] for label, runs in subject.rows.items()}
    with_accounts = {label: run for label, run in first.items() if run.accounts is not None}
    if wanted is not None and not with_accounts:
        device_of(subject.first, wanted)  # says why not
    return [_device(label, run, wanted) for label, run in with_accounts.items()]


def _device(label: str, run: Run, wanted: int | None) -> dict[str, Any]:
    told = device_told(run, device_of(run, wanted), _left(label, run)["out"])
    return {**told, "label": label, "asked": wanted is not None, "worst": worst_told(run)}


def _audits(subject: Subject) -> list[dict[str, Any]]:
    """What `graphfed audit` found, for each row that has an audited run; the transfers in clear are listed
    above it."""
    found = []
    for label, runs in subject.rows.items():
        for run in runs:
            if run.audit is not None:
                checks = [check for check in run.audit["checks"] if check["check"] != "clear_transfers"]
                found.append({"label": label, "seed": run.result.seed, "checks": checks})
                break
    return found


def words_of(method: str) -> Mapping[str, str]:
    """What every transfer of a method's runs is, in words, deployed ones included."""
    known = METHODS.find(method)
    own = {} if known is None else known.sends.messages
    return {**own, **MESSAGES, **DEPLOYED, **OWNER_MESSAGES}


def _range(each: Sequence[int]) -> str:
    low, high = min(each), max(each)
    return human_bytes(low) if low == high else f"{human_bytes(low)} to {human_bytes(high)}"


def _sentence(run: Run, out: Sequence[Mapping[str, Any]]) -> str:
    """The privacy statement in one sentence."""
    known = METHODS.find(run.result.method)
    if known is not None and known.pooled:
        return (
            "This reference trains on the data of all sites in one place: it presumes that everything has "
            "left the sites already."
        )
    if not out:
        return "Nothing left any site."
    total = human_bytes(sum(e["bytes"] for e in run.entries if e["from"] == "clients"))
    kinds = "1 kind of value" if len(out) == 1 else f"{len(out)} kinds of values"
    simulated = sum(line["simulated"] for line in out)
    clear = sum(line["open"] for line in out) - simulated
    read = "all" if clear == len(out) else str(clear) if clear else "none"
    more = f"; the protection of {simulated} more is only simulated" if simulated else ""
    return (
        f"Together the {run.result.clients} sites sent {kinds}, {total} in all; {read} of them can be read "
        f"by the receiver{more}."
    )


def _how(label: str, runs: Sequence[Run]) -> dict[str, Any]:
    """The settings of a row and where its files are."""
    config = runs[0].manifest.get("config", {})
    training = config.get("training", {})
    return {
        "label": label,
        "method": runs[0].result.method,
        "settings": ", ".join(f"{key}={value}" for key, value in training.items() if key != "seed"),
        "folders": [run.folder.name for run in runs],
        "rounds": ", ".join(f"{run.result.best_round or 'own'} of {run.result.rounds}" for run in runs),
    }
