"""What comparisons, sweeps and reproductions share.

Runs are planned before the first one starts, inputs are loaded once, interrupted runs go on, a run that fails
does not stop the others, and figures are summarised over seeds.
"""

import math
import re
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from pydantic import ValidationError
from typing_extensions import TypedDict

from graphfed.errors import GraphfedError, InputError, shown
from graphfed.files import JsonObject
from graphfed.methods.base import Method
from graphfed.methods.parts import WINDOW_SETTINGS
from graphfed.methods.settings import only_those, value, values
from graphfed.runs import folder as files
from graphfed.runs.config import PRESET, with_none_named
from graphfed.runs.folder_schema import Amount, Real
from graphfed.runs.progress import OnEvent, show_data, show_progress, stages_of
from graphfed.runs.reopen import check_hashes, config_from_json, go_on
from graphfed.runs.run import Result, execute, has_checkpoint, keep_partition, now, write_manifest
from graphfed.tasks.base import PRESETS
from graphfed.tasks.inputs import Inputs
from graphfed.tasks.loading import load_inputs
from graphfed.tasks.registry import default_settings
from graphfed.tasks.run_config import RunConfig, no_stages
from graphfed.tasks.source import LoadedData

#: The most seeds in one range.
MAX_RANGE = 10_000


@dataclass(frozen=True)
class Row:
    """A planned row of a table: its name and a checked config for each seed."""

    label: str
    configs: Mapping[int, RunConfig]

    @property
    def first(self) -> RunConfig:
        """The config of the first seed."""
        return next(iter(self.configs.values()))

    def to_json(self) -> list[JsonObject]:
        """Return the runs as a manifest has them; `read_configs` reads them."""
        return [{"seed": seed, "config": config.to_json()} for seed, config in self.configs.items()]


def read_configs(
    runs: Sequence[JsonObject], folder: Path, data: object, data_dir: str | Path | None
) -> dict[int, RunConfig]:
    """Read the runs of a row from the manifest in a folder, and check every value again.

    `data` is needed if the run's data was an object in Python.
    """
    return {
        run["seed"]: config_from_json(run["config"], folder, data=data, data_dir=data_dir) for run in runs
    }


def chosen_seeds(seeds: Iterable[int]) -> tuple[int, ...]:
    """Return the seeds of a collection of whole numbers."""
    try:
        listed = tuple(seeds)
        set(listed)  # what cannot be hashed is no number
        chosen: tuple[int, ...] | None = listed
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
    """Read seeds: ``"0,1,2"``, ``"0-39"``, a number, or a list of these."""
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


def existing_settings(
    method: Method, task: str, shared: Mapping[str, object], own: Mapping[str, object]
) -> dict[str, object]:
    """Leave out those settings in `shared`, common to several runs, that do not exist in a run of the method.

    If some cannot be used, all are returned, so that `make_config` can say why.
    """
    names, shared = method.tree.names, with_none_named(method, task, shared)
    preset = str({**shared, **own}.get(PRESET, PRESETS[0]))
    try:
        defaults = {**default_settings(method, task, preset), **only_those(names, shared)}
        existing = values(method.configure(only_those(names, own), defaults))
    except (InputError, ValidationError):
        return dict(shared)
    return {key: each for key, each in shared.items() if key in existing or key not in names}


# ---- inputs ------------------------------------------------------------------------------------------------


class InputCache:
    """The inputs of runs that follow each other, so that runs on the same data, split and partition share
    them.

    `keep` is the largest number of inputs that are kept, the last ones; None for all. Every data set is
    loaded once.
    """

    def __init__(self, keep: int | None = 16) -> None:
        self._loaded: LoadedData = {}
        self._made: dict[Hashable, Inputs] = {}  # the one used last is the last
        self._keep = keep

    def get(self, config: RunConfig, on_stage: Callable[[str], None] = no_stages) -> Inputs:
        """Return the inputs of a run, loaded if they are not here; `on_stage` is called with the name of each
        stage.
        """
        key = _input_key(config)
        # Taken out and put in again, so that the order is that of the last use.
        inputs = self._made.pop(key, None) or load_inputs(config, self._loaded, on_stage)
        self._made[key] = inputs
        if self._keep is not None and len(self._made) > self._keep:
            del self._made[next(iter(self._made))]
        # For every run, because methods differ in what they need of the same inputs.
        inputs.check(config)
        return inputs.of_run(config)


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
        # Lags and horizon are settings of training, and they decide which windows there are.
        *(value(config.settings, name) for name in WINDOW_SETTINGS),
    )


def require_equal_hashes(table: Mapping[str, Mapping[int, Mapping[str, str]]]) -> None:
    """Raise InputError unless all rows have the same inputs for each seed."""
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


