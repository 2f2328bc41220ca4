"""Go on with what was interrupted: a run from its newest checkpoint, a comparison or a sweep from its first
open run, the learning of a policy from its newest episode."""

from pathlib import Path
from typing import Any

from graphfed.loading import load_object
from graphfed.runs.progress import show_progress, stages_of
from graphfed.runs.reopen import go_on, read_manifest, reopen
from graphfed.runs.run import Result

__all__ = ["RESUMED_BY", "resume"]

#: What goes on with a folder that is not one run on this machine, by a key that only its manifest has: the
#: module:function, which also reads a folder that has ended. These modules lie in higher layers, so each is
#: imported when a folder of its kind is resumed.
RESUMED_BY = {
    "reproduce": "graphfed.reproductions.reproduce:resume_reproduction",
    "rows": "graphfed.studies.compare:resume_comparison",
    "sweep": "graphfed.studies.sweep:resume_sweep",
    "policy": "graphfed.studies.policy_learning:resume_policy",
    "deployment": "graphfed.deployment.deploy:resume_deployment",
}


def resume(
    folder: str | Path, *, data: object = None, data_dir: str | Path | None = None, progress: bool = False
) -> Any:
    """Go on with the run, comparison, sweep, reproduction or policy in `folder`; one that has ended is read.

    A run goes on from its newest whole checkpoint with the bits it had: its weights and metrics are those of
    a run that was never interrupted, on the same machine with the same versions.

    Args:
        folder: The folder that `graphfed run`, `compare`, `sweep`, `reproduce` or `policy learn` wrote.
        data: The data, where it was an object in Python.
        data_dir: Where the data files are now.
        progress: Whether to show progress on stderr.

    Returns:
        What the command that began it returns: `Result`, `Comparison`, `Sweep`, `Reproduction` or
        `LearnedPolicy`.

    Raises:
        InputError: The folder is none of them, or another program's, or the data has changed; and what `run`
            raises otherwise.
    """
    folder = Path(folder)
    manifest = read_manifest(folder)
    for key, program in RESUMED_BY.items():
        if key in manifest:
            return load_object(program)(folder, manifest, data=data, data_dir=data_dir, progress=progress)
    if (folder / "result.json").exists():
        return Result.read(folder)
    return _resume_run(folder, data, data_dir, progress)


def _resume_run(folder: Path, data: object, data_dir: str | Path | None, progress: bool) -> Result:
    with show_progress(folder.name, progress) as on_event:
        config, inputs = reopen(folder, data=data, data_dir=data_dir, on_stage=stages_of(on_event))
    with show_progress(f"{config.method.name} on {config.data_name}", progress) as on_event:
        return go_on(config, inputs, folder, on_event)
