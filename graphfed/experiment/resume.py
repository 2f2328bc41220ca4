"""Go on with what was interrupted: a run from its newest checkpoint, a comparison or a sweep from its first
open run, the learning of a policy from its newest episode."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from graphfed.experiment.compare import Comparison, comparison_in, resume_comparison
from graphfed.experiment.policy_learning import LearnedPolicy, resume_policy
from graphfed.experiment.progress import show_progress, stages_of
from graphfed.experiment.reopen import go_on, read_manifest, reopen
from graphfed.experiment.reproduce import Reproduction, resume_reproduction
from graphfed.experiment.run import Result
from graphfed.experiment.sweep import Sweep, resume_sweep

__all__ = ["resume"]


def resume(
    folder: str | Path, *, data: Any = None, data_dir: str | Path | None = None, progress: bool = False
) -> Result | Comparison | Sweep | Reproduction | LearnedPolicy:
    """Go on with the run, comparison, sweep, reproduction or policy in `folder`; one that has ended is read.

    A run goes on from its newest whole checkpoint with the bits it had: its weights and metrics are those of
    a run that was never interrupted, on the same machine with the same versions.
    data: needed where the data was an object in Python. data_dir: where the data files are now.

    Raises InputError for a folder of none of them, one that another program writes, and data that has
    changed; what `run` raises otherwise."""
    folder = Path(folder)
    manifest = read_manifest(folder)
    if "reproduce" in manifest:
        return resume_reproduction(folder, manifest, data_dir=data_dir, progress=progress)
    for key, go_on_with in _KINDS.items():
        if key in manifest:
            return go_on_with(folder, manifest, data=data, data_dir=data_dir, progress=progress)
    if (folder / "result.json").exists():
        return Result.read(folder)
    return _resume_run(folder, manifest, data, data_dir, progress)


def _resume_comparison(folder: Path, manifest: Mapping[str, Any], **more: Any) -> Comparison:
    if (folder / "comparison.json").exists():
        return comparison_in(folder)
    return resume_comparison(folder, manifest, **more)


#: By what only their manifests have.
_KINDS: dict[str, Callable[..., Comparison | Sweep | LearnedPolicy]] = {
    "rows": _resume_comparison,
    "sweep": resume_sweep,
    "policy": resume_policy,
}


def _resume_run(
    folder: Path, manifest: Mapping[str, Any], data: Any, data_dir: str | Path | None, progress: bool
) -> Result:
    if "deployment" in manifest:
        from graphfed.experiment.deploy import resume_deployment

        return resume_deployment(folder, progress=progress)
    with show_progress(folder.name, progress) as on_event:
        config, inputs = reopen(folder, data=data, data_dir=data_dir, on_stage=stages_of(on_event))
    with show_progress(f"{config.method.name} on {config.data_name}", progress) as on_event:
        return go_on(config, inputs, folder, on_event)
