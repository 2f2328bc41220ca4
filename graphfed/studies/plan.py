"""What comparisons, sweeps and reproductions have in common.

Runs are planned before the first one starts, inputs are loaded once, interrupted runs go on, and figures are
summarised over seeds.
"""

import math
import re
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict

import numpy as np

from graphfed.errors import InputError, shown
from graphfed.files import JsonObject
from graphfed.methods.config import WINDOW_SETTINGS
from graphfed.runs import folder as files
from graphfed.runs.progress import OnEvent
from graphfed.runs.reopen import check_hashes, config_from_json, go_on
from graphfed.runs.run import (
    Result,
    execute,
    has_checkpoint,
    keep_partition,
    now,
    write_manifest,
)
from graphfed.tasks.inputs import Inputs
from graphfed.tasks.loading import load_inputs
from graphfed.tasks.run_config import RunConfig, no_stages
from graphfed.tasks.source import LoadedData

__all__ = [
    "ComparedRow",
    "InputCache",
    "Row",
    "Statistic",
    "begin_runs",
    "check_inputs",
    "chosen_seeds",
    "has_runs",
    "load_rows",
    "parse_seeds",
    "planned_runs",
    "read_configs",
    "require_equal_hashes",
    "run_name",
    "run_or_read",
    "settings_text",
    "spread",
    "statistic",
    "statistics",
]


#: The most seeds in one range.
MAX_RANGE = 10_000


@dataclass(frozen=True)
class Row:
    """A planned row of a table: its name and a checked config for each seed."""

    label: str
    configs: Mapping[int, RunConfig]


def chosen_seeds(seeds: Iterable[int]) -> tuple[int, ...]:
    """Check seeds.

    Args:
        seeds: A collection of whole numbers.

    Returns:
        The seeds.

    Raises:
        InputError: There is none, one is given twice, or the value is no collection.
    """
    try:
        chosen: tuple[int, ...] | None = tuple(seeds)
        len(set(seeds))
    except TypeError:
        chosen = None
    if chosen is None or isinstance(seeds, str | bytes | Mapping):
        raise InputError(
            f"seeds={shown(seeds)} cannot be used; give a list of whole numbers, as in [0, 1, 2]"
        )
    if not chosen:
        raise InputError("no seed was given; give at least one, as in --seeds 0,1,2")
    if len(set(chosen)) < len(chosen):
        raise InputError(
            f"seeds {', '.join(shown(s) for s in chosen)}: a seed is there twice; give each once"
        )
    return chosen


def parse_seeds(seeds: object) -> tuple[int, ...]:
    """Read seeds.

    Args:
        seeds: ``"0,1,2"``, ``"0-39"``, a number, or a list of these.

    Returns:
        The seeds.

    Raises:
        InputError: A part is no whole number and no range of them.
    """
    parts = seeds.split(",") if isinstance(seeds, str) else seeds if isinstance(seeds, list) else [seeds]
    try:
        return tuple(seed for part in parts for seed in _seed_range(str(part)))
    except ValueError:
        raise InputError(
            f"seeds {shown(seeds)} cannot be read; write whole numbers with commas, as in 0,1,2, or a range, "
            f"as in 0-9 (at most {MAX_RANGE})"
        ) from None


def _seed_range(text: str) -> Iterable[int]:
    """Return the seeds of ``"0-2"`` or ``"7"``; ValueError for anything else."""
    ends = re.fullmatch(r"\s*(\d+)\s*-\s*(\d+)\s*", text)
    if ends is None:
        return (int(text),)
    first, last = int(ends[1]), int(ends[2])
    if not first <= last < first + MAX_RANGE:
        raise ValueError
    return range(first, last + 1)


def run_name(label: str, seed: int) -> str:
    """Return the name of a run's folder.

    Args:
        label: The label of the row.
        seed: The seed of the run.

    Returns:
        The name.
    """
    return f"{label}-seed{seed}"


def has_runs(folder: Path) -> bool:
    """Return whether a run has ended in a folder of runs, or has a checkpoint.

    Args:
        folder: The folder.

    Returns:
        True if something is worth keeping.
    """
    return any(folder.glob("*/result.json")) or any(has_checkpoint(path) for path in folder.iterdir())


