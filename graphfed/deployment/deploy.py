"""Runs a method on a deployment, from its coordinator.

The coordinator has no data. It receives what the server's part of the program has: metrics, the server's
ledger and the server's part of the model. Predictions and the ledgers of the sites stay at the sites
(`graphfed.deployment.participant`).
"""

import hashlib
import json
import secrets
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from graphfed.deployment.arguments import check_deployable, check_rule
from graphfed.deployment.folder_schema import DeployedResult, SiteManifest
from graphfed.deployment.participant import check_sets_up_again
from graphfed.errors import GraphfedError, InputError, shown
from graphfed.files import JsonObject, write_bytes, write_json
from graphfed.methods.base import Method
from graphfed.methods.parts import is_simulated
from graphfed.methods.registry import METHODS, get_method
from graphfed.plugins import Plugin, check_plugins, code_digest
from graphfed.runs import folder as files
from graphfed.runs.config import checked_training
from graphfed.runs.folder_schema import LedgerFile
from graphfed.runs.progress import show_message, show_progress
from graphfed.runs.reopen import read_manifest
from graphfed.runs.run import Result, now, peak_rss_mb, versions, write_manifest
from graphfed.runs.train import Event
from graphfed.runtime.interrupts import Interrupted, listening
from graphfed.runtime.nvflare.coordinator import Coordinator
from graphfed.runtime.nvflare.project import Project
from graphfed.runtime.nvflare.startup_kits import StartupKit, load_startup_kit
from graphfed.tasks.registry import first_task
from graphfed.tasks.run_options import RunOptions

#: Options that a deployed run does not have, because each site decides them.
AT_THE_SITES = ("data", "clients", "partition", "placement", "device", "threads", "data_dir", "workers")


def deploy(
    method: str,
    *,
    startup_kit: str | Path,
    rounds: int | None = None,
    seed: int = 0,
    split: str = "default",
    task: str | None = None,
    out: str | Path | None = None,
    checkpoint_every: float = RunOptions.checkpoint_every,
    progress: bool = False,
    settings: Mapping[str, object] | None = None,
    command: str = "graphfed.deploy",
    **more: object,
) -> Result:
    """Train a method on a deployment whose server and sites are running (`graphfed site start`).

    The folder gets what the server has: manifest.json, metrics.jsonl, ledger.json, model.safetensors (the
    server's part of a split model) and result.json. What the sites have is in runs/RUN of their startup kits;
    `details.run` of the result is the name of the run.

    Args:
        method: The name of a method that does not pool the clients' data.
        startup_kit: The folder of the coordinator's startup kit (`graphfed site provision`).
        rounds, seed, split, task, out, checkpoint_every, progress, settings, command: As in `graphfed.run`.
        more: Settings by name, as in lr=0.1.

    Returns:
        The result, whose metrics are those of all sites together.

    Raises:
        InputError: The coordinator, the server or a site cannot use an option, a setting or its data.
        GraphfedError: The server or a site was away for longer than the patience of the project.
        Interrupted: SIGINT or SIGTERM came. `graphfed.resume` continues from what was saved.
    """
    # A choice that is silently ignored would be reported as made.
    for option in AT_THE_SITES:
        if option in more:
            raise InputError(
                f"{option} cannot be used in a deployment: the operator of each site gives its data and "
                "machine to 'graphfed site start'; leave it out"
            )
    given = {**(settings or {}), **more}
    if method is not None and "protocols" in get_method(method).tree.names:
        given = {"protocols": "real", **given}  # participants are real, so simulated protocols hide nothing
    chosen, config, split_seed = checked_training(method, given, rounds, seed, task)
    check_rule(chosen, chosen.tree.listed(config))
    check_deployable(chosen, config, split)
    loaded = load_startup_kit(Path(startup_kit))
    folder = files.chosen_folder(out, f"{chosen.name}-{loaded.project.name}")
    assert folder is not None
    begun = True  # the sites may have saved something, unless they refused the run
    with files.open_folder(folder, keep=lambda path: begun and (path / "manifest.json").exists()):
        asked = {
            # It must be new at every site, because it is the name of the run's folder there.
            "run": _unique(chosen.name),
            "startup_kit": str(loaded.folder),
            "split": split,
            "split_seed": split_seed,
            "checkpoint_every": checkpoint_every,
        }
        write_manifest(folder, _manifest(chosen, config, loaded, asked, command))
        try:
            return _run_to_end(folder, chosen, config, loaded, asked, progress)
        except InputError:
            # Nothing was computed, so the folder is not worth keeping.
            begun = False
            raise


