"""`graphfed data ...`: inspects and partitions data before training."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from graphfed.cli.options import DataDir, Json, Plugins, SharedOptions, with_options
from graphfed.cli.output import print_json, show
from graphfed.cli.values import choices, data_setting_keys
from graphfed.errors import InputError
from graphfed.tasks.run_options import DATA_SETS
from graphfed.terminal import make_table, print_line

if TYPE_CHECKING:
    from graphfed.runs.inspect import Inspection

app = typer.Typer(
    help="""Inspect data, and partition graphs among clients, before training.

    Examples:

        graphfed data list
        graphfed data describe accounts.csv payments.csv --out bank.yaml
        graphfed data inspect bank.yaml
        graphfed data partition cora --clients 10 --out clients.safetensors
        graphfed data export cora --clients 3 --out clients

    See also: graphfed run; docs/data.md
    """,
    no_args_is_help=True,
    rich_markup_mode="markdown",
)

#: The most clients and classes that are printed one by one.
LISTED = 20

DataArgument = Annotated[
    str,
    typer.Argument(
        metavar="DATA",
        autocompletion=choices(DATA_SETS, "graphfed.datasets"),
        help="Data set (see 'graphfed data list'), or a file: .yaml describes tables of your own, .pt is a "
        "PyG Data, .graphml is a graph.",
    ),
]
DataSettings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        autocompletion=data_setting_keys,
        help="A setting of the partition (partition.beta, ...) or of a generated data set (data.num_nodes, "
        "...), or partition_seed or split_seed. Give the option once per setting.",
    ),
]


@app.command("list")
def data_list(data_dir: DataDir = None, plugin: Plugins = None) -> None:
    """List the data sets, and where each is found or which of its files are missing.

    Examples:

        graphfed data list
        graphfed data list --data-dir data

    Environment:

        GRAPHFED_DATA        a folder that is searched after --data-dir

    See also: docs/data.md: the files that each data set needs, and their sources
    """
    from graphfed.data.datasets import DATASETS, available

    rows = []
    for row in available(data_dir):
        spec, source = row.spec, DATASETS.plugin(row.name)
        where = str(source or "built in") if spec.built_in else str(row.place) if row.place else "not found"
        if row.missing:
            where += f"; missing: {', '.join(row.missing)}; from {spec.source}"
        rows.append((row.name, f"{spec.title} ({spec.task})", where))
    show(make_table(("data set", "what it is", "where"), rows, lines=True))


@app.command("inspect")
@with_options("clients", "partition", "split", "seed", "settings", "data_dir", "plugin", "out", "as_json")
def data_inspect(
    data: DataArgument,
    *,
    shared: SharedOptions,
    settings: DataSettings = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Also draw the data into this new file, .svg or .png."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Describe a graph or sensors: their size, their clients, and the methods that can use them.

    The clients are those that the data names, or those of --partition and --clients. Every sensor is a
    client. The command trains nothing and writes only the picture. It refuses the same data as a run does:
    for example, features with an empty cell that the key 'missing' does not allow. An empty cell among
    readings of sensors is a gap.

    Examples:

        graphfed data inspect bank.yaml
        graphfed data inspect cora --clients 10 --set partition.beta=1
        graphfed data inspect cora --out cora.png
        graphfed data inspect roads --split inductive:0.5 --set horizon=24

    See also: graphfed data partition, graphfed methods; docs/data.md
    """
    from graphfed.files import write_bytes, writing
    from graphfed.runs.folder import check_new_file

    if out is not None:
        # Before the data is read, which may take minutes.
        check_new_file(out, PICTURES)
    found = _inspect_data(data, shared.run, settings)
    if out is not None:
        picture = _drawn(found, out)
        with writing(out):
            write_bytes(out, picture)
    if as_json:
        print_json(found.to_json())
        return
    _print(found)
    print_line(f"\npicture: {out}" if out is not None else "\ndraw a picture: --out FILE.svg (or .png)")


