"""The command line, a thin layer: read options, call the Python API, print, map errors to exit codes.

0    done
1    the program itself failed (GraphfedError)
2    the input cannot be used: one line on stderr, nothing written (InputError, unknown options)
130  interrupted, by Ctrl-C or SIGTERM
"""

import json
import os
import shlex
import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from graphfed import __version__
from graphfed.errors import GraphfedError, InputError

if TYPE_CHECKING:
    from rich.table import Table

    from graphfed.experiment.run import Result

__all__ = ["app", "main"]

# Heavy libraries, torch above all, are imported inside the commands that use them: help answers at once.

app = typer.Typer(
    name="graphfed",
    help="Train graph neural networks across parties that may not show each other their graphs.",
    epilog="Start here:  graphfed run fedavg   then   graphfed compare isolated fedavg fedgcn central",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    # Paragraphs are filled to the width of the terminal, not broken where the source has a line end.
    rich_markup_mode="markdown",
)
data_app = typer.Typer(help="Look at the data sets that can be named with --data.", no_args_is_help=True)
app.add_typer(data_app, name="data")


def _whole(text: str) -> int:
    """A whole number, or a complaint that repeats what was typed."""
    try:
        return int(text)
    except ValueError:
        raise typer.BadParameter(f"{text[:60]!r} is not a whole number") from None


Config = Annotated[
    Path | None,
    typer.Option(
        help="YAML file with the names of these options (method, data, clients, ...), settings under 'set:'. "
        "What is given on the command line wins."
    ),
]
Data = Annotated[str | None, typer.Option(help="Data set; see 'graphfed data list' (default: digits).")]
Clients = Annotated[
    int | None,
    typer.Option(
        parser=_whole,
        metavar="K",
        help="Number of sites (default: 10; one per vertex for the partition 'ego').",
    ),
]
Partition = Annotated[
    str | None,
    typer.Option(
        help="How the graph is dealt: label_dirichlet, label_skew, random, edges_uniform, louvain, metis, "
        "overlapping, ego (default: label_dirichlet with partition.beta=10000, which is even)."
    ),
]
Rounds = Annotated[
    int | None, typer.Option(parser=_whole, metavar="R", help="Communication rounds (default: 100).")
]
Split = Annotated[
    str | None,
    typer.Option(
        help="default, public, per_class:20,500,1000 or random:0.5,0.25,0.25 "
        "(default: public where the data set has one, else per_class)."
    ),
]
Runtime = Annotated[
    str | None,
    typer.Option(help="local: all in this process; processes: one process per site (default: local)."),
]
Placement = Annotated[
    str | None,
    typer.Option(
        help="In the local runtime: stacked computes all clients together, one-at-a-time one after the other "
        "(slow, for debugging: a failure names the client, the stage and the inputs) (default: stacked)."
    ),
]
Device = Annotated[str | None, typer.Option(help="cpu, cuda or cuda:0 (default: cpu).")]
Threads = Annotated[
    int | None,
    typer.Option(
        parser=_whole,
        metavar="N",
        help="Threads to compute with (default: one for a small graph, every core for a large one; "
        "with --runtime processes those of each process, one).",
    ),
]
DataDir = Annotated[
    Path | None,
    typer.Option(help="Where to look for data files first; then in GRAPHFED_DATA and in the cache folder."),
]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="A setting, as often as needed: lr, weight_decay, hidden, layers, dropout, backbone, "
        "local_steps, fraction, optimizer, patience, ... and the method's own ('graphfed methods'); "
        "partition.beta, partition.alpha, ...; partition_seed, split_seed (default: the seed); "
        "data.num_nodes, ... of a generated data set.",
    ),
]
Json = Annotated[
    bool, typer.Option("--json", help="Print the result as one JSON object, the last line of stdout.")
]
Progress = Annotated[bool, typer.Option(help="Show progress on stderr.")]