def resume_deployment(
    folder: Path, manifest: JsonObject, *, progress: bool = False, **_unused: object
) -> Result:
    """Continue a deployed run from the checkpoints of its server and sites; read it if it has ended.

    Raises:
        InputError: The manifest is damaged, or the startup kit is missing.
        GraphfedError: The server or a site was away for longer than the patience of the project.
        Interrupted: SIGINT or SIGTERM came.
    """
    if (folder / "result.json").exists():
        return Result.read(folder)
    asked, method, config, startup_kit = _asked(folder, manifest)
    with files.open_folder(folder, resume=True):
        write_manifest(folder, {**manifest, "resumed": [*manifest.get("resumed", []), {"at": now()}]})
        return _run_to_end(folder, method, config, startup_kit, asked, progress)


def predict_at_sites(folder: Path, *, progress: bool = False) -> str:
    """Predict with the model of a deployed run, at all sites together, for the present data of the sites.
    Return the path of each site's predictions in its startup kit.

    Raises:
        InputError: The run has not ended, a site cannot use its data, or the method would release noised
            values a second time.
        GraphfedError: The server or a site was away for longer than the patience of the project.
    """
    manifest = read_manifest(folder)
    if not (folder / "result.json").exists():
        raise InputError(f"the run in {folder} has not ended; continue it with: graphfed resume {folder}")
    asked, method, config, startup_kit = _asked(folder, manifest)
    check_sets_up_again(method, str(asked["run"]))
    wanted, label = _request_of(startup_kit.project, method, config, asked)
    stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime())
    wanted |= {"program": "predict", "arguments": {**wanted["arguments"], "stamp": stamp}}
    with tempfile.TemporaryDirectory(prefix="graphfed-") as results, Coordinator(startup_kit) as coordinator:
        outcomes = coordinator.run(
            [wanted],
            on_message=lambda text: show_message(f"{label}: {text}", progress),
            results=Path(results),
        )
    check_outcome(outcomes)
    return f"runs/{asked['run']}/predictions-{stamp}.parquet"


def _asked(folder: Path, manifest: JsonObject) -> tuple[JsonObject, Method, Any, StartupKit]:
    """Read what was asked of a deployed run, and its startup kit; InputError if either is damaged."""
    asked, config = manifest["deployment"], manifest["config"]
    check_plugins(config.get("plugins", ()), folder)
    method = get_method(config["method"])
    try:
        return (
            asked,
            method,
            method.configure(config["training"]),
            load_startup_kit(Path(asked["startup_kit"])),
        )
    except (TypeError, ValueError) as error:
        raise InputError(f"{folder / 'manifest.json'} is damaged: {error}") from None


def _request_of(project: Project, method: Method, config: Any, asked: JsonObject) -> tuple[JsonObject, str]:
    """Return the request of the run of a folder, and what its progress messages call it."""
    options = {key: asked[key] for key in ("run", "split", "split_seed", "checkpoint_every")}
    return request(project, method, config, **options), f"{method.name} on {project.name}"


def request(
    project: Project,
    method: Method,
    config: Any,
    *,
    run: str,
    checkpoint_every: float,
    split: str = "default",
    split_seed: int = 0,
    rehearsal: bool = False,
) -> JsonObject:
    """Describe a run in plain values, as `Coordinator.run` takes it.

    `run` is a name that no earlier run of the deployment has, and `checkpoint_every` are the seconds between
    checkpoints, 0 for every round. In a `rehearsal` every participant also saves its part of the outcome for
    the caller, who has partitioned the data.
    """
    arguments = {
        "run": run,
        "method": method.name,
        "plugin": _named(METHODS.plugin(method.name), METHODS.module(method.name)),
        "config": method.tree.listed(config),
        "dtype": str(torch.get_default_dtype()).removeprefix("torch."),
        "split": split,
        "split_seed": split_seed,
        "sites": [site.name for site in project.sites],
        "roster": project.roster,
        "checkpoint_every": checkpoint_every,
        "wait": project.timing.give_up,
        "rehearsal": rehearsal,
    }
    workers = [list(worker) for worker in project.workers]
    simulated = is_simulated(config)  # only in a rehearsal
    return {
        "run": run,
        "program": "train",
        "arguments": arguments,
        "workers": workers,
        "simulated": simulated,
    }


def _named(plugin: Plugin | None, module: str) -> dict[str, str] | None:
    """Return how sites recognise the plug-in of a method: name, version and digest; code is never sent."""
    if plugin is None:
        return None
    return {
        "module" if plugin.given else "distribution": plugin.name,
        "version": plugin.version,
        "sha256": code_digest(module),
    }


def check_outcome(outcomes: Sequence[JsonObject]) -> JsonObject:
    """Return the outcome of the last run of a request, or raise the error with which it ended."""
    if not outcomes:
        raise Interrupted("stopped before the run began")
    outcome = outcomes[-1]
    match outcome["kind"]:
        case "done":
            return outcome
        case "input":
            raise InputError(outcome["text"])
        case "interrupted":
            raise Interrupted(outcome["text"])
    raise GraphfedError(outcome["text"])


