"""`graphfed run`, `graphfed compare` and `graphfed resume`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from graphfed.cli.options import (
    Method,
    SharedOptions,
    read_seedless_config,
    with_options,
)
from graphfed.cli.output import command_line, interruption_logged, print_outcome, say, summary
from graphfed.cli.values import method_names, run_folders
from graphfed.errors import InputError
from graphfed.tasks.run_options import DATA_PANEL, MACHINE_PANEL, OUTPUT_PANEL, TRAINING_PANEL
from graphfed.terminal import print_line

if TYPE_CHECKING:
    from graphfed.runs.run import Result
    from graphfed.studies.comparison import Comparison


@with_options(
    "data", "config", "clients", "partition", "rounds", "seed", "split", "task", "runtime", "workers",
    "startup_kit", "placement", "device", "threads", "data_dir", "plugin", "out", "checkpoint_every",
    "settings", "show_config", "as_json", "report", "progress",
)  # fmt: skip
def run(
    method: Method = None,
    *,
    shared: SharedOptions,
    startup_kit: Annotated[
        Path | None,
        typer.Option(
            metavar="KIT",
            rich_help_panel=MACHINE_PANEL,
            help="Run on the sites of a deployment, which have the data: the startup kit of its coordinator "
            "(see 'graphfed site').",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            rich_help_panel=OUTPUT_PANEL,
            help="Folder to write, new or empty (default: runs/METHOD-DATA-TIME).",
        ),
    ] = None,
    show_config: Annotated[
        bool,
        typer.Option(
            "--show-config",
            rich_help_panel=OUTPUT_PANEL,
            help="Print all options and settings of the run, defaults included, as YAML for --config, and "
            "exit.",
        ),
    ] = False,
) -> None:
    """Train one method on data that is partitioned among clients, and report what left each client.

    The model of the round that was best on the validation nodes is scored once on the test nodes.

    Examples:

        graphfed run fedavg
        graphfed run fedgcn --data cora --clients 10 --set hops=1
        graphfed run fedprox --set mu=0.1 --set partition.beta=1 --out skewed
        graphfed run central --task link_prediction
        graphfed run last_value --data roads --set horizon=6
        graphfed run --config experiment.yaml --rounds 20 --json
        graphfed run fedgcn --data cora --show-config > experiment.yaml
        graphfed run fedavg --clients 3 --runtime nvflare
        graphfed run sapgnn --startup-kit startup_kits/coordinator

    Files:

        manifest.json        options, settings, seeds, hashes, versions
        metrics.jsonl        one line per round
        ledger.json          every transfer: its name, bytes and protection
        result.json          the result
        report.html          the result on one page, with charts
        model.safetensors, predictions.parquet, checkpoint/

    See also: graphfed compare, resume, predict, report, methods; docs/runs.md
    """
    from graphfed.runs.config import read_config

    config = {} if shared.config is None else read_config(shared.config, extra=("startup_kit",))
    options, settings = shared.merged(config, method=method, startup_kit=startup_kit, out=out)
    if show_config:
        _show_config(options, settings)
        return
    start = _run_deployed if "startup_kit" in options else _run_here
    with interruption_logged():
        result = start(options, settings=settings, progress=shared.progress, command=command_line())
    _print_result(result, shared)


def _show_config(options: dict[str, Any], settings: dict[str, Any]) -> None:
    """Print a run as a config file, without loading its data.

    --out and --startup-kit are printed as they were given.
    """
    from graphfed.plain_yaml import dump_yaml
    from graphfed.runs.config import make_config

    # `make_config` does not take these two.
    paths = {key: str(options.pop(key)) for key in ("out", "startup_kit") if key in options}
    config = make_config(options.pop("method", None), **options, settings=settings)
    print_line(dump_yaml(config.to_options() | paths).rstrip())


def _run_here(options: dict[str, Any], **more: Any) -> "Result":
    from graphfed.runs.run import run as run_method

    return run_method(options.pop("method", None), **options, **more)


def _run_deployed(options: dict[str, Any], **more: Any) -> "Result":
    runtime = options.pop("runtime", "nvflare")
    if runtime != "nvflare":
        raise InputError(
            f"--startup-kit cannot be used with --runtime {runtime}; use --runtime nvflare, or leave it out"
        )
    from graphfed.deployment.deploy import deploy

    return deploy(options.pop("method", None), **options, **more)


def _print_result(result: "Result", shared: SharedOptions) -> None:
    print_outcome(result, shared.as_json, summary(result), *_report(result.folder, shared))
    for warning in result.details.get("warnings", ()):
        say(f"warning: {warning['text']}")


@with_options(
    "data", "config", "clients", "partition", "rounds", "seeds", "split", "task", "runtime", "workers",
    "placement", "device", "threads", "jobs", "data_dir", "plugin", "out", "checkpoint_every", "settings",
    "as_json", "report", "progress",
)  # fmt: skip
def compare(
    methods: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="METHOD", autocompletion=method_names, help="The methods; see 'graphfed methods'."
        ),
    ] = None,
    *,
    shared: SharedOptions,
    config: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE",
            rich_help_panel=DATA_PANEL,
            help="YAML file as for 'graphfed run'. A file with a method is one more row, named by its "
            "'label:' or after the file. One file without a method may have options for all rows. Give the "
            "option once per file.",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            rich_help_panel=OUTPUT_PANEL,
            help="Folder to write, new or empty (default: runs/compare-DATA-TIME).",
        ),
    ] = None,
    jobs: Annotated[
        int,
        typer.Option(
            metavar="N",
            show_default=False,
            rich_help_panel=MACHINE_PANEL,
            help="Number of runs at a time, each in a process of its own (default: 1).",
        ),
    ] = 1,
) -> None:
    """Compare methods over several seeds on the same splits: mean and deviation, bytes, seconds.

    Missing reference rows are added: central, isolated and fedavg (for link prediction: central; for
    forecasting: gru_central, gru_local and last_value). Runs on different data, splits or partitions are
    refused. A setting applies to every method that has it; fedgcn.hops=1 applies to fedgcn only.

    Examples:

        graphfed compare isolated fedavg fedgcn central --data cora --seeds 0,1,2
        graphfed compare fedavg fedprox --set fedprox.mu=0.1 --seeds 0,1
        graphfed compare fedgcn --config one-hop.yaml --clients 5 --json

    Files:

        METHOD-seedS/        one folder per run, as 'graphfed run' writes it
        comparison.json      the table: mean, deviation and values over seeds
        report.html          the table, curves and costs on one page

    See also: graphfed run, graphfed resume; docs/runs.md, section Comparisons
    """
    from graphfed.studies.compare import compare as compare_methods

    rows, common = _compare_files(config or [], shared.run_options())
    options, settings = shared.merged(common, seeds=shared.seeds, out=out)
    with interruption_logged():
        comparison = compare_methods(
            [*(methods or ()), *rows],
            **options,
            settings=settings,
            jobs=jobs,
            progress=shared.progress,
            command=command_line(),
        )
    _print_comparison(comparison, shared)


def _report(folder: Path | None, shared: SharedOptions) -> list[str]:
    """Write the report of a finished folder, and the model card of a run, unless they exist.

    Returns the line that names the report, or nothing if no report is wanted.
    """
    if folder is None or not shared.report:
        return []
    from graphfed.report.page import write_card, write_report

    path = folder / "report.html"
    if not path.exists():
        # A comparison has no model card.
        if (folder / "result.json").exists():
            write_card(folder)
        write_report([folder])
    return [f"report: {path}"]


def _print_comparison(comparison: "Comparison", shared: SharedOptions) -> None:
    report = _report(comparison.folder, shared)
    if comparison.added:
        say(f"added for reference: {', '.join(comparison.added)}")
    print_outcome(comparison, shared.as_json, comparison.table(), f"files: {comparison.folder}", *report)
    for warning in comparison.warnings:
        say(f"warning: {warning.text}")


@with_options("rounds", "data_dir", "plugin", "as_json", "report", "progress")
def resume(
    folder: Annotated[
        Path,
        typer.Argument(
            metavar="FOLDER",
            autocompletion=run_folders,
            help="Folder of an unfinished run, comparison, sweep or policy.",
        ),
    ],
    *,
    shared: SharedOptions,
    rounds: Annotated[
        int | None,
        typer.Option(
            metavar="R",
            rich_help_panel=TRAINING_PANEL,
            help="Extend a finished run to so many rounds: the result is that of a run with this number from "
            "the start.",
        ),
    ] = None,
) -> None:
    """Continue an interrupted run, comparison, sweep or learning of a policy from its newest checkpoint.

    The result is the same as without the interruption: the same weights and the same metrics. If nothing is
    left to do, the command only shows the result.

    Examples:

        graphfed resume runs/fedavg-cora-20260131-120000
        graphfed resume skewed --data-dir data --json
        graphfed resume skewed --rounds 600

    Files:

        checkpoint/          in the folder of a run: the newest checkpoints

    See also: graphfed run, graphfed compare; docs/runs.md, section Interruptions
    """
    from graphfed.reproductions.reproduce import Reproduction
    from graphfed.runs.reopen import resume as continue_run
    from graphfed.runs.run import Result
    from graphfed.studies.comparison import Comparison
    from graphfed.studies.sweep import Sweep

    with interruption_logged():
        ended = continue_run(folder, rounds=rounds, **shared.run, progress=shared.progress)
    if isinstance(ended, Result):
        _print_result(ended, shared)
    elif isinstance(ended, Sweep):
        print_outcome(ended, shared.as_json, ended.table(), f"files: {ended.folder}")
    elif isinstance(ended, Reproduction):
        print_outcome(ended, shared.as_json, *ended.tables(), f"files: {ended.folder}")
    elif isinstance(ended, Comparison):
        _print_comparison(ended, shared)
    else:
        print_outcome(ended, shared.as_json, ended.summary())


def _compare_files(paths: list[Path], given: dict[str, Any]) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Read config files: those with a method as rows of a comparison, one without as options of all rows."""
    rows: list[dict[str, Any]] = []
    common: dict[str, Any] = {}
    for path in paths:
        options = read_seedless_config(path, "comparison", "label")
        if "method" not in options:
            if common:
                raise InputError(
                    f"the config file {path} has no 'method'; only one file may have options for all rows"
                )
            common = options
            continue
        # All rows of a comparison share the folder and the seeds.
        for key in ("out", "seeds"):
            if key in options:
                raise InputError(
                    f"the config file {path} is one row and cannot have {key!r}; give --{key} to the "
                    "comparison"
                )
        settings = options.pop("set", {})
        # What is given on the command line wins over the file of a row, too.
        options |= given
        label = options.get("label", path.stem)
        if not isinstance(label, str | int | float):
            raise InputError(f"the config file {path}: label must be text (found {type(label).__name__})")
        rows.append({**options, "settings": settings, "label": label})
    return rows, common
