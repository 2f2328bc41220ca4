"""Plan the runs of a reproduction, check them against its folder, estimate their time, and make them."""

import dataclasses
import glob
import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from graphfed.errors import InputError
from graphfed.methods.settings import changed
from graphfed.reproductions.base import Item, Measured, Place, Runs
from graphfed.reproductions.figures import check_metrics
from graphfed.reproductions.policies import Learning, without_policy
from graphfed.runs import folder as files
from graphfed.runs.progress import human_seconds
from graphfed.runs.reopen import read_manifest
from graphfed.runs.run import Result, execute
from graphfed.studies.jobs import Run
from graphfed.studies.plan import InputCache, run_name
from graphfed.tasks.run_config import RunConfig

#: Rounds of the run that is timed for a row, before it is run; one where it takes more than WARM_SECONDS,
#: against which what a first round does once is little.
TRIAL_ROUNDS = 2
WARM_SECONDS = 2.0
#: Runs of so few rounds are not timed each: a round or two and a set-up are a good part of them.
SHORT_ROUNDS = 20
#: The seconds of timing after which a row is no longer timed if a row of its item has its method and data.
ENOUGH_SECONDS = 30.0
#: The estimate of a row is reported at once if timing took so many seconds.
SLOW_SECONDS = 5.0
#: Settings by which short runs of a method differ too much to be timed as one.
SIZES = ("backbone", "hidden", "layers", "every", "local_epochs", "server_rounds")


@dataclass(frozen=True)
class PlannedRow:
    """The runs of a row.

    Attributes:
        folder: The folder of all of them.
        learning: The policy that they run with, and how it is learned; None for none.
    """

    label: str
    configs: Mapping[int, RunConfig]
    folder: Path
    items: list[Runs]
    learning: Learning | None

    def path(self, seed: int) -> Path:
        """Return the folder of a run."""
        return self.folder / run_name(self.label, seed)


@dataclass(frozen=True)
class Plan:
    """What items need.

    Attributes:
        learnings: The policies to learn, by name.
        pending: Other work that takes long, in words for the predicted cost.
    """

    learnings: Mapping[str, Learning] = field(default_factory=dict)
    rows: Sequence[PlannedRow] = ()
    pending: str = ""


def plan(items: Sequence[Item], place: Place, command: str) -> Plan:
    """Return what items need, checked against the folder. Nothing is written.

    Args:
        items: The items that are asked for.

    Raises:
        InputError: An option or setting cannot be used, a policy does not suit a row, or the folder has runs
            with other settings.
    """
    learnings = {
        policy.name: Learning(policy, place.folder, place.data_dir)
        for item in items
        for policy in item.policies
    }
    rows = _planned_rows(items, place, learnings)
    for row in rows:
        if row.learning is not None:
            where = f"{row.folder.name}, {row.label}"
            row.learning.require_fitting(where, next(iter(row.configs.values())))
        _require_same_runs(row)
    pending = "".join(
        item.pending(item, place) for item in items if isinstance(item, Measured) and item.pending is not None
    )
    for learning in learnings.values():
        learning.require_same(command)
    return Plan(learnings, rows, pending)


def _planned_rows(items: Sequence[Item], place: Place, learnings: Mapping[str, Learning]) -> list[PlannedRow]:
    """Return the rows to run; a row that several items show is there once."""
    rows: dict[tuple[str, str], PlannedRow] = {}
    for item in items:
        if not isinstance(item, Runs):
            continue
        for row in item.rows:
            learning = None if row.policy is None else learnings[row.policy.name]
            settings = {} if learning is None else learning.settings_of_run()
            configs = {seed: item.config(row, seed, place.data_dir, settings) for seed in item.seeds_of(row)}
            planned = PlannedRow(row.label, configs, place.folder / item.run_folder, [], learning)
            rows.setdefault((item.run_folder, row.label), planned).items.append(item)
    return list(rows.values())


def _require_same_runs(row: PlannedRow) -> None:
    """Raise InputError if a run in the folder differs from what is asked for now."""
    for seed, config in row.configs.items():
        path = row.path(seed)
        if not (path / "manifest.json").exists():
            continue
        before, asked = read_manifest(path).get("config", {}), files.plain(config.to_json())
        if row.learning is not None:  # `policies_used` looks at what is in its file
            before, asked = _without_file(before), _without_file(asked)
        for key, value in asked.items():
            # Where files are and how fast they are read does not matter.
            if key not in ("data_dir", "threads", "checkpoint_every") and before.get(key) != value:
                raise InputError(
                    f"the run in {path} had another {key} than is asked now; name another folder with --out"
                )