@app.command("describe")
def data_describe(
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILES...",
            show_default=False,
            help="CSV or Parquet files: one of nodes and one of edges, or one of each for every client.",
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write the description into this new file, .yaml."),
    ] = None,
) -> None:
    """Write a first description of tables, for runs with --data, with guesses that its comments explain.

    The command finds which files have nodes and which have edges, the files of each client, and which columns
    are ids, labels, dates, categories and numbers. Read the description before you use it. Without --out it
    is printed.

    Examples:

        graphfed data describe accounts.csv payments.csv --out bank.yaml
        graphfed data describe north/*.csv south/*.csv --out banks.yaml

    See also: graphfed data inspect; docs/data.md
    """
    from graphfed.data.user_files.first_description import first_description
    from graphfed.files import write_bytes, writing
    from graphfed.runs.folder import check_new_file

    if out is not None:
        check_new_file(out, (".yaml", ".yml"))
    text = first_description(files, Path() if out is None else out.parent)
    if out is None:
        typer.echo(text, nl=False)
        return
    with writing(out):
        write_bytes(out, text.encode())
    print_line(f"description: {out}\nread it, then look at the data with: graphfed data inspect {out}")


@app.command("partition")
@with_options("out", "clients", "partition", "seed", "settings", "data_dir", "plugin")
def data_partition(
    data: DataArgument,
    *,
    shared: SharedOptions,
    out: Annotated[
        Path, typer.Option(metavar="FILE", show_default=False, help="The new file, .safetensors.")
    ],
    settings: DataSettings = None,
) -> None:
    """Partition a graph among clients, and save the partition for runs with --partition FILE.

    The file says which client holds which nodes and edges, and identifies the graph by its hash. It contains
    no features and no labels.

    Examples:

        graphfed data partition cora --clients 10 --out clients.safetensors
        graphfed data partition cora --partition louvain --out l.safetensors

    See also: graphfed data inspect, which draws a partition; graphfed run; docs/data.md
    """
    from graphfed.files import writing
    from graphfed.runs.folder import check_new_file

    # Before the data is read, which may take minutes.
    check_new_file(out, (".safetensors",))
    found = _partition_graph(data, shared, settings)
    assert found.partition is not None
    with writing(out):
        found.partition.save(out)
    _print_clients(found)
    print_line(f"\npartition: {out}\nuse it in a run with: --partition {out}")


@app.command("export")
@with_options("out", "clients", "partition", "split", "seed", "settings", "data_dir", "plugin")
def data_export(
    data: DataArgument,
    *,
    shared: SharedOptions,
    out: Annotated[Path, typer.Option(metavar="FOLDER", show_default=False, help="The new folder.")],
    settings: DataSettings = None,
) -> None:
    """Partition a graph among clients, and write one file per client for a rehearsal of a deployment.

    A file has the name of its client. It contains the client's nodes with their features, labels and parts of
    the split, its edges, and for cross-client edges the id of the node at the other client. Give each site
    its own file and no other file.

    Examples:

        graphfed data export cora --clients 3 --out clients
        graphfed data export bank.yaml --out banks

    See also: graphfed data partition, graphfed data inspect; docs/data.md
    """
    from graphfed.data.graphs.graph import Graph
    from graphfed.deployment.site_files import check_new_folder, write_cohorts

    check_new_folder(out)
    found = _partition_graph(data, shared, settings)
    if found.split_problem is not None:
        raise InputError(found.split_problem)
    assert isinstance(found.data, Graph)
    assert found.parts is not None
    assert found.partition is not None
    files = write_cohorts(found.data, found.parts, found.partition, out)
    _print_clients(found)
    print_line("\nfiles, in the order of the clients:")
    for name, file in files.items():
        print_line(f"{name}: {file}")


# ---- the data ----------------------------------------------------------------------------------------------

PICTURES = (".svg", ".png")


def _inspect_data(data: Any, options: Mapping[str, Any], settings: list[str] | None) -> "Inspection":
    """Inspect the data with the given options and settings."""
    from graphfed.runs.inspect import inspect
    from graphfed.runs.settings import parse_settings

    return inspect(data, **options, settings=parse_settings(settings or ()))


def _partition_graph(data: str, shared: SharedOptions, settings: list[str] | None) -> "Inspection":
    """Inspect a graph with the given partition, or with the default one of the data.

    InputError for readings of sensors, which have no partition."""
    from graphfed.tasks.source import data_source

    source = data_source(data)
    if source.kind == "sensors":
        raise InputError(
            f"{data!r} has readings of sensors, and every sensor is a client; give a graph to partition"
        )
    return _inspect_data(source, {"partition": source.default_partition, **shared.run}, settings)


