"""A run's folder -> what it was asked and what it trained on, so that it can be resumed, used or audited."""

from pathlib import Path
from typing import Any

from graphfed.errors import InputError
from graphfed.experiment.config import RunConfig, make_config
from graphfed.experiment.folder import read_json
from graphfed.experiment.run import Inputs, load_inputs

__all__ = ["read_manifest", "reopen"]

#: What `RunConfig.to_json` holds beside the settings.
_OPTIONS = ("method", "clients", "partition", "seed", "split", "runtime", "placement", "device", "threads")


def read_manifest(folder: str | Path) -> dict[str, Any]:
    """The manifest of a run's folder; InputError when there is none, or it lacks what every manifest has."""
    path = Path(folder) / "manifest.json"
    manifest: dict[str, Any] = read_json(path)
    for key in ("config", "hashes", "seeds"):
        if not isinstance(manifest, dict) or not isinstance(manifest.get(key), dict):
            raise InputError(f"{path} is not the manifest of a run: it has no {key!r}")
    return manifest


def reopen(
    folder: str | Path, *, data: Any = None, data_dir: str | Path | None = None
) -> tuple[RunConfig, Inputs]:
    """The config of the run in `folder`, checked again, and its graph, split and partition, made again.

    data: needed where the run's data was an object in Python, which no file names. data_dir: where the data
    files are now (default: where they were).

    Raises InputError for a folder without a usable manifest, and when graph, split or partition are not those
    of the run (their hashes differ)."""
    manifest = read_manifest(folder)
    config = _config(Path(folder), manifest["config"], data, data_dir)
    inputs = load_inputs(config)
    for what, here in inputs.hashes.items():
        there = manifest["hashes"].get(what)
        if here != there:
            raise InputError(
                f"the {what} is not the one the run in {folder} had (hash {here[:12]} instead of "
                f"{str(there)[:12]}); give the same data again, or start a new run"
            )
    return config, inputs


def _config(folder: Path, asked: dict[str, Any], data: Any, data_dir: str | Path | None) -> RunConfig:
    try:
        if data is None and not asked["data_named"]:
            raise InputError(
                f"the run in {folder} had data {asked['data']!r} from an object in Python; "
                "pass it again, as in graphfed.resume(folder, data=graph)"
            )
        settings = {key: value for key, value in asked["training"].items() if key != "seed"}
        settings |= {"partition_seed": asked["partition_seed"], "split_seed": asked["split_seed"]}
        for prefix in ("partition", "data"):
            settings |= {f"{prefix}.{key}": value for key, value in asked[f"{prefix}_options"].items()}
        options = {key: asked[key] for key in _OPTIONS}
        known = asked["data_dir"] if data_dir is None else data_dir
        name = asked["data"]
    except (KeyError, TypeError, AttributeError) as error:
        raise InputError(
            f"{folder / 'manifest.json'} is damaged, or of another version of graphfed: "
            f"its config lacks {error}"
        ) from None
    return make_config(data=name if data is None else data, data_dir=known, settings=settings, **options)