def _without_file(config: Mapping[str, Any]) -> dict[str, object]:
    """Return a config without the path of its policy's file."""
    training = {key: value for key, value in config.get("training", {}).items() if key != "policy_file"}
    return {**config, "training": training}


# ---- policies ----------------------------------------------------------------------------------------------


def to_learn(learnings: Iterable[Learning]) -> list[Learning]:
    """Return the policies that are not learned yet, with estimated times.

    Returns:
        Those to learn; those that have begun come first, as they may be refused.
    """
    missing = [learning for learning in learnings if not learning.has_ended]
    timed = [dataclasses.replace(learning, seconds=learning.timed()) for learning in missing]
    return sorted(timed, key=lambda learning: not learning.has_begun)


def policies_used(planned: Plan, before: Mapping[str, str]) -> dict[str, str]:
    """Return the digests of all policies of the folder.

    Args:
        planned: A plan whose policies are all learned.
        before: The digests in the folder's manifest.

    Raises:
        InputError: Runs in the folder have used another policy than the one that is there now.
    """
    now = {name: learning.digest() for name, learning in planned.learnings.items()}
    for row in planned.rows:
        name = None if row.learning is None else row.learning.policy.name
        has_begun = any((row.path(seed) / "manifest.json").exists() for seed in row.configs)
        if name is not None and has_begun and before.get(name) != now[name]:
            raise InputError(
                f"the runs of {row.label!r} in {row.folder} used another policy {name!r} than the one that "
                "is there now; remove them, or name another folder with --out"
            )
    return {**before, **now}


# ---- runs, and what they will take -------------------------------------------------------------------------


def to_run(
    rows: Sequence[PlannedRow], cache: InputCache, log: Callable[[str], None]
) -> tuple[list[Run], int]:
    """Return the runs that have not ended, with estimated times.

    The first seeds of all rows come first, then the second seeds, so that runs on the same inputs follow each
    other.

    Args:
        log: Called before rows are timed, and with the estimate of a row that is slow.

    Returns:
        The runs, and how many of them are of rows that were not timed (`_Timings.of`).

    Raises:
        InputError: A row does not have a metric of its item; and what loading data and running raise.
    """
    turns: list[tuple[int, Run]] = []
    timings = _Timings(cache, log)
    not_timed = 0
    for row in rows:
        missing = [seed for seed in row.configs if not (row.path(seed) / "result.json").exists()]
        if not missing:
            continue
        config = without_policy(row.configs[missing[0]])
        seconds, result = timings.of(row, config)
        if result is None:
            not_timed += len(missing)
        else:
            for item in row.items:
                check_metrics(item, result)
        for turn, seed in enumerate(missing):
            name = f"{row.folder.name}: {row.label}, seed {seed}"
            turns.append((turn, Run(name, row.configs[seed], row.path(seed), seconds)))
    return [run for _, run in sorted(turns, key=lambda entry: entry[0])], not_timed


@dataclass(frozen=True)
class _Timing:
    """The seconds of a run, the number of its rounds, the seconds of one of them, and the result."""

    seconds: float
    rounds: int
    per_round: float
    result: Result

    def with_rounds(self, rounds: int) -> float:
        """Return the estimated seconds of a run of so many rounds."""
        return self.seconds + (rounds - self.rounds) * self.per_round


