"""Plan the runs of a reproduction, check them against its folder, and estimate their time."""

import dataclasses
import glob
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from graphfed.errors import InputError
from graphfed.methods.settings import changed
from graphfed.reproductions.base import Item, Place, Runs
from graphfed.reproductions.figures import check_metrics
from graphfed.reproductions.policies import Learning, without_policy
from graphfed.runs import folder as files
from graphfed.runs.progress import human_seconds
from graphfed.runs.reopen import read_manifest
from graphfed.runs.run import Result, execute
from graphfed.studies.jobs import Run
from graphfed.studies.plan import InputCache, run_name
from graphfed.tasks.run_config import RunConfig

#: Rounds of the run that is timed: what a first round does once is not the time of a round.
TRIAL_ROUNDS = 2
#: Where files are and how fast they are read does not matter to a run that has ended.
NO_MATTER = ("data_dir", "threads", "checkpoint_every")


@dataclass(frozen=True)
class PlannedRow:
    """The runs of a row, by seed, in the folder of their item.

    Attributes:
        items: All that show the row.
        learning: The policy that the runs use, if they use one.
    """

    label: str
    configs: Mapping[int, RunConfig]
    folder: Path
    items: list[Runs]
    learning: Learning | None

    def path(self, seed: int) -> Path:
        """Return the folder of a run."""
        return self.folder / run_name(self.label, seed)


def plan(items: Sequence[Item], place: Place, command: str) -> tuple[list[Learning], list[PlannedRow]]:
    """Return the policies and rows that items need, each once, checked against the folder.

    Raises InputError if an option or setting cannot be used, a policy does not suit a row, or the folder has
    runs or policies with other settings.
    """
    learnings: dict[str, Learning] = {}
    rows: dict[tuple[str, str], PlannedRow] = {}
    for item in items:
        for policy in item.policies:
            learnings[policy.name] = Learning(policy, place.folder, place.data_dir)
        if not isinstance(item, Runs):
            continue
        for row in item.rows:
            learning = None if row.policy is None else learnings[row.policy.name]
            settings = {} if learning is None else learning.settings_of_run()
            configs = {seed: item.config(row, seed, place.data_dir, settings) for seed in item.seeds_of(row)}
            planned = PlannedRow(row.label, configs, place.folder / item.run_folder, [], learning)
            rows.setdefault((item.run_folder, row.label), planned).items.append(item)
    for planned in rows.values():
        if planned.learning is not None:
            where = f"{planned.folder.name}, {planned.label}"
            planned.learning.require_fitting(where, next(iter(planned.configs.values())))
        _require_same_runs(planned)
    for learning in learnings.values():
        if learning.has_ended:
            learning.do("", place.cache, command, progress=False)
    return [*learnings.values()], [*rows.values()]


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
            if key not in NO_MATTER and before.get(key) != value:
                raise InputError(
                    f"the run in {path} had another {key} than is asked now; name another folder with --out"
                )


def _without_file(config: Mapping[str, Any]) -> dict[str, object]:
    """Return a config without the path of its policy's file."""
    training = {key: value for key, value in config.get("training", {}).items() if key != "policy_file"}
    return {**config, "training": training}


def policies_used(
    learnings: Sequence[Learning], rows: Sequence[PlannedRow], before: Mapping[str, str]
) -> dict[str, str]:
    """Return the digests of all policies of the folder, of which `learnings` are learned now.

    `before` are the digests in the folder's manifest. Raises InputError if runs in the folder have used
    another policy than the one that is there now.
    """
    now = {learning.policy.name: learning.digest() for learning in learnings}
    for row in rows:
        name = None if row.learning is None else row.learning.policy.name
        has_begun = any((row.path(seed) / "manifest.json").exists() for seed in row.configs)
        if name is not None and has_begun and before.get(name) != now[name]:
            raise InputError(
                f"the runs of {row.label!r} in {row.folder} used another policy {name!r} than the one that "
                "is there now; remove them, or name another folder with --out"
            )
    return {**before, **now}


def to_run(rows: Sequence[PlannedRow], cache: InputCache, log: Callable[[str], None]) -> list[Run]:
    """Return the runs that have not ended, with estimated times, those of an item after each other.

    In every item one run of each method, data set and task is timed. Raises InputError if a row does not have
    a metric of its item, and what loading data and running raise.
    """
    runs: list[tuple[int, int, Run]] = []
    folders = list(dict.fromkeys(row.folder for row in rows))
    trials: dict[tuple[Path, str, str, str], Result] = {}
    for row in rows:
        missing = [seed for seed in row.configs if not (row.path(seed) / "result.json").exists()]
        if not missing:
            continue
        # Policies are learned after the estimate.
        config = without_policy(row.configs[missing[0]])
        kind = (row.folder, config.method.name, config.data_name, config.task)
        if kind not in trials:
            ended = next(row.folder.glob(f"{glob.escape(row.label)}-seed*/result.json"), None)
            if ended is None:
                log(f"timing the first rounds of {row.folder.name}: {row.label}")
            trials[kind] = _first_rounds(config, cache) if ended is None else Result.read(ended.parent)
        trial = trials[kind]
        # A metric that the runs do not have is found now, and not after hours of training.
        for item in row.items:
            check_metrics(item, trial)
        seconds = trial.seconds["total"] + (config.rounds - trial.rounds) * trial.seconds["per_round"]
        for turn, seed in enumerate(missing):
            name = f"{row.folder.name}: {row.label}, seed {seed}"
            run = Run(name, row.configs[seed], row.path(seed), seconds)
            # The first seeds of all rows before the second seeds: runs on the same inputs share them.
            runs.append((folders.index(row.folder), turn, run))
    return [run for *_, run in sorted(runs, key=lambda entry: entry[:2])]


def _first_rounds(config: RunConfig, cache: InputCache) -> Result:
    rounds = min(TRIAL_ROUNDS, config.rounds)
    short = dataclasses.replace(config, settings=changed(config.settings, rounds=rounds))
    return execute(short, cache.get(config), folder=None, command="")


def cost_text(runs: Sequence[Run], num_policies: int, num_measured: int, jobs: int) -> str:
    """Return what there is to do, and how long the runs take if `jobs` of them are made at a time."""
    text = [f"{num_policies} polic{'ies' if num_policies > 1 else 'y'} to learn"] if num_policies else []
    if num_measured:
        text.append(f"{num_measured} item{'s' if num_measured > 1 else ''} to measure")
    if runs:
        at_once = min(jobs, len(runs))
        seconds = human_seconds(sum(run.seconds for run in runs) / at_once)
        together = f", {at_once} at a time" if at_once > 1 else ""
        text.append(
            f"{len(runs)} run{'s' if len(runs) > 1 else ''} to do, about {seconds}{together} (from the first "
            "rounds of each method and data set)"
        )
    return "; ".join(text) or "every run has ended; reading the results"