# ---- runs --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Study:
    """Runs that share their inputs, in one folder; `folder` is None to write nothing."""

    kind: str
    rows: Sequence[Row]
    folder: Path | None
    command: str
    progress: bool
    inputs: InputCache = field(default_factory=lambda: InputCache(keep=None))

    @contextmanager
    def opened(self, begun: JsonObject | None = None, **asked: object) -> Iterator[None]:
        """Open the folder for this block, after every input is loaded and checked.

        If the block fails, the folder stays if a run in it has ended or has a checkpoint. `begun` is the
        manifest of a study to go on with, whose hashes the inputs must have; for a new study, `asked` are
        further keys of its manifest.

        Raises InputError if the folder or the inputs cannot be used, a run does not fit into memory, or rows
        have different inputs for one seed.
        """
        folder = self.folder
        with (
            nullcontext() if folder is None else files.open_folder(folder, resume=bool(begun), keep=_has_runs)
        ):
            inputs = self._load()
            if folder is not None and begun is not None:
                for seed, known in inputs.items():
                    check_hashes(folder, known, begun["hashes"][str(seed)])
            elif folder is not None:
                hashes = {str(seed): known.hashes for seed, known in inputs.items()}
                write_manifest(folder, {"command": self.command, "started": now(), "hashes": hashes, **asked})
                keep_partition(folder, self.rows[0].first, next(iter(inputs.values())))
            show_data(next(iter(inputs.values())), self.progress)
            yield

    def _load(self) -> dict[int, Inputs]:
        """Load the inputs of every run, each once, and return those of the first row by seed."""
        with show_progress(self.kind, self.progress) as on_event:
            loaded = {
                row.label: {seed: self.inputs.get(c, stages_of(on_event)) for seed, c in row.configs.items()}
                for row in self.rows
            }
        require_equal_hashes(
            {label: {seed: known.hashes for seed, known in row.items()} for label, row in loaded.items()}
        )
        return loaded[self.rows[0].label]

    def run(self, label: str, config: RunConfig, progress_label: str) -> Result:
        """Make a run of this study (`run_or_read`); its folder is named after the label of its row."""
        folder = None if self.folder is None else self.folder / run_name(label, config.seed)
        with show_progress(progress_label, self.progress) as on_event:
            return run_or_read(config, self.inputs.get(config), folder, self.command, on_event)


def run_name(label: str, seed: int) -> str:
    """Return the name of a run's folder in the folder of a study."""
    return f"{label}-seed{seed}"


def _has_runs(folder: Path) -> bool:
    """Return whether a run or trial has ended in the folder of a study, or a run has a checkpoint."""
    ended = [*folder.glob("*/result.json"), *folder.glob("trials/*.json")]
    return bool(ended) or any(has_checkpoint(path) for path in folder.iterdir())


def run_or_read(
    config: RunConfig, inputs: Inputs, folder: Path | None, command: str, on_event: OnEvent | None
) -> Result:
    """Make one run in a folder, or without one; read it if it has ended, and go on with it if it has begun.

    A saved partition is kept in the folder above.
    """
    if folder is None:
        return execute(config, inputs, folder=None, command=command, on_event=on_event)
    if (folder / "result.json").exists():
        return Result.read(folder)
    if (folder / "manifest.json").exists():
        return go_on(config, inputs, folder, on_event)
    # A run that was killed before its manifest may have left an empty folder with a lock file.
    with files.open_folder(folder, resume=folder.exists(), keep=has_checkpoint):
        return execute(config, inputs, folder=folder, command=command, on_event=on_event, own_partition=False)


class Failures:
    """Runs that failed, while the others go on."""

    def __init__(self) -> None:
        self._found: dict[str, GraphfedError] = {}

    @contextmanager
    def noted(self, name: str) -> Iterator[None]:
        """Note what makes the run in this block fail; bad input stops all runs."""
        try:
            yield
        except InputError:
            raise
        except GraphfedError as error:
            self._found[name] = error

    def raise_first(self) -> None:
        """Raise GraphfedError if a run failed, with the names of all that did."""
        if not self._found:
            return
        (name, first), *others = self._found.items()
        also = f"; these failed, too: {'; '.join(other for other, _ in others)}" if others else ""
        raise GraphfedError(f"{name} failed: {first}{also}") from first


# ---- statistics over seeds ---------------------------------------------------------------------------------


class Statistic(TypedDict):
    """A number over seeds, as files have it.

    Attributes:
        mean: None if a value is missing.
        std: The sample standard deviation (n - 1 in the denominator); None for one value, or if one is
            missing.
    """

    mean: Real | None
    std: Amount | None
    values: list[Real | None]


def statistics(metrics: Sequence[Mapping[str, float | None]]) -> dict[str, Statistic]:
    """Return a `Statistic` over seeds for each metric of the first seed."""
    return {name: statistic([m.get(name) for m in metrics]) for name in metrics[0]}


def statistic(values: Sequence[float | None]) -> Statistic:
    """Return mean and deviation of a number over seeds."""
    known = [v for v in values if v is not None]
    # A mean without the missing value would be over other seeds than the other rows have.
    if len(known) < len(values) or not values:
        return {"mean": None, "std": None, "values": list(values)}
    std = float(np.std(known, ddof=1)) if len(known) > 1 else None
    return {"mean": float(np.mean(known)), "std": std, "values": list(known)}


def spread(found: Statistic | None, *, error: bool = False) -> str:
    """Write a statistic as ``81.2 ± 0.4``; "-" without a mean.

    An `error` is written in its own unit and with four digits of the mean: ``4.517 ± 0.032``. Everything else
    is a fraction, which is written in percent.
    """
    if not found or found["mean"] is None:
        return "-"
    mean, std = found["mean"], found["std"]
    scale, decimals = 100, 1
    # Four significant digits of the mean, and the same decimals for the deviation.
    if error:
        scale, decimals = 1, max(0, 3 - math.floor(math.log10(abs(mean)))) if mean else 0
    text = f"{scale * mean:.{decimals}f}"
    return text if std is None else f"{text} ± {scale * std:.{decimals}f}"


def settings_text(settings: Mapping[str, object]) -> str:
    """Write settings as ``lr=0.1, hidden=16``."""
    return ", ".join(f"{key}={value}" for key, value in settings.items())
