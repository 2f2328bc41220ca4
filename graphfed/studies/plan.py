"""What comparisons, sweeps and reproductions share: runs planned before the first one starts, inputs loaded
once, runs that go on where they stopped, and statistics over seeds."""

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
    check_memory,
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


#: Seeds in one range: more than anybody waits for.
MAX_RANGE = 10_000


@dataclass(frozen=True)
class Row:
    """One line of a table to be: its name and a checked config for each seed."""

    label: str
    configs: Mapping[int, RunConfig]


def chosen_seeds(seeds: Iterable[int]) -> tuple[int, ...]:
    """The seeds as a tuple; InputError for anything else, none, or one that is there twice."""
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
    """``"0,1,2"``, ``"0-39"``, a number or a list of these -> seeds.

    Raises InputError for anything that is no whole number and no range of them."""
    parts = seeds.split(",") if isinstance(seeds, str) else seeds if isinstance(seeds, list) else [seeds]
    try:
        return tuple(seed for part in parts for seed in _seed_range(str(part)))
    except ValueError:
        raise InputError(
            f"seeds {shown(seeds)} cannot be read; write whole numbers with commas, as in 0,1,2, or a range, "
            f"as in 0-9 (at most {MAX_RANGE})"
        ) from None


def _seed_range(text: str) -> Iterable[int]:
    """``"0-2"`` -> 0, 1, 2; ``"7"`` -> 7. ValueError for anything else."""
    ends = re.fullmatch(r"\s*(\d+)\s*-\s*(\d+)\s*", text)
    if ends is None:
        return (int(text),)
    first, last = int(ends[1]), int(ends[2])
    if not first <= last < first + MAX_RANGE:
        raise ValueError
    return range(first, last + 1)


def run_name(label: str, seed: int) -> str:
    """The name of a run's folder."""
    return f"{label}-seed{seed}"


def has_runs(folder: Path) -> bool:
    """Whether a run has ended in a folder of runs, or got as far as a checkpoint."""
    return any(folder.glob("*/result.json")) or any(has_checkpoint(path) for path in folder.iterdir())


def run_or_read(
    config: RunConfig, inputs: Inputs, folder: Path | None, command: str, on_event: OnEvent | None
) -> Result:
    """One run in `folder` (None: nothing is written): read where it has ended, else gone on with. A saved
    partition is kept by the folder above."""
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
    """The configs of the seeds as a manifest has them."""
    return [{"seed": seed, "config": config.to_json()} for seed, config in configs.items()]


def read_configs(
    runs: Sequence[JsonObject], folder: Path, data: object, data_dir: str | Path | None
) -> dict[int, RunConfig]:
    """The configs that `planned_runs` wrote into the manifest of `folder`, checked again.

    data, data_dir: as `resume` takes them. KeyError or TypeError for what it never writes."""
    return {
        run["seed"]: config_from_json(run["config"], folder, data=data, data_dir=data_dir) for run in runs
    }


def begin_runs(folder: Path, row: Row, inputs: Mapping[int, Inputs], command: str, **asked: object) -> None:
    """Write the manifest of several runs, and keep a partition that was read from a file.

    row: the first one; inputs: its, of each seed. asked: what the manifest of this kind of folder has of its
    own."""
    hashes = {str(seed): known.hashes for seed, known in inputs.items()}
    write_manifest(folder, {"command": command, "started": now(), "hashes": hashes, **asked})
    first = next(iter(row.configs))
    keep_partition(folder, row.configs[first], inputs[first])


def check_inputs(folder: Path, inputs: Mapping[int, Inputs], hashes: Mapping[str, Mapping[str, str]]) -> None:
    """InputError unless the inputs of every seed are those of the manifest in `folder`."""
    for seed, known in inputs.items():
        check_hashes(folder, known, hashes[str(seed)])


# ---- inputs ------------------------------------------------------------------------------------------------


class InputCache:
    """Inputs of runs that follow each other: every data set is loaded once, and the last `keep` inputs stay
    (None: all), so that runs on the same data, split and partition share them."""

    def __init__(self, keep: int | None = 16) -> None:
        self._loaded: LoadedData = {}
        self._made: dict[Hashable, Inputs] = {}  # the one used last is the last
        self._keep = keep

    def get(self, config: RunConfig, on_stage: Callable[[str], None] = no_stages) -> Inputs:
        """The inputs of a run; raises what `load_inputs` raises."""
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
    """The inputs of every run by label and seed, loaded once each; on_stage(text) is called with what begins.

    InputError, before the first run, for one that does not fit into memory."""
    cache = InputCache(keep=None)
    loaded = {
        row.label: {seed: cache.get(config, on_stage) for seed, config in row.configs.items()} for row in rows
    }
    for row in rows:
        for seed, config in row.configs.items():
            check_memory(config, loaded[row.label][seed])
    return loaded


def _input_key(config: RunConfig) -> Hashable:
    """What decides a run's inputs."""
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
    """InputError unless all rows have the same hashes for each seed; table: label -> seed -> {what: hash}."""
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
    """A number over seeds. mean and std, the sample standard deviation (n - 1 in the denominator; None for
    one value), are None where a value is missing."""

    mean: float | None
    std: float | None
    values: list[float | None]


class ComparedRow(TypedDict):
    """One line of a comparison: a method with settings, over seeds.

    test, val, test_pooled: by metric. hashes {data, split, partition}, rounds, best_round, folders: of each
    seed. changed_settings: those that differ from their defaults. headline: the metrics that come first.
    training: all settings except the seed. selected_by: the validation metric. warnings: {seed, code, text}
    of the row's runs."""

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
    """Over seeds, for each metric of the first one."""
    return {name: statistic([m.get(name) for m in metrics]) for name in metrics[0]}


def statistic(values: Sequence[float | None]) -> Statistic:
    """Mean and spread of a number over seeds."""
    known = [v for v in values if v is not None]
    if len(known) < len(values):
        return {"mean": None, "std": None, "values": list(values)}
    std = float(np.std(known, ddof=1)) if len(known) > 1 else None
    return {"mean": float(np.mean(known)), "std": std, "values": list(known)}


def spread(found: Statistic | None, *, error: bool = False) -> str:
    """A `Statistic` as ``81.2 ± 0.4``, of a share in percent; of an error, in its own unit, to four digits of
    the mean: ``4.517 ± 0.032``."""
    if not found or found["mean"] is None:
        return "-"
    mean, std = found["mean"], found["std"]
    scale, decimals = 100, 1
    if error:
        scale, decimals = 1, max(0, 3 - math.floor(math.log10(abs(mean)))) if mean else 0
    text = f"{scale * mean:.{decimals}f}"
    return text if std is None else f"{text} ± {scale * std:.{decimals}f}"


def settings_text(settings: Mapping[str, object]) -> str:
    """``lr=0.1, hidden=16``."""
    return ", ".join(f"{key}={value}" for key, value in settings.items())
