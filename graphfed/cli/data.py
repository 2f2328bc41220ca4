"""`graphfed data ...`: the graphs, before anything is trained on them."""

import textwrap
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from graphfed.cli.options import DataDir, Plugins, SharedOptions, with_options
from graphfed.cli.output import print_json, show, width
from graphfed.cli.values import DATA_SETS, choices, data_setting_keys
from graphfed.errors import GraphfedError, InputError
from graphfed.tasks.run_options import RunOptions
from graphfed.terminal import markup, printable, tell

if TYPE_CHECKING:
    from graphfed.runs.inspect import Inspection, SensorInspection

__all__ = ["app"]

app = typer.Typer(
    help="""Look at graphs and deal them over sites, before anything is trained.

    Examples:
        graphfed data list
        graphfed data inspect bank.yaml
        graphfed data partition cora --clients 10 --out sites.safetensors
        graphfed data deal cora --clients 3 --out sites
    See also:
        graphfed run; docs/data.md
    """,
    rich_markup_mode="markdown",
)

#: Sites and classes that are printed one by one.
LISTED = 20

DataArgument = Annotated[
    str,
    typer.Argument(
        metavar="DATA",
        autocompletion=choices(DATA_SETS, "graphfed.datasets"),
        help="Data set, or a file: .yaml describes one's own tables, .pt is a PyG Data, .graphml.",
    ),
]
DataSettings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        autocompletion=data_setting_keys,
        help="A setting, as often as needed: of the partition (partition.beta, ...), of a generated data set "
        "(data.num_nodes, ...), partition_seed, split_seed.",
    ),
]


@app.command("list")
def data_list(data_dir: DataDir = None, plugin: Plugins = None) -> None:
    """List the data sets: built in, found in a folder, or which of their files are missing.

    Examples:
        graphfed data list
        graphfed data list --data-dir data
    Environment:
        GRAPHFED_DATA        a folder to look in after --data-dir
    See also:
        docs/data.md: which files each set needs, and where they come from
    """
    from rich.table import Table

    from graphfed.data.datasets import DATASETS, available

    table = Table(show_lines=True)
    table.add_column("data set", no_wrap=True)
    table.add_column("what it is", overflow="fold", ratio=3)
    table.add_column("where", overflow="fold", ratio=2)
    for row in available(data_dir):
        source = DATASETS.plugin(row.name)
        where = str(source or "built in") if row.built_in else str(row.place) if row.place else "not found"
        if row.missing:
            where += f"; missing: {', '.join(row.missing)}; from {DATASETS[row.name].source}"
        table.add_row(row.name, markup(f"{row.title} ({row.task})"), markup(where))
    show(table)


@app.command("inspect")
@with_options("clients", "partition", "split", "seed", "settings", "data_dir", "plugin", "out", "as_json")
def data_inspect(
    data: DataArgument,
    *,
    shared: SharedOptions,
    settings: DataSettings = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Draw it, too: a new file, .svg or .png."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the numbers as one JSON object.")] = False,
) -> None:
    """Look at a graph or at sensors before training: numbers, sites, and which methods can use it.

    The sites are those that the data names, or those that --partition and --clients ask for; of sensors each
    is one. Nothing is trained, and nothing is written but the picture. A table with an empty cell among its
    features is refused while it is read, as it is by a run; among readings of sensors it is a gap.

    Examples:
        graphfed data inspect bank.yaml
        graphfed data inspect cora --clients 10 --set partition.beta=1
        graphfed data inspect cora --out cora.png
        graphfed data inspect roads --split inductive:0.5 --set horizon=24
    See also:
        graphfed data partition, graphfed methods; docs/data.md
    """
    from graphfed.files import write_bytes
    from graphfed.runs.folder import check_new_file
    from graphfed.runs.inspect import Inspection

    if out is not None:
        check_new_file(out, PICTURES)
    found = _inspect_data(data, shared, settings)
    if out is not None:
        _write(out, lambda: write_bytes(out, _drawn(found, out)))
    if as_json:
        print_json(found.to_json())
    elif isinstance(found, Inspection):
        _print(found)
    else:
        _print_sensors(found)
    if not as_json:
        tell(f"\npicture: {out}" if out is not None else "\ndraw it with: --out FILE.svg (or .png)")


