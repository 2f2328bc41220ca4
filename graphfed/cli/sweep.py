"""`graphfed sweep`."""

from pathlib import Path
from typing import Annotated, Any

import typer

from graphfed.cli.options import Method, SharedOptions, read_seedless_config, whole_number, with_options
from graphfed.cli.output import command_line, interruption_told, print_outcome
from graphfed.cli.values import setting_keys
from graphfed.errors import InputError, shown

__all__ = ["sweep"]


@with_options(
    "grid", "optuna", "ranges", "seeds", "data", "config", "clients", "partition", "rounds", "split", "task",
    "runtime", "placement", "device", "threads", "data_dir", "plugin", "out", "settings", "as_json",
    "progress",
)  # fmt: skip
def sweep(
    method: Method = None,
    *,
    shared: SharedOptions,
    grid: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=A,B,...",
            autocompletion=setting_keys,
            help="Values of a setting of the method, as often as needed: every combination is tried.",
        ),
    ] = None,
    optuna: Annotated[
        int | None,
        typer.Option(
            parser=whole_number,
            metavar="N",
            help="Search instead: N trials that Optuna proposes in the ranges.",
        ),
    ] = None,
    ranges: Annotated[
        list[str] | None,
        typer.Option(
            "--range",
            metavar="KEY=LOW:HIGH[:log]",
            autocompletion=setting_keys,
            help="Where the search draws a setting; whole numbers where both ends are.",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Folder to write (default: runs/sweep-METHOD-DATA-TIME); where it holds this sweep, the "
            "trials that are missing are run.",
        ),
    ] = None,
) -> None:
    """Try settings of a method and choose those that are best on the validation vertices.

    Every trial of a seed has the same graph, split and partition. Test scores are shown for the chosen
    settings only: the best of many test scores would promise too much.

    Examples:
        graphfed sweep fedavg --grid lr=0.1,0.5 --grid hidden=16,32
        graphfed sweep fedavg --data cora --grid lr=0.1,0.5 --seeds 0,1
    See also:
        graphfed compare, graphfed resume; docs/sweeps.md
    """
    from graphfed.studies.sweep import sweep as run_sweep

    config = {} if shared.config is None else read_seedless_config(shared.config, "sweep")
    options, settings = shared.merged(config, method=method, seeds=shared.seeds, out=out)
    with interruption_told():
        finished = run_sweep(
            options.pop("method", None),
            **options,
            grid=_grid(grid or []),
            ranges=_ranges(ranges or []),
            trials=optuna,
            settings=settings,
            progress=shared.progress,
            command=command_line(),
        )
    print_outcome(finished, shared.as_json, finished.table(), f"files: {finished.folder}")


def _grid(pairs: list[str]) -> dict[str, list[Any]]:
    """``["lr=0.1,0.5"]`` -> ``{"lr": [0.1, 0.5]}``."""
    from graphfed.runs.config import parse_settings

    grid: dict[str, list[Any]] = {}
    for pair in pairs:
        key, equals, text = pair.partition("=")
        if not equals or not key.strip() or not text.strip():
            raise InputError(
                f"--grid {shown(pair)} cannot be read; write key=values, as in --grid lr=0.1,0.5"
            )
        if key.strip() in grid:
            raise InputError(f"--grid {key.strip()} is given twice; give all its values at once")
        grid[key.strip()] = [parse_settings([f"{key}={value}"])[key.strip()] for value in text.split(",")]
    return grid


def _ranges(pairs: list[str]) -> dict[str, tuple[Any, ...]]:
    """``["lr=0.01:1:log"]`` -> ``{"lr": (0.01, 1, "log")}``."""
    from graphfed.runs.config import parse_settings

    ranges: dict[str, tuple[Any, ...]] = {}
    for pair in pairs:
        key, equals, text = pair.partition("=")
        if not equals or not key.strip():
            raise InputError(
                f"--range {shown(pair)} cannot be read; write key=low:high, as in --range lr=0.01:1:log"
            )
        if key.strip() in ranges:
            raise InputError(f"--range {key.strip()} is given twice; give it once")
        ranges[key.strip()] = tuple(
            parse_settings([f"{key}={part}"])[key.strip()] for part in text.split(":")
        )
    return ranges