def _drawn(found: "Inspection", path: Path) -> bytes:
    from graphfed.report.overviews import overview_picture
    from graphfed.runs.overview_schema import GraphOverview, ReadingsOverview

    # The overview goes through the schema, as one that is read from a run's folder.
    kind = ReadingsOverview if found.of_sensors else GraphOverview
    return overview_picture(kind.model_validate(found.overview), path.suffix.removeprefix("."))


# ---- what is printed ---------------------------------------------------------------------------------------


def _print(found: "Inspection") -> None:
    from graphfed.data.graphs.overview import graph_facts
    from graphfed.data.sensors.overview import sensor_facts

    overview = found.overview
    split = found.split if found.split_problem is None else f"none: {found.split_problem}"
    facts = sensor_facts(overview) if found.of_sensors else graph_facts(overview)
    _facts(overview["name"], [*facts, ("split", split)])
    if not found.of_sensors:
        _print_degrees(overview["degrees"]["histogram"])
        parts = ("nodes", "train", "val", "test")
        rows = [(row["name"], *(f"{row[part]:,}" for part in parts)) for row in overview["classes"]]
        _listed(("class", *parts), rows, "classes", len(rows), title="classes")
    if found.partition is not None:
        _print_clients(found)
    _print_methods(found)


def _facts(title: str, rows: Sequence[tuple[str, str]]) -> None:
    show(make_table(("", ""), rows, title=title, plain=True))


def _listed(
    columns: Sequence[str], rows: Sequence[Sequence[str]], what: str, count: int, *, title: str = ""
) -> None:
    """Print a table of the first LISTED rows of `count`."""
    if not rows:
        return
    # All other columns have numbers, which are aligned to the right.
    numbers = set(columns) - {"class", "client", "largest class"}
    print_line()
    show(make_table(columns, rows[:LISTED], numbers=numbers, title=title, plain=True))
    if count > LISTED:
        print_line(f"... {count - LISTED:,} more {what}")


def _print_degrees(histogram: list[list[int]]) -> None:
    from rich.bar import Bar

    most = max((count for *_, count in histogram), default=1)
    table = make_table(("neighbours", "nodes", " "), (), numbers=("neighbours", "nodes"), plain=True)
    for low, high, count in histogram:
        table.add_row(f"{low:,}" if low == high else f"{low:,}-{high:,}", f"{count:,}", Bar(most, 0, count))
    print_line()
    show(table)


def _print_clients(found: "Inspection") -> None:
    from graphfed.data.graphs.overview import client_facts

    overview = found.overview
    assert found.partition is not None
    print_line()
    chosen = ", ".join([found.partition.name, *(f"{k}={v}" for k, v in found.partition.options.items())])
    _facts("clients", [("partition", chosen), *client_facts(overview)])
    names = [str(row["name"]) for row in overview["classes"]]
    keys = ("nodes", "edges", "cross_client_edges", "train", "val", "test")
    rows = []
    for row in overview["clients"][:LISTED]:
        # An empty client, or data without classes, has no largest class.
        count, name = max(zip(row["classes"], names, strict=True), default=(0, ""))
        most = f"{name} ({100 * count / sum(row['classes']):.0f} %)" if count else "-"
        rows.append((row["name"], *(f"{row[key]:,}" for key in keys), most))
    columns = ("client", "nodes", "edges", "cross-client", "train", "val", "test", "largest class")
    _listed(columns, rows, "clients", overview["num_clients"])


def _print_methods(found: "Inspection") -> None:
    able = [name for name, problem in found.methods.items() if problem is None]
    reasons: dict[str, list[str]] = {}
    # For sensors, the methods for graphs are not listed with a reason.
    for name, problem in found.methods.items() if not found.of_sensors else ():
        if problem is not None:
            reasons.setdefault(problem, []).append(name)
    rows = [("can use it", ", ".join(able) or "none")]
    rows += [(", ".join(names), problem) for problem, names in reasons.items()]
    if len(reasons) == 1 and not able:
        # One reason that excludes all methods is printed without the list of their names.
        rows = [("none", next(iter(reasons)))]
    print_line()
    _facts("methods", rows)
