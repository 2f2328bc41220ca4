"""Open the folder of a run again: to use it, to audit it, or to go on with it after an interruption.

A run goes on from its newest checkpoint, a comparison or a sweep from its first unfinished run, and the
learning of a policy from its newest episode.
"""

import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel

from graphfed.data.graphs.planetoid import without_downloads
from graphfed.errors import InputError
from graphfed.files import JsonObject
from graphfed.loading import load_object
from graphfed.methods.settings import value
from graphfed.methods.tasks import CLASSIFICATION
from graphfed.plugins import check_plugins
from graphfed.runs import folder as files
from graphfed.runs.config import make_config
from graphfed.runs.folder_schema import (
    AnyManifest,
    CheckpointFile,
    ComparisonManifest,
    DeployedManifest,
    OtherManifest,
    RunManifest,
    SweepManifest,
    check_content,
)
from graphfed.runs.progress import show_progress, stages_of
from graphfed.runs.run import Result, finish, now, write_manifest
from graphfed.tasks.inputs import Inputs
from graphfed.tasks.loading import load_inputs
from graphfed.tasks.run_config import RunConfig, no_stages
from graphfed.tasks.run_options import OPTIONS
from graphfed.terminal import say

if TYPE_CHECKING:
    from graphfed.runs.train import Event

#: The options that a manifest has under their own names, and as they are given again.
_OPTIONS = tuple(name for name in OPTIONS if name not in ("task", "data", "rounds", "data_dir"))

#: The schema of a manifest, by a key that only manifests of its kind have. A run's has none of these.
MANIFESTS: dict[str, type[BaseModel]] = {
    "rows": ComparisonManifest,
    "sweep": SweepManifest,
    "reproduce": OtherManifest,
    "policy": OtherManifest,
    "deployment": DeployedManifest,
}


def read_manifest(folder: str | Path) -> JsonObject:
    """Read the manifest in the folder of a run, a comparison, a sweep, a reproduction or a policy."""
    path = Path(folder) / "manifest.json"
    manifest = files.read_json(path, AnyManifest)
    kind = next((model for key, model in MANIFESTS.items() if key in manifest), RunManifest)
    return check_content(manifest, kind, str(path))


def reopen(
    folder: str | Path,
    *,
    data: object = None,
    data_dir: str | Path | None = None,
    on_stage: Callable[[str], None] = no_stages,
) -> tuple[RunConfig, Inputs]:
    """Read the config of the run in a folder, and load its graph, split and partition again.

    A partition that was read from a file is read from the file again, or from the copy in the folder if the
    file is gone. `data` is needed if the run's data was an object in Python, and `data_dir` if the data files
    were moved.

    Raises InputError if the folder has no usable manifest, or graph, split or partition are not those of the
    run (their hashes differ).
    """
    manifest = read_manifest(folder)
    if "deployment" in manifest:
        raise InputError(
            f"the run in {folder} was deployed, so its data is at the sites: each site has its predictions "
            f"and what it sent in runs/{manifest['deployment'].get('run')} of its startup kit"
        )
    if "policy" in manifest:
        raise InputError(
            f"{folder} holds a sampling policy and no run; use the policy in a run: policy_file="
            f"{Path(folder) / 'policy.safetensors'}"
        )
    if "config" not in manifest:
        raise InputError(f"{folder} is a folder of several runs; name one of those in it")
    config = config_from_json(manifest["config"], Path(folder), data=data, data_dir=data_dir)
    # The folder may be anybody's, and must not decide what is downloaded.
    with without_downloads():
        inputs = load_inputs(config, on_stage=on_stage)
    check_hashes(Path(folder), inputs, manifest["hashes"])
    return config, inputs


def check_hashes(folder: Path, inputs: Inputs, hashes: Mapping[str, str]) -> None:
    """Check that graph, split and partition are those of the run."""
    for what, here in inputs.hashes.items():
        there = hashes.get(what)
        if here != there:
            raise InputError(
                f"the {what} is not the one that the run in {folder} had (hash {here[:12]} instead of "
                f"{str(there)[:12]}); give the same data again, or start a new run"
            )