class _Timings:
    """Times the first rounds of rows.

    In every item one row of each method and data set is timed, which also shows whether it has the metrics of
    the item. Timing the others may take `ENOUGH_SECONDS` in all.
    """

    def __init__(self, cache: InputCache, log: Callable[[str], None]) -> None:
        self._cache, self._log = cache, log
        self._by_work: dict[str, _Timing] = {}
        self._slowest: dict[tuple[str, ...], _Timing] = {}
        self._spent = 0.0

    def of(self, row: PlannedRow, config: RunConfig) -> tuple[float, Result | None]:
        """Return the estimated seconds of a row's run, and a result with the metrics of such a run.

        They are of a run of the row that has ended, or of the first rounds of the row or of one that does
        much the same work (`_work`). If the row is not timed, the seconds are those of the slowest row so far
        of its item, method and data, and the result is None.

        Args:
            config: One of its runs, without the policy.

        Returns:
            The seconds and the result.
        """
        work, kind = _work(config), (row.folder.name, config.method.name, config.data_name, config.task)
        rounds = config.rounds
        ended = next(row.folder.glob(f"{glob.escape(row.label)}-seed*/result.json"), None)
        if ended is not None:
            known = Result.read(ended.parent)
            timing = _Timing(known.seconds["total"], known.rounds, known.seconds["per_round"], known)
            seconds = timing.seconds
        elif work not in self._by_work and kind in self._slowest and self._spent > ENOUGH_SECONDS:
            return self._slowest[kind].with_rounds(rounds), None
        else:
            if work not in self._by_work:
                self._by_work[work] = self._timed(row, config, necessary=kind not in self._slowest)
            timing = self._by_work[work]
            seconds = timing.with_rounds(rounds)
        self._slowest[kind] = max(self._slowest.get(kind, timing), timing, key=lambda t: t.per_round)
        return seconds, timing.result

    def _timed(self, row: PlannedRow, config: RunConfig, *, necessary: bool) -> _Timing:
        """Time a few rounds of a run. The time counts towards `ENOUGH_SECONDS` unless it is necessary."""
        if not self._by_work:
            self._log("timing the first rounds of rows without a run")
        inputs, began = self._cache.get(config), time.perf_counter()
        for rounds in (1, min(TRIAL_ROUNDS, config.rounds)):
            short = dataclasses.replace(config, settings=changed(config.settings, rounds=rounds))
            last = time.perf_counter()
            result = execute(short, inputs, folder=None, command="")
            if result.seconds["per_round"] > WARM_SECONDS:
                break
        now = time.perf_counter()
        self._spent += 0 if necessary else now - began
        timing = _Timing(now - last, rounds, result.seconds["per_round"], result)
        if now - began > SLOW_SECONDS:
            seconds = human_seconds(timing.with_rounds(config.rounds))
            self._log(f"{row.folder.name}: {row.label}: about {seconds} a run")
        return timing


def in_order(runs: Sequence[Run], items: Sequence[Item]) -> list[Run]:
    """Return the same runs, those of the first item first.

    Args:
        runs: The runs, each in the folder of its item.
    """
    folders = [item.run_folder for item in items if isinstance(item, Runs)]
    return sorted(runs, key=lambda run: folders.index(run.folder.parent.name))


def _work(config: RunConfig) -> str:
    """Return a key of the work of a run; runs with the same key are expected to take equally long.

    They differ by numbers that are no counts, as epsilon, or they are so short that timing each would take as
    long as the runs.
    """
    settings = files.plain(config.to_json())
    if config.rounds <= SHORT_ROUNDS:
        sizes = [settings["training"].get(key) for key in SIZES]
        return json.dumps([settings[key] for key in ("method", "data", "task", "split")] + sizes)
    return json.dumps(_without_fractions(settings), sort_keys=True)


def _without_fractions(settings: object) -> object:
    if isinstance(settings, dict):
        return {k: _without_fractions(v) for k, v in settings.items() if not isinstance(v, float)}
    return settings


def cost_text(
    runs: Sequence[Run], not_timed: int, learnings: Sequence[Learning], pending: str, jobs: int
) -> str:
    """Return what all runs will take, in words.

    Args:
        not_timed: How many of them are of rows that were not timed.
        pending: What else there is to do; "" or a text that ends with a semicolon.
        jobs: How many runs are made at a time.
    """
    text = pending
    if learnings:
        source = "from two short episodes"
        text += f"{len(learnings)} policies to learn, {_duration(learnings, jobs)} ({source}); "
        if not runs:
            return text.removesuffix("; ")
    if not runs:
        return text + "every run has ended; reading the results"
    source = "from the first rounds of each new row, or of one that does as much"
    if not_timed:
        source += f"; for {not_timed} runs from the slowest row timed of their item, method and data"
    return text + f"{len(runs)} run{'s' if len(runs) > 1 else ''} to do, {_duration(runs, jobs)} ({source})"


def _duration(work: Sequence[Run] | Sequence[Learning], jobs: int) -> str:
    """Return the time of some work as text: ``about 1:00, 2 at a time``."""
    at_once = min(jobs, len(work))
    seconds = human_seconds(sum(each.seconds for each in work) / at_once)
    return f"about {seconds}" + (f", {at_once} at a time" if at_once > 1 else "")