@app.callback(invoke_without_command=True)
def _version(version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False) -> None:
    if version:
        print(f"graphfed {__version__}")
        raise typer.Exit


@app.command()
def run(
    method: Annotated[str | None, typer.Argument(help="The method; see 'graphfed methods'.")] = None,
    *,
    data: Data = None,
    config: Config = None,
    clients: Clients = None,
    partition: Partition = None,
    rounds: Rounds = None,
    seed: Annotated[
        int | None,
        typer.Option(
            parser=_whole, metavar="S", help="Seed of weights, draws, partition and split (default: 0)."
        ),
    ] = None,
    split: Split = None,
    runtime: Runtime = None,
    placement: Placement = None,
    device: Device = None,
    threads: Threads = None,
    data_dir: DataDir = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder to write, new or empty (default: runs/METHOD-DATA-TIME).")
    ] = None,
    settings: Settings = None,
    as_json: Json = False,
    progress: Progress = True,
) -> None:
    """Train one method on one graph dealt over sites, and say what it cost and what left each site.

    The folder gets the result, metrics of every round, the ledger of what crossed, the model and predictions.

    Example:  graphfed run fedgcn --data cora --clients 10 --set hops=1
    """
    from graphfed.experiment.config import parse_settings, read_config
    from graphfed.experiment.run import run as run_method

    options = read_config(config) if config is not None else {}
    given = {
        "method": method,
        "data": data,
        "clients": clients,
        "partition": partition,
        "rounds": rounds,
        "seed": seed,
        "split": split,
        "runtime": runtime,
        "placement": placement,
        "device": device,
        "threads": threads,
        "data_dir": data_dir,
        "out": out,
    }
    options |= {key: value for key, value in given.items() if value is not None}
    chosen = options.pop("set", {}) | parse_settings(settings or ())
    result = run_method(
        options.pop("method", None), **options, settings=chosen, progress=progress, command=_command()
    )
    if as_json:
        _say(f"files: {result.folder}")
        print(json.dumps(result.to_json(), allow_nan=False))
    else:
        print(_summary(result))


@app.command()
def compare(
    methods: Annotated[list[str] | None, typer.Argument(help="The methods; see 'graphfed methods'.")] = None,
    *,
    data: Data = None,
    config: Annotated[
        list[Path] | None,
        typer.Option(
            help="YAML file as for 'graphfed run', as often as needed: with a method it is one more row "
            "(named by 'label:', else after the file), without one it holds options common to all rows."
        ),
    ] = None,
    clients: Clients = None,
    partition: Partition = None,
    rounds: Rounds = None,
    seeds: Annotated[str | None, typer.Option(help="Seeds, separated by commas (default: 0,1,2).")] = None,
    split: Split = None,
    runtime: Runtime = None,
    placement: Placement = None,
    device: Device = None,
    threads: Threads = None,
    data_dir: DataDir = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder to write, new or empty (default: runs/compare-DATA-TIME).")
    ] = None,
    settings: Settings = None,
    as_json: Json = False,
    progress: Progress = True,
) -> None:
    """Run methods over seeds on the same splits, in one table: mean and deviation, bytes, seconds.

    The reference rows central, isolated and fedavg are always there; runs on different data, splits or
    partitions are refused. A setting goes to every method that has it; fedgcn.hops=1 goes to fedgcn alone.
    The folder gets one run folder for each run, and comparison.json.

    Example:  graphfed compare isolated fedavg fedgcn central --data cora --seeds 0,1,2
    """
    from graphfed.experiment.compare import compare as compare_methods
    from graphfed.experiment.config import parse_settings

    given = {
        "data": data,
        "clients": clients,
        "partition": partition,
        "rounds": rounds,
        "split": split,
        "runtime": runtime,
        "placement": placement,
        "device": device,
        "threads": threads,
        "data_dir": data_dir,
        "out": out,
        "seeds": seeds,
    }
    given = {key: value for key, value in given.items() if value is not None}
    parsed = parse_settings(settings or ())
    rows, common = _compare_files(config or [], given, parsed)
    options = common | given
    chosen_seeds = _parse_seeds(options.pop("seeds", "0,1,2"))
    comparison = compare_methods(
        [*(methods or ()), *rows],
        seeds=chosen_seeds,
        **{key: value for key, value in options.items() if key != "set"},
        settings=options.get("set", {}) | parsed,
        progress=progress,
        command=_command(),
    )
    if comparison.added:
        _say(f"added for reference: {', '.join(comparison.added)}")
    if as_json:
        _say(f"files: {comparison.folder}")
        print(json.dumps(comparison.to_json(), allow_nan=False))
    else:
        _show(comparison.table())
        print(f"files: {comparison.folder}")


