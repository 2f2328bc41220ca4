"""`graphfed sweep`."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from graphfed.cli.options import Method, SharedOptions, read_seedless_config, whole_number, with_options
from graphfed.cli.output import command_line, interruption_logged, print_outcome
from graphfed.cli.values import setting_keys
from graphfed.errors import InputError, shown


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
            help="Values of a setting of the method. Give the option once per setting; every combination "
            "is tried.",
        ),
    ] = None,
    optuna: Annotated[
        int | None,
        typer.Option(
            parser=whole_number,
            metavar="N",
            help="Search instead of a grid: Optuna proposes N trials in the ranges.",
        ),
    ] = None,
    ranges: Annotated[
        list[str] | None,
        typer.Option(
            "--range",
            metavar="KEY=LOW:HIGH[:log]",
            autocompletion=setting_keys,
            help="The range of a setting for the search. If both limits are whole numbers, so are the "
            "values.",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Folder to write (default: runs/sweep-METHOD-DATA-TIME). If it has this sweep, only the "
            "missing trials are run.",
        ),
    ] = None,
) -> None:
    """Try settings of a method, and select those that are best on the validation nodes.

    All trials of a seed have the same graph, split and partition. Test scores are shown only for the selected
    settings, because the best of many test scores would be too optimistic.

    Examples:

        graphfed sweep fedavg --grid lr=0.1,0.5 --grid hidden=16,32
        graphfed sweep fedavg --data cora --grid lr=0.1,0.5 --seeds 0,1

    See also: graphfed compare, graphfed resume; docs/sweeps.md
    """
    from graphfed.studies.sweep import sweep as run_sweep

    config = {} if shared.config is None else read_seedless_config(shared.config, "sweep")
    options, settings = shared.merged(config, method=method, seeds=shared.seeds, out=out)
    written = "key=values, as in --grid lr=0.1,0.5"
    grid_values = _values("--grid", grid or (), ",", written, "give all its values at once")
    written = "key=low:high, as in --range lr=0.01:1:log"
    limits = _values("--range", ranges or (), ":", written, "give it once")
    with interruption_logged():
        finished = run_sweep(
            options.pop("method", None),
            **options,
            grid=grid_values,
            ranges={key: tuple(pair) for key, pair in limits.items()},
            trials=optuna,
            settings=settings,
            progress=shared.progress,
            command=command_line(),
        )
    print_outcome(finished, shared.as_json, finished.table(), f"files: {finished.folder}")


def _values(
    option: str, pairs: Sequence[str], separator: str, written: str, fix: str
) -> dict[str, list[Any]]:
    """Return the values of an option that is given once per key, by key.

    `option` and `pairs` are its name and what was typed, and `fix` says what to do if a key is given twice.
    """
    from graphfed.runs.settings import parse_settings

    values: dict[str, list[Any]] = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        key = name.strip()
        if not equals or not key or not text.strip():
            raise InputError(f"{option} {shown(pair)} cannot be read; write {written}")
        if key in values:
            raise InputError(f"{option} {key} is given twice; {fix}")
        values[key] = [parse_settings([f"{key}={part}"])[key] for part in text.split(separator)]
    return values