@app.command("partition")
@with_options("out", "clients", "partition", "seed", "settings", "data_dir", "plugin", "picture")
def data_partition(
    data: DataArgument,
    *,
    shared: SharedOptions,
    out: Annotated[
        Path, typer.Option(metavar="FILE", show_default=False, help="The new file, .safetensors.")
    ],
    settings: DataSettings = None,
    picture: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Draw it, too: a new file, .svg or .png.")
    ] = None,
) -> None:
    """Deal a graph over sites and keep the deal in a file, for any number of runs with --partition FILE.

    The file says which site holds which vertices and edges, and names the graph by its hash; it holds no
    features and no labels.

    Examples:
        graphfed data partition cora --clients 10 --out sites.safetensors
        graphfed data partition cora --partition louvain --out l.safetensors
    See also:
        graphfed data inspect, graphfed run; docs/data.md
    """
    from graphfed.files import write_bytes
    from graphfed.runs.folder import check_new_file

    check_new_file(out, (".safetensors",))
    if picture is not None:
        check_new_file(picture, PICTURES)
    found = _partition_graph(data, shared, settings)
    dealt = found.partition
    assert dealt is not None
    drawn = None if picture is None else _drawn(found, picture)
    _write(out, lambda: dealt.save(out))
    if picture is not None and drawn is not None:
        try:
            _write(picture, lambda: write_bytes(picture, drawn))
        except GraphfedError:
            out.unlink(missing_ok=True)  # both or none
            raise
    _print_sites(found)
    tell(f"\npartition: {out}\nuse it with: --partition {out}")
    if picture is not None:
        tell(f"picture: {picture}")


@app.command("deal")
@with_options("out", "clients", "partition", "split", "seed", "settings", "data_dir", "plugin")
def data_deal(
    data: DataArgument,
    *,
    shared: SharedOptions,
    out: Annotated[Path, typer.Option(metavar="FOLDER", show_default=False, help="The new folder.")],
    settings: DataSettings = None,
) -> None:
    """Deal a graph over sites and write a file for each: all that the site reads in a trial of a deployment.

    A file is named after its site. It holds the site's vertices with their features, the labels and parts of
    the split that the site owns, its edges, and the ids at the other ends of its edges to other sites. Hand
    each site its own file and no other.

    Examples:
        graphfed data deal cora --clients 3 --out sites
        graphfed data deal bank.yaml --out banks
    See also:
        graphfed data partition, graphfed data inspect; docs/data.md
    """
    from graphfed.deployment.site_files import check_new_folder, write_cohorts

    check_new_folder(out)
    found = _partition_graph(data, shared, settings)
    if found.split_problem is not None:
        raise InputError(found.split_problem)
    assert found.partition is not None
    files = write_cohorts(found.graph, found.parts, found.partition, out)
    _print_sites(found)
    tell("\nthe sites' files, in the order of the clients:")
    for name, file in files.items():
        tell(f"{name}: {file}")


# ---- the data ----------------------------------------------------------------------------------------------


def _inspect_data(
    data: Any, shared: SharedOptions, settings: list[str] | None
) -> "Inspection | SensorInspection":
    """Inspect the data with the options and settings that were typed."""
    from graphfed.runs.config import parse_settings
    from graphfed.runs.inspect import inspect

    return inspect(
        data,
        clients=shared.clients,
        partition=shared.partition,
        split=shared.split or RunOptions.split,
        seed=shared.seed or RunOptions.seed,
        data_dir=shared.data_dir,
        settings=parse_settings(settings or ()),
    )


def _partition_graph(data: str, shared: SharedOptions, settings: list[str] | None) -> "Inspection":
    """Inspect a graph with a partition: the default one of the data where none was typed. InputError for
    readings of sensors."""
    from graphfed.runs.inspect import Inspection
    from graphfed.tasks.source import data_source

    source = data_source(data)
    named = replace(shared, partition=shared.partition or source.default_partition)
    found = _inspect_data(source, named, settings)
    if not isinstance(found, Inspection):
        raise InputError(f"{data!r} holds readings of sensors, which partitions of graphs do not deal")
    return found


# ---- files -------------------------------------------------------------------------------------------------

PICTURES = (".svg", ".png")


def _drawn(found: "Inspection | SensorInspection", path: Path) -> bytes:
    from graphfed.report.charts import picture
    from graphfed.report.sensor_picture import sensor_picture

    form = path.suffix.removeprefix(".")
    told = found.overview
    return sensor_picture(told, form) if told.get("kind") == "sensors" else picture(told, form)


def _write(path: Path, write: Callable[[], None]) -> None:
    """Write a file; GraphfedError where the disk refuses."""
    try:
        write()
    except OSError as error:
        raise GraphfedError(f"{path} could not be written: {error.strerror or error}") from error


# ---- what is printed ---------------------------------------------------------------------------------------


def _print(found: "Inspection") -> None:
    from graphfed.data.graphs.overview import graph_facts

    told = found.overview
    _heading(told["name"])
    split = found.split if found.split_problem is None else f"none: {found.split_problem}"
    _facts([*graph_facts(told), ("split", split)])
    _print_degrees(told["degrees"]["histogram"])
    _print_classes(told["classes"])
    if found.partition is not None:
        _print_sites(found)
    _print_methods(found)