@app.command()
def methods() -> None:
    """List the methods: what each does, and the settings it has of its own or sets differently."""
    import dataclasses

    from rich.table import Table

    from graphfed.methods.base import TrainingConfig
    from graphfed.methods.registry import ALIASES, METHODS, get_method

    common = {field.name for field in dataclasses.fields(TrainingConfig)}
    table = Table(
        caption="settings of --set that every method has: " + ", ".join(sorted(common - {"seed"})),
        caption_justify="left",
    )
    for column in ("method", "task", "what it does", "own settings"):
        table.add_column(column, overflow="fold")
    for name in METHODS:
        method = get_method(name)
        default = method.config(**method.defaults)
        own = {f.name: getattr(default, f.name) for f in dataclasses.fields(default) if f.name not in common}
        aliases = [alias for alias, target in ALIASES.items() if target == name]
        told = ", ".join(f"{key}={value}" for key, value in {**method.defaults, **own}.items())
        table.add_row(", ".join([name, *aliases]), method.task, method.summary, told)
    _show(table)


@data_app.command("list")
def data_list(data_dir: DataDir = None) -> None:
    """List the data sets: built in, found in a folder, or which of their files are missing."""
    from rich.table import Table

    from graphfed.data.datasets import DATASETS, available

    table = Table()
    for column in ("data set", "task", "what it is", "where"):
        table.add_column(column, overflow="fold")
    for row in available(data_dir):
        where = "built in" if row.built_in else str(row.place) if row.place else "not found"
        if row.missing:
            where += f"; missing: {', '.join(row.missing)}; from {DATASETS[row.name].source}"
        table.add_row(row.name, row.task, row.title, where)
    _show(table)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code (see the module's docstring)."""
    # Before torch is loaded: threads that wait sleep instead of spinning. Where other programs keep the cores
    # busy, spinning made a round on Cora up to 70 times slower.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    for stream in (sys.stdout, sys.stderr):
        # A result must not be lost because a terminal cannot show a sign of it.
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    try:
        with _signals():
            code = app(
                None if arguments is None else list(arguments), prog_name="graphfed", standalone_mode=False
            )
    except (typer.Abort, KeyboardInterrupt):
        # Versions of typer differ: some return 130 themselves.
        code = 130
    except GraphfedError as error:
        _say(f"error: {_one_line(str(error))}")
        return error.exit_code
    except MemoryError:
        _say("error: there is not enough memory; use a smaller graph, fewer clients or smaller layers")
        return 1
    except OSError as error:
        # The disk, as a rule: the one stdout goes to, or that of the temporary files.
        _say(f"error: {error}")
        return 1
    except _UsageError as error:
        # Empty where help was printed because nothing was asked.
        message = _one_line(error.format_message())
        if message:
            _say(f"error: {message} (see graphfed --help)")
        return 2
    if code == 130:
        _say("interrupted; the folders of finished runs are whole, nothing else was kept")
    return code if isinstance(code, int) else 0


@contextmanager
def _signals() -> Iterator[None]:
    """SIGTERM stops the program as Ctrl-C does: what is half done is cleaned away.

    A second wish within two seconds of the first is not heard, so that the cleaning is not cut short."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    heard = -2.0

    def stop(*_: object) -> None:
        nonlocal heard
        if time.monotonic() - heard > 2:
            heard = time.monotonic()
            raise KeyboardInterrupt

    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    # One that is ignored stays so: that is how a shell keeps Ctrl-C from programs in the background.
    ours = [number for number, handler in before.items() if handler not in (signal.SIG_IGN, None)]
    for number in ours:
        signal.signal(number, stop)
    try:
        yield
    finally:
        for number in ours:
            signal.signal(number, before[number])


def _one_line(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= 2000 else f"{line[:2000]}..."


#: What typer raises for unknown commands and options and for values of the wrong type: click's class, which
#: has moved between versions of typer.
_UsageError: Any = typer.BadParameter.__bases__[0]


def _compare_files(
    paths: list[Path], given: dict[str, Any], settings: dict[str, Any]
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Config files as rows of a comparison (those that name a method), and options common to all rows."""
    from graphfed.experiment.config import read_config

    rows: list[dict[str, Any]] = []
    common: dict[str, Any] = {}
    for path in paths:
        options = read_config(path, extra=("label", "seeds"))
        if "seed" in options:
            raise InputError(
                f"the config file {path} has a seed, and a comparison has several; write seeds: 0,1,2"
            )
        if "method" not in options:
            if common:
                raise InputError(
                    f"the config file {path} names no method, like one before it; one may hold common options"
                )
            common = options
            continue
        for key in ("out", "seeds"):
            if key in options:
                raise InputError(
                    f"the config file {path} is one row; {key!r} belongs to the comparison: give --{key}"
                )
        own = options.pop("set", {})
        options |= {key: value for key, value in given.items() if key not in ("out", "seeds")}
        label = options.get("label", path.stem)
        if not isinstance(label, str | int | float):
            raise InputError(f"the config file {path}: label must be text (found {type(label).__name__})")
        rows.append({**options, "settings": own, "label": label})
    return rows, common


def _parse_seeds(seeds: Any) -> tuple[int, ...]:
    """``"0,1,2"``, a number or a list -> seeds."""
    from graphfed.experiment.config import shown

    parts = seeds.split(",") if isinstance(seeds, str) else seeds if isinstance(seeds, list) else [seeds]
    try:
        return tuple(int(str(part)) for part in parts)
    except ValueError:
        raise InputError(
            f"seeds {shown(seeds)} cannot be read; write whole numbers with commas, as in 0,1,2"
        ) from None


def _command() -> str:
    """What was typed, for the manifest."""
    return shlex.join(["graphfed", *sys.argv[1:]])


def _summary(result: "Result") -> str:
    from graphfed.experiment.progress import human_bytes, human_seconds

    metrics = ", ".join(
        f"{name.replace('_', ' ')} {value:.4g}" for name, value in result.test.items() if value is not None
    )
    before = human_bytes(result.bytes["setup"])
    chosen = (
        f"round {result.best_round} of {result.rounds}" if result.best_round else "each client's own round"
    )
    lines = [
        f"{result.method} on {result.dataset}: {result.clients} clients, {result.partition}, "
        f"seed {result.seed}",
        f"test: {metrics} ({chosen}, chosen on validation)",
        f"{human_bytes(result.bytes['total'])} crossed, {before} of them before training; "
        f"{human_seconds(result.seconds['total'])}",
        f"files: {result.folder}",
    ]
    if "diverged_in_round" in result.details:
        lost = result.details["diverged_in_round"]
        lines.insert(
            2,
            f"training diverged in round {lost}: what stands is the best round before; "
            "use a smaller learning rate",
        )
    return "\n".join(lines)


def _say(text: str) -> None:
    print(text, file=sys.stderr)


def _show(table: "Table") -> None:
    from rich.console import Console

    # Where stdout is no terminal and nobody says how wide it is, rich would cut the table to 80 columns.
    console = Console()
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console = Console(width=140)
    console.print(table)


if __name__ == "__main__":
    sys.exit(main())