def run_or_read(
    config: RunConfig, inputs: Inputs, folder: Path | None, command: str, on_event: OnEvent | None
) -> Result:
    """Make one run; read it if it has ended, and go on with it if it has begun.

    Args:
        config: The run.
        inputs: Its inputs.
        folder: Its folder; None to write nothing. A saved partition is kept in the folder above.
        command: The command that the manifest records.
        on_event: Called with the progress events.

    Returns:
        The result.
    """
    if folder is None:
        return execute(config, inputs, folder=None, command=command, on_event=on_event)
    if (folder / "result.json").exists():
        return Result.read(folder)
    if (folder / "manifest.json").exists():
        return go_on(config, inputs, folder, on_event)
    with files.open_folder(folder, resume=folder.exists(), keep=has_checkpoint):
        return execute(config, inputs, folder=folder, command=command, on_event=on_event, own_partition=False)


# ---- a folder of several runs ------------------------------------------------------------------------------


def planned_runs(configs: Mapping[int, RunConfig]) -> list[JsonObject]:
    """Return the configs of the seeds as a manifest has them.

    Args:
        configs: A config for each seed.

    Returns:
        An object for each seed.
    """
    return [{"seed": seed, "config": config.to_json()} for seed, config in configs.items()]


def read_configs(
    runs: Sequence[JsonObject], folder: Path, data: object, data_dir: str | Path | None
) -> dict[int, RunConfig]:
    """Read the configs that `planned_runs` wrote into a manifest, and check them again.

    Args:
        runs: The objects in the manifest.
        folder: The folder of the manifest.
        data: The data, if it was an object in Python.
        data_dir: The folder where the data files are now.

    Returns:
        A config for each seed.

    Raises:
        InputError: A value cannot be used.
    """
    return {
        run["seed"]: config_from_json(run["config"], folder, data=data, data_dir=data_dir) for run in runs
    }


def begin_runs(folder: Path, row: Row, inputs: Mapping[int, Inputs], command: str, **asked: object) -> None:
    """Write the manifest of several runs, and keep a partition that was read from a file.

    Args:
        folder: The folder of the runs.
        row: The first row.
        inputs: The inputs of the first row, for each seed.
        command: The command to record.
        asked: Further keys of the manifest.
    """
    hashes = {str(seed): known.hashes for seed, known in inputs.items()}
    write_manifest(folder, {"command": command, "started": now(), "hashes": hashes, **asked})
    first = next(iter(row.configs))
    keep_partition(folder, row.configs[first], inputs[first])


def check_inputs(folder: Path, inputs: Mapping[int, Inputs], hashes: Mapping[str, Mapping[str, str]]) -> None:
    """Check that the inputs of every seed are those of a manifest.

    Args:
        folder: The folder of the manifest, for the message.
        inputs: The inputs for each seed.
        hashes: The hashes in the manifest.

    Raises:
        InputError: A hash differs.
    """
    for seed, known in inputs.items():
        check_hashes(folder, known, hashes[str(seed)])


# ---- inputs ------------------------------------------------------------------------------------------------


class InputCache:
    """The inputs of runs that follow each other, so that runs on the same data, split and partition share
    them.

    Args:
        keep: How many inputs are kept at most, the last ones; None for all. Every data set is loaded once.
    """

    def __init__(self, keep: int | None = 16) -> None:
        self._loaded: LoadedData = {}
        self._made: dict[Hashable, Inputs] = {}  # the one used last is the last
        self._keep = keep

    def get(self, config: RunConfig, on_stage: Callable[[str], None] = no_stages) -> Inputs:
        """Return the inputs of a run, loaded if they are not here.

        Args:
            config: The run.
            on_stage: Called with the name of each stage that begins.

        Returns:
            The inputs.

        Raises:
            InputError: They cannot be loaded, or do not suit the run.
        """
        key = _input_key(config)
        inputs = self._made.pop(key, None) or load_inputs(config, self._loaded, on_stage)
        self._made[key] = inputs
        if self._keep is not None and len(self._made) > self._keep:
            del self._made[next(iter(self._made))]
        inputs.check(config)
        return inputs


def load_rows(
    rows: Sequence[Row], on_stage: Callable[[str], None] = no_stages
) -> dict[str, dict[int, Inputs]]:
    """Load the inputs of every run, each once.

    Args:
        rows: The rows.
        on_stage: Called with the name of each stage that begins.

    Returns:
        The inputs by label and seed.

    Raises:
        InputError: The inputs of a run cannot be loaded.
    """
    cache = InputCache(keep=None)
    return {
        row.label: {seed: cache.get(config, on_stage) for seed, config in row.configs.items()} for row in rows
    }