def config_from_json(
    asked: JsonObject,
    folder: Path,
    *,
    data: object = None,
    data_dir: str | Path | None = None,
    origin: str | None = None,
) -> RunConfig:
    """Read a run's config, the inverse of `RunConfig.to_json`, and check every value again.

    `folder` has the manifest and perhaps the copy of a partition. `data` replaces the data, and is needed if
    it was an object in Python. Messages about a value begin with `origin`, by default the folder's
    manifest.json.
    """
    check_plugins(asked.get("plugins", ()), folder)
    try:
        source = asked["data_source"] if data is None else data
        if source is None:
            raise InputError(
                f"the run in {folder} had data {asked['data']!r} from an object in Python; "
                "pass it again, as in graphfed.resume(folder, data=graph)"
            )
        # The seed is an option of its own, which `_OPTIONS` has.
        settings = {key: value for key, value in asked["training"].items() if key != "seed"}
        settings |= {"split_seed": asked["split_seed"]}
        # The options of a saved partition are in its file.
        saved = _saved_partition(asked.get("partition_file"), folder)
        if saved is None:
            settings |= {"partition_seed": asked["partition_seed"]}
        for prefix in ("data",) if saved is not None else ("partition", "data"):
            settings |= {f"{prefix}.{key}": value for key, value in asked[f"{prefix}_options"].items()}
        task = asked.get("task", CLASSIFICATION)  # runs of earlier versions have no task in the config
        options = {key: asked[key] for key in _OPTIONS} | ({} if saved is None else {"partition": saved})
        known = asked["data_dir"] if data_dir is None else data_dir
    except (KeyError, TypeError, AttributeError) as error:
        raise InputError(
            f"{folder / 'manifest.json'} is damaged, or of another version of graphfed: "
            f"its config has no {error}"
        ) from None
    try:
        return make_config(task=task, data=source, data_dir=known, settings=settings, **options)
    except InputError as error:
        before = f"{folder / 'manifest.json'}: " if origin is None else origin
        raise InputError(f"{before}{error}") from None


def _saved_partition(named: str | None, folder: Path) -> str | None:
    """Return the file of a partition: the one that the run named, or, if it is gone, the copy in the run's
    folder or in the folder of the comparison or sweep that the run belongs to.
    """
    if named is None or os.path.exists(named):  # a Path's `exists` raises where a folder may not be read
        return named
    for above in (folder, folder.parent):
        if (above / "manifest.json").is_file() and (above / files.PARTITION).is_file():
            return str(above / files.PARTITION)
    return named


def go_on(
    config: RunConfig, inputs: Inputs, folder: Path, on_event: "Callable[[Event], None] | None"
) -> Result:
    """Go on with a run that has begun and not ended, from its newest undamaged checkpoint."""
    from graphfed.runs.checkpoint import process_names

    with files.open_folder(folder, resume=True):
        # Read again, because another process may have gone on before this one got the lock.
        manifest = read_manifest(folder)
        start = find_start(
            folder, manifest, process_names(config.workers or 1, config.runtime == "processes")
        )
        if config.runtime == "local":
            # Results depend on the number of threads bit for bit, and the default number on the machine.
            config = dataclasses.replace(config, threads=manifest.get("threads"))
        return finish(config, inputs, folder=folder, start=start, on_event=on_event)


def find_start(
    folder: Path,
    manifest: JsonObject,
    processes: Sequence[str],
    schema: type[BaseModel] = CheckpointFile,
) -> int | None:
    """Find the newest round of which every process has an undamaged checkpoint; None to begin again.

    Newer checkpoints that are damaged cause a warning, and the resumption is noted in the manifest. `schema`
    is that of the JSON files of the checkpoints.
    """
    from graphfed.runs.checkpoint import newest_round

    start, faults = newest_round(folder, processes, schema)
    back = "the beginning" if start is None else f"round {start}"
    for fault in faults:
        say(f"warning: {fault}; going back to {back}")
    again = [*manifest.get("resumed", []), {"at": now(), "round": start}]
    write_manifest(folder, {**manifest, "resumed": again})
    return start


# ---- resume ------------------------------------------------------------------------------------------------

#: What goes on with a folder that is not one run on this machine, by a key that only its manifest has: the
#: module:function, which also reads a folder that has ended. These modules lie in higher layers, so each is
#: imported when a folder of its kind is resumed.
RESUMED_BY = {
    "reproduce": "graphfed.reproductions.reproduce:resume_reproduction",
    "rows": "graphfed.studies.compare:resume_comparison",
    "sweep": "graphfed.studies.sweep:resume_sweep",
    "policy": "graphfed.methods.fedgraph.policy.learning:resume_policy",
    "deployment": "graphfed.deployment.deploy:resume_deployment",
}