def _run_to_end(
    folder: Path,
    method: Method,
    config: Any,
    startup_kit: StartupKit,
    asked: JsonObject,
    progress: bool,
) -> Result:
    wanted, label = _request_of(startup_kit.project, method, config, asked)
    with (
        tempfile.TemporaryDirectory(prefix="graphfed-") as results,
        Coordinator(startup_kit) as coordinator,
        listening() as stop_request,
        show_progress(label, progress) as show,
    ):

        def on_event(_: str, event: JsonObject) -> None:
            if show is not None:
                show(Event(**event))

        outcomes = coordinator.run(
            [wanted],
            on_event=on_event,
            on_message=lambda text: show_message(f"{label}: {text}", progress),
            stop_request=stop_request,
            results=Path(results),
        )
        verified = check_outcome(outcomes)["verified"]
        return _write(folder, Path(results) / asked["run"], method, config, startup_kit, asked, verified)


def _write(
    folder: Path,
    served: Path,
    method: Method,
    config: Any,
    startup_kit: StartupKit,
    asked: JsonObject,
    verified: JsonObject,
) -> Result:
    """Write the files of the coordinator from those of the server in `served`, the result last."""
    server_result = files.read_json(served / "result.json", DeployedResult)
    ledger = files.read_json(served / "ledger.json", LedgerFile)
    joined = files.read_json(served / "manifest.json", SiteManifest)["joined"]
    manifest = read_manifest(folder)
    try:
        # All schemas have the same facts, which the sites have compared.
        manifest["data"] |= first_task(method).data.facts(joined[startup_kit.project.sites[0].name]["schema"])
        # Each site keys the digest of its data with a secret of its own.
        digest = _digest({name: site["data"] for name, site in joined.items()})
    except (KeyError, TypeError, ValueError) as error:
        raise GraphfedError(
            f"the server's manifest of the run does not describe the data of every site "
            f"({type(error).__name__}: {shown(str(error))}); its files are in {served}"
        ) from None
    manifest["hashes"] = {"data": digest, "split": digest, "partition": digest}
    result = Result(
        method=method.name,
        dataset=startup_kit.project.name,
        task=method.tasks[0],
        clients=len(startup_kit.project.roster),
        partition="sites",
        rounds=server_result["rounds"],
        best_round=server_result["best_round"],
        seed=config.run.seed,
        runtime="nvflare",
        val=server_result["val"],
        test=server_result["test"],
        seconds=server_result["seconds"],
        bytes=server_result["bytes"],
        privacy=server_result["privacy"],
        peak_rss_mb=peak_rss_mb(),
        hashes=manifest["hashes"],
        versions=versions([METHODS.plugin(method.name)]),
        details={
            **server_result["details"],
            "run": asked["run"],
            "verified": verified,
            "changed_settings": {},
            "test_confusion": server_result["test_confusion"],
            "wire": server_result["wire"],
        },
        folder=folder,
    )
    with files.writing_into(folder):
        for name in ("metrics.jsonl", "model.safetensors"):
            write_bytes(folder / name, (served / name).read_bytes())
        write_json(folder / "ledger.json", ledger)
        write_manifest(folder, manifest)
        write_json(folder / "result.json", result.to_json())
    return result


def _manifest(
    method: Method, config: Any, startup_kit: StartupKit, asked: JsonObject, command: str
) -> JsonObject:
    """Return the manifest of a run, with None for what only the sites know."""
    project, plugin = startup_kit.project, METHODS.plugin(method.name)
    unknown = ("nodes", "edges", "features", "classes", "edge_weights", "directed")
    return {
        "command": command,
        "started": now(),
        "deployment": dict(asked),
        "config": {
            "method": method.name,
            "runtime": "nvflare",
            "seed": config.run.seed,
            "training": method.tree.listed(config),
            **({} if plugin is None else {"plugins": [plugin.to_json()]}),
        },
        "seeds": {"run": config.run.seed, "partition": None, "split": asked["split_seed"]},
        "data": {
            "name": project.name,
            **dict.fromkeys(unknown),
            "class_names": [],
            "feature_names": [],
            "edge_features": [],
            "split": asked["split"],
        },
        "partition": {
            "name": "sites",
            "options": {},
            "seed": None,
            "file": None,
            "sites": len(project.roster),
            "client_names": project.roster,
        },
        "hashes": {},
        "versions": versions([plugin]),
        "device": "each site's own",
        "threads": "each site's own",
        "placement": None,
    }


def _digest(content: JsonObject) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _unique(label: str) -> str:
    return f"{label}-{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}-{secrets.token_hex(3)}"