def _input_key(config: RunConfig) -> Hashable:
    """Return what decides a run's inputs."""
    return (
        config.task,
        config.data,
        tuple(config.data_options.items()),
        config.data_dir,
        config.clients,
        config.partition,
        tuple(config.partition_options.items()),
        config.partition_seed,
        config.partition_file,
        config.split,
        config.split_seed,
        *(getattr(config.training, name, None) for name in WINDOW_SETTINGS),
    )


def require_equal_hashes(table: Mapping[str, Mapping[int, Mapping[str, str]]]) -> None:
    """Check that all rows have the same inputs.

    Args:
        table: The hashes by label, seed and kind.

    Raises:
        InputError: Two rows have different hashes for a seed.
    """
    first = next(iter(table))
    for label, row in table.items():
        for seed, hashes in row.items():
            for what, here in hashes.items():
                there = table[first][seed][what]
                if here != there:
                    raise InputError(
                        f"{first} and {label} cannot share a table: with seed {seed} their {what} hashes "
                        f"differ ({there[:12]} and {here[:12]}); run both with the same data, split and "
                        "partition options"
                    )


# ---- statistics over seeds ---------------------------------------------------------------------------------


class Statistic(TypedDict):
    """A number over seeds.

    Attributes:
        mean: None if a value is missing.
        std: The sample standard deviation (n - 1 in the denominator); None for one value, or if one is
            missing.
        values: The value of each seed.
    """

    mean: float | None
    std: float | None
    values: list[float | None]


class ComparedRow(TypedDict):
    """A row of a comparison: a method with settings, over seeds.

    Attributes:
        label: The name of the row.
        method: The name of the method.
        seeds: The seeds.
        test: Test metrics by name.
        val: Validation metrics by name.
        test_pooled: Test metrics of the same weights on the whole graph.
        hashes: Of data, split and partition, for each seed.
        rounds: For each seed.
        best_round: For each seed.
        bytes: Payload bytes.
        seconds: Of a run.
        changed_settings: The settings that differ from their defaults.
        headline: The metrics that come first.
        training: All settings except the seed.
        selected_by: The validation metric that chose the round.
        warnings: {seed, code, text} of the row's runs.
        folders: Of the runs.
    """

    label: str
    method: str
    seeds: list[int]
    test: dict[str, Statistic]
    val: dict[str, Statistic]
    test_pooled: dict[str, Statistic]
    hashes: dict[str, list[str]]
    rounds: list[int]
    best_round: list[int | None]
    bytes: Statistic
    seconds: Statistic
    changed_settings: JsonObject
    headline: list[str]
    training: JsonObject
    selected_by: str
    warnings: list[JsonObject]
    folders: list[str | None]


def statistics(metrics: Sequence[Mapping[str, float | None]]) -> dict[str, Statistic]:
    """Return a `Statistic` over seeds for each metric of the first seed.

    Args:
        metrics: The metrics of each seed.

    Returns:
        The statistics by metric.
    """
    return {name: statistic([m.get(name) for m in metrics]) for name in metrics[0]}


def statistic(values: Sequence[float | None]) -> Statistic:
    """Return mean and deviation of a number over seeds.

    Args:
        values: The value of each seed.

    Returns:
        The statistic.
    """
    known = [v for v in values if v is not None]
    if len(known) < len(values):
        return {"mean": None, "std": None, "values": list(values)}
    std = float(np.std(known, ddof=1)) if len(known) > 1 else None
    return {"mean": float(np.mean(known)), "std": std, "values": list(known)}


def spread(found: Statistic | None, *, error: bool = False) -> str:
    """Write a statistic as ``81.2 ± 0.4``.

    Args:
        found: The statistic; None for none.
        error: Whether it is an error, in its own unit and with four digits of the mean: ``4.517 ± 0.032``.
            Else it is a fraction, and is written in percent.

    Returns:
        The text; "-" without a mean.
    """
    if not found or found["mean"] is None:
        return "-"
    mean, std = found["mean"], found["std"]
    scale, decimals = 100, 1
    if error:
        scale, decimals = 1, max(0, 3 - math.floor(math.log10(abs(mean)))) if mean else 0
    text = f"{scale * mean:.{decimals}f}"
    return text if std is None else f"{text} ± {scale * std:.{decimals}f}"


def settings_text(settings: Mapping[str, object]) -> str:
    """Write settings as ``lr=0.1, hidden=16``.

    Args:
        settings: Values by name.

    Returns:
        The text.
    """
    return ", ".join(f"{key}={value}" for key, value in settings.items())