def resume(
    folder: str | Path,
    *,
    rounds: int | None = None,
    data: object = None,
    data_dir: str | Path | None = None,
    progress: bool = False,
) -> Any:
    """Go on with the run, comparison, sweep, reproduction or policy in a folder; read one that has ended.

    A run goes on from its newest undamaged checkpoint, bit for bit: its weights and metrics are those of a
    run that was never interrupted, on the same machine with the same versions.

    Args:
        folder: The folder that `graphfed run`, `compare`, `sweep`, `reproduce` or `policy` wrote.
        rounds: A larger number of rounds, to extend a finished run: the result is that of a run with so many
            rounds from the start. None for the number that was asked for.
        data: The data, if it was an object in Python.
        data_dir: The folder where the data files are now.
        progress: Whether to show progress on stderr.

    Returns:
        What the command that began it returns: `Result`, `Comparison`, `Sweep`, `Reproduction` or
        `LearnedPolicy`.

    Raises:
        InputError: The folder is none of these, is used by another program, or the data has changed; or the
            run cannot be extended.
        GraphfedError, Interrupted: As `run`.
    """
    folder = Path(folder)
    manifest = read_manifest(folder)
    for key, program in RESUMED_BY.items():
        if key in manifest:
            if rounds is not None:
                raise InputError(
                    f"{folder} holds no single run on this machine, and only such a run can be extended; "
                    "leave rounds out"
                )
            return load_object(program)(folder, manifest, data=data, data_dir=data_dir, progress=progress)
    if rounds is not None:
        _extend(folder, manifest, rounds, data, data_dir)
    elif (folder / "result.json").exists():
        return Result.read(folder)
    return _resume_run(folder, data, data_dir, progress)


def _resume_run(folder: Path, data: object, data_dir: str | Path | None, progress: bool) -> Result:
    with show_progress(folder.name, progress) as on_event:
        config, inputs = reopen(folder, data=data, data_dir=data_dir, on_stage=stages_of(on_event))
    with show_progress(f"{config.method.name} on {config.data_name}", progress) as on_event:
        return go_on(config, inputs, folder, on_event)


#: The files of a finished run that change when it is extended.
_OF_THE_END = ("result.json", "report.html", "model_card.md")


def _extend(
    folder: Path, manifest: JsonObject, rounds: object, data: object, data_dir: str | Path | None
) -> None:
    """Make a finished run one that has begun, with more rounds.

    Raises InputError if its result would not be that of a run with so many rounds from the start.
    """
    if not (folder / "result.json").exists():
        raise InputError(f"the run in {folder} has not ended; resume it first, without rounds")
    asked = {**manifest["config"], "training": {**manifest["config"]["training"], "rounds": rounds}}
    config = config_from_json(asked, folder, data=data, data_dir=data_dir, origin="")
    planned = _planned_rounds(folder, config)
    settings, method = config.settings, config.method
    fault = ""
    if config.rounds <= planned:
        fault = f"it has {planned} rounds already; give a larger number"
    elif planned % value(settings, "eval_every", 1):
        every = value(settings, "eval_every")
        fault = f"with eval_every={every} round {planned} was evaluated only because it was the last one"
    elif method.plans_rounds is not None:
        fault = method.plans_rounds(settings)
    if fault:
        raise InputError(f"the run in {folder} cannot be extended to {config.rounds} rounds: {fault}")
    with files.open_folder(folder, resume=True):
        # The manifest first: until the result is gone, the folder holds the finished run.
        write_manifest(folder, {**manifest, "config": asked})
        for name in _OF_THE_END:
            (folder / name).unlink(missing_ok=True)


def _planned_rounds(folder: Path, config: RunConfig) -> int:
    """Return the number of rounds after which a finished run has ended, as it was planned.

    Raises InputError if it ended earlier, or its last checkpoint is not there.
    """
    from graphfed.runs.checkpoint import newest_round, process_names, read_part

    names = process_names(config.workers or 1, config.runtime == "processes")
    start, _ = (None, ()) if config.runtime == "nvflare" else newest_round(folder, names)
    if start is None:
        raise InputError(
            f"the run in {folder} cannot be extended, because its checkpoint is not there or not usable; "
            "start a run with more rounds"
        )
    # The first process is the server's, which alone knows the progress.
    content, _ = read_part(folder / files.CHECKPOINTS, start, names[0], CheckpointFile)
    (progress,) = content["progress"]
    patience = value(config.settings, "patience")
    stopped = progress["diverged"] > 0 and not config.method.personal
    if stopped or start < content["planned"] or (patience is not None and progress["stale"] >= patience):
        raise InputError(
            f"the run in {folder} stopped by itself after round {start}, and more rounds would change "
            "nothing; start a run with another patience or learning rate"
        )
    return start