def _heading(text: str) -> None:
    typer.secho(printable(text), bold=True)


#: Columns of the screen that a text needs beside another one.
LEAST_COLUMN = 20


def _facts(rows: list[tuple[str, str]]) -> None:
    """Two columns in the terminal's width."""
    rows = [(printable(name), printable(value)) for name, value in rows]
    first = 2 + max(len(name) for name, _ in rows)
    if width() - first < LEAST_COLUMN:  # one below the other
        for name, value in rows:
            tell(textwrap.fill(name, width()))
            tell(textwrap.fill(value, width(), initial_indent="    ", subsequent_indent="    "))
        return
    for name, value in rows:
        lines = textwrap.wrap(value, width() - first) or [""]
        tell(f"{name.ljust(first)}{lines[0]}")
        for line in lines[1:]:
            tell(" " * first + line)


def _print_degrees(histogram: list[list[int]]) -> None:
    tell()
    _heading("vertices by their number of neighbours")
    labels = [f"{low:,}" if low == high else f"{low:,}-{high:,}" for low, high, _ in histogram]
    counts = [f"{count:,}" for *_, count in histogram]
    first, second = max(map(len, labels), default=0), max(map(len, counts), default=0)
    room, most = max(1, width() - first - second - 6), max((count for *_, count in histogram), default=1)
    for label, told, (*_, count) in zip(labels, counts, histogram, strict=True):
        # Eighths of a sign: what is there at all is seen.
        eighths = max(round(8 * room * count / most), 1 if count else 0)
        bar = "█" * (eighths // 8) + (" ▏▎▍▌▋▊▉"[eighths % 8] if eighths % 8 else "")
        tell(f"{label.rjust(first)}  {told.rjust(second)}  {bar}".rstrip())


def _print_classes(classes: list[dict[str, Any]]) -> None:
    from rich.table import Table

    if not classes:
        return
    table = Table(title="classes", title_justify="left", box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("class", overflow="fold")
    for part in ("vertices", "train", "val", "test"):
        table.add_column(part, justify="right")
    for row in classes[:LISTED]:
        table.add_row(
            markup(row["name"]), *(f"{row[part]:,}" for part in ("vertices", "train", "val", "test"))
        )
    tell()
    show(table)
    _and_more(len(classes), "classes")


def _print_sites(found: "Inspection") -> None:
    from rich.table import Table

    from graphfed.data.graphs.overview import site_facts

    told = found.overview
    assert found.partition is not None
    chosen = ", ".join([found.partition.name, *(f"{k}={v}" for k, v in found.partition.options.items())])
    tell()
    _heading("sites")
    _facts([("partition", chosen), *site_facts(told)])
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("site", overflow="fold")
    columns = {"vertices": "vertices", "edges": "edges", "cut_edges": "to others", "train": "train"}
    columns |= {"val": "val", "test": "test"}
    for name in columns.values():
        table.add_column(name, justify="right")
    table.add_column("most of class", overflow="fold")
    names = [str(row["name"]) for row in told["classes"]]
    for row in told["sites"][:LISTED]:
        count, name = max(zip(row["classes"], names, strict=True), default=(0, ""))
        most = f"{name} ({100 * count / sum(row['classes']):.0f} %)" if count else "-"
        table.add_row(markup(row["name"]), *(f"{row[key]:,}" for key in columns), markup(most))
    tell()
    show(table)
    _and_more(told["num_sites"], "sites")


def _and_more(count: int, what: str) -> None:
    if count > LISTED:
        tell(f"... {count - LISTED:,} more {what}")


def _print_methods(found: "Inspection | SensorInspection") -> None:
    tell()
    _heading("methods")
    able = [name for name, problem in found.methods.items() if problem is None]
    reasons: dict[str, list[str]] = {}
    for name, problem in found.methods.items():
        if problem is not None:
            reasons.setdefault(problem, []).append(name)
    rows = [("can use it", ", ".join(able) or "none")]
    rows += [(", ".join(names), problem) for problem, names in reasons.items()]
    if len(reasons) == 1 and not able:
        rows = [("none", next(iter(reasons)))]
    _facts(rows)


def _print_sensors(found: "SensorInspection") -> None:
    from graphfed.data.sensors.overview import sensor_facts

    _heading(found.overview["name"])
    split = found.split if found.split_problem is None else f"none: {found.split_problem}"
    _facts([*sensor_facts(found.overview), ("split", split)])
    able = [name for name, problem in found.methods.items() if problem is None]
    tell()
    _heading("methods")
    _facts([("can use it", ", ".join(able) or "none")])
