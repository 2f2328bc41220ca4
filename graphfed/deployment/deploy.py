"""A run of a deployment, seen from its coordinator: what it asks of the places, and what it gets.

The coordinator has no data. It gets what the server's part of the program has: metrics, the server's ledger
and its part of the model. Predictions, and the sites' own ledgers, stay at the sites (`deployed`)."""

import dataclasses
import hashlib
import json
import secrets
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import get_args

import torch

from graphfed.deployment.folder_schema import DeployedResult, SiteManifest
from graphfed.deployment.participant import check_sets_up_again
from graphfed.errors import GraphfedError, InputError, shown
from graphfed.files import JsonObject, write_bytes, write_json
from graphfed.methods.base import Method
from graphfed.methods.common.released import NoiseSettings
from graphfed.methods.config import CommonSettings, ProtocolSettings
from graphfed.methods.registry import METHODS, get_method
from graphfed.plugins import Plugin, check_plugins
from graphfed.runs import folder as files
from graphfed.runs.config import checked_training
from graphfed.runs.folder_schema import LedgerFile
from graphfed.runs.progress import show_message, show_progress
from graphfed.runs.reopen import read_manifest
from graphfed.runs.run import Result, now, peak_rss_mb, versions, write_manifest
from graphfed.runs.train import Event
from graphfed.runtime.interrupts import Interrupted, StopRequest, listening
from graphfed.runtime.nvflare.coordinator import Coordinator
from graphfed.runtime.nvflare.project import Project
from graphfed.runtime.nvflare.startup_kits import StartupKit, load_startup_kit
from graphfed.tasks.registry import first_task, get_task
from graphfed.tasks.run_options import RunOptions

__all__ = ["check_outcome", "deploy", "predict_at_sites", "request", "resume_deployment"]

#: What the sites' own data decides; a run that is deployed has no such option.
AT_THE_SITES = ("data", "clients", "partition", "placement", "device", "threads", "data_dir", "sites")


def deploy(
    method: str,
    *,
    startup_kit: str | Path,
    rounds: int | None = None,
    seed: int = 0,
    split: str = "default",
    out: str | Path | None = None,
    checkpoint_every: float = RunOptions.checkpoint_every,
    progress: bool = False,
    settings: Mapping[str, object] | None = None,
    command: str = "graphfed.deploy",
    **more: object,
) -> Result:
    """Train `method` at all places of a deployment, whose server and sites run (`graphfed site start`).

    kit: the coordinator's; the other arguments are those of `graphfed.run`. The folder gets what the server
    has: manifest.json, metrics.jsonl, ledger.json, model.safetensors (of a split model the server's part) and
    result.json. What the sites keep is in runs/RUN of their kits; details.run of the result says which.

    Raises InputError for what cannot be used, at whatever place; GraphfedError where a site or the server
    stays away for longer than the project's patience; Interrupted when SIGINT or SIGTERM came: `resume` goes
    on with what is saved."""
    if split.partition(":")[0].lower() == "inductive":
        raise InputError(
            f"split {shown(split)} sorts all sensors by longitude, which no place of a deployment can; use "
            "one in time, as 'time:0.7,0.1,0.2'"
        )
    asked = more.pop("task", None)
    if asked is not None and get_task(asked).only_simulated:
        raise InputError(
            f"{get_task(asked).only_simulated}; use the runtime 'local' or 'processes', or leave the task out"
        )
    for option in AT_THE_SITES:
        if option in more:
            raise InputError(
                f"{option} has no use in a deployment: each site has its own data and machine, as its "
                "'graphfed site start' says; leave it out"
            )
    given = {**(settings or {}), **more}
    if method is not None and issubclass(get_method(method).config, ProtocolSettings):
        given = {"protocols": "real", **given}  # parties are real, whatever the method's default
    chosen, config, split_seed = checked_training(method, given, rounds, seed)
    if chosen.pooled:
        raise InputError(f"{chosen.name} needs all data at one party; choose another method for a deployment")
    for field in dataclasses.fields(config):
        if getattr(config, field.name) == "simulated":
            others = [choice for choice in get_args(field.type) if choice != "simulated"]
            raise InputError(
                f"{field.name}=simulated hides nothing from real parties; choose {' or '.join(others)}, as "
                f"in --set {field.name}={others[0]}"
            )
    if isinstance(config, NoiseSettings) and config.noise_seed is not None:
        raise InputError(
            "noise_seed hides nothing from real parties: whoever knows it takes the noise off; leave it out, "
            "and the noise comes from each machine's entropy"
        )
    loaded = load_startup_kit(Path(startup_kit))
    folder = files.chosen_folder(out, f"{chosen.name}-{loaded.project.name}")
    assert folder is not None
    begun = True  # the places may have something of it, unless they refused it
    with files.open_folder(folder, keep=lambda path: begun and (path / "manifest.json").exists()):
        asked = {
            "run": _unique(chosen.name),
            "startup_kit": str(loaded.folder),
            "split": split,
            "split_seed": split_seed,
            "checkpoint_every": checkpoint_every,
        }
        write_manifest(folder, _manifest(chosen, config, loaded, asked, command))
        try:
            return _see_through(folder, chosen, config, loaded, asked, progress)
        except InputError:
            begun = False
            raise


def resume_deployment(
    folder: Path, manifest: JsonObject, *, progress: bool = False, **_unused: object
) -> Result:
    """Go on with a deployed run from the places' checkpoints; one that has ended is read. Its data is at the
    sites, so nothing that says where data is has a use here."""
    if (folder / "result.json").exists():
        return Result.read(folder)
    asked, method, config, startup_kit = _asked(folder, manifest)
    with files.open_folder(folder, resume=True):
        write_manifest(folder, {**manifest, "resumed": [*manifest.get("resumed", []), {"at": now()}]})
        return _see_through(folder, method, config, startup_kit, asked, progress)


def predict_at_sites(folder: Path, *, progress: bool = False) -> str:
    """Predict with the model of the deployed run in `folder`, all places together, on what the sites' data is
    now. Each site keeps its predictions: the path of the file in its kit.

    Raises what `deploy` raises; InputError also for a method that would release noised values again."""
    manifest = read_manifest(folder)
    if not (folder / "result.json").exists():
        raise InputError(f"{folder} holds no finished run; go on with it: graphfed resume {folder}")
    asked, method, config, startup_kit = _asked(folder, manifest)
    check_sets_up_again(method, str(asked["run"]))
    options = {key: asked[key] for key in ("run", "split", "split_seed", "checkpoint_every")}
    wanted = request(startup_kit.project, method, config, **options)
    stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime())
    wanted |= {"program": "predict", "arguments": {**wanted["arguments"], "stamp": stamp}}
    with tempfile.TemporaryDirectory(prefix="graphfed-") as kept, Coordinator(startup_kit) as coordinator:
        outcomes = coordinator.run(
            [wanted],
            on_event=lambda run, event: None,
            on_message=lambda news: show_message(
                f"{method.name} on {startup_kit.project.name}: {news}", progress
            ),
            stop_request=StopRequest(),
            kept=Path(kept),
        )
    check_outcome(outcomes)
    return f"runs/{asked['run']}/predictions-{stamp}.parquet"


def _asked(folder: Path, manifest: JsonObject) -> tuple[JsonObject, Method, CommonSettings, StartupKit]:
    """What a deployed run was asked; InputError for a damaged manifest, and a kit that is gone."""
    asked, config = manifest["deployment"], manifest["config"]
    check_plugins(config.get("plugins", ()), folder)
    method = get_method(config["method"])
    try:
        return (
            asked,
            method,
            method.config(**config["training"]),
            load_startup_kit(Path(asked["startup_kit"])),
        )
    except (TypeError, ValueError) as error:
        raise InputError(f"{folder / 'manifest.json'} is damaged: {error}") from None


def request(
    project: Project,
    method: Method,
    config: CommonSettings,
    *,
    run: str,
    checkpoint_every: float,
    split: str = "default",
    split_seed: int = 0,
    trial: bool = False,
) -> JsonObject:
    """One run as `Coordinator.run` takes it."""
    arguments = {
        "run": run,
        "method": method.name,
        "plugin": _named(METHODS.plugin(method.name)),
        "config": dataclasses.asdict(config),
        "dtype": str(torch.get_default_dtype()).removeprefix("torch."),
        "split": split,
        "split_seed": split_seed,
        "sites": [site.name for site in project.sites],
        "roster": project.roster,
        "checkpoint_every": checkpoint_every,
        "wait": project.timing.give_up,
        "trial": trial,
    }
    workers = [list(worker) for worker in project.workers]
    simulated = config.simulated  # only in a rehearsal
    return {
        "run": run,
        "program": "train",
        "arguments": arguments,
        "workers": workers,
        "simulated": simulated,
    }


def _named(plugin: Plugin | None) -> dict[str, str] | None:
    """What the places need to know of the plug-in of a method: no path, and no code, which never travels."""
    if plugin is None:
        return None
    return {"module" if plugin.given else "distribution": plugin.name, "version": plugin.version}


def check_outcome(outcomes: Sequence[JsonObject]) -> None:
    """Raises what a run ended with, where it did not end well."""
    if not outcomes:
        raise Interrupted("stopped before the run had begun")
    outcome = outcomes[-1]
    match outcome["kind"]:
        case "input":
            raise InputError(outcome["text"])
        case "interrupted":
            raise Interrupted(outcome["text"])
        case "failed" | "lost":
            raise GraphfedError(outcome["text"])


def _see_through(
    folder: Path,
    method: Method,
    config: CommonSettings,
    startup_kit: StartupKit,
    asked: JsonObject,
    progress: bool,
) -> Result:
    """Run it at all places, and write what the server has of it."""
    options = {key: asked[key] for key in ("run", "split", "split_seed", "checkpoint_every")}
    wanted = request(startup_kit.project, method, config, **options)
    label = f"{method.name} on {startup_kit.project.name}"
    with (
        tempfile.TemporaryDirectory(prefix="graphfed-") as kept,
        Coordinator(startup_kit) as coordinator,
        listening() as stop_request,
        show_progress(label, progress) as show,
    ):

        def on_event(_: str, event: JsonObject) -> None:
            if show is not None:
                show(Event(**event))

        def on_message(news: str) -> None:
            show_message(f"{label}: {news}", progress)

        outcomes = coordinator.run(
            [wanted], on_event=on_event, on_message=on_message, stop_request=stop_request, kept=Path(kept)
        )
        check_outcome(outcomes)
        return _write(folder, Path(kept) / asked["run"], method, config, startup_kit, asked)


def _write(
    folder: Path,
    served: Path,
    method: Method,
    config: CommonSettings,
    startup_kit: StartupKit,
    asked: JsonObject,
) -> Result:
    """The coordinator's files, from the server's (`deployed`), the result last."""
    told = files.read_json(served / "result.json", DeployedResult)
    ledger = files.read_json(served / "ledger.json", LedgerFile)
    joined = files.read_json(served / "manifest.json", SiteManifest)["joined"]
    manifest = read_manifest(folder)
    try:
        manifest["data"] |= first_task(method).data.participants.facts(
            joined[startup_kit.project.sites[0].name]["schema"]
        )
        # What each site says its data's digest is; another secret at each site keys it.
        digest = _digest({name: site["data"] for name, site in joined.items()})
    except (KeyError, TypeError, ValueError) as error:
        raise GraphfedError(
            f"the server's record of the run does not say what data each site has ({type(error).__name__}: "
            f"{shown(str(error))}); its files are in {served}"
        ) from None
    manifest["hashes"] = {"data": digest, "split": digest, "partition": digest}
    result = Result(
        method=method.name,
        dataset=startup_kit.project.name,
        task=method.tasks[0],
        clients=len(startup_kit.project.roster),
        partition="sites",
        rounds=told["rounds"],
        best_round=told["best_round"],
        seed=config.seed,
        runtime="nvflare",
        val=told["val"],
        test=told["test"],
        seconds=told["seconds"],
        bytes=told["bytes"],
        privacy=told["privacy"],
        peak_rss_mb=peak_rss_mb(),
        hashes=manifest["hashes"],
        versions=versions([METHODS.plugin(method.name)]),
        details={
            **told["details"],
            "run": asked["run"],
            "changed_settings": {},
            "test_confusion": told["test_confusion"],
            "wire": told["wire"],
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
    method: Method, config: CommonSettings, startup_kit: StartupKit, asked: JsonObject, command: str
) -> JsonObject:
    """As of any run, where the coordinator can know it."""
    project, plugin = startup_kit.project, METHODS.plugin(method.name)
    unknown = ("nodes", "edges", "features", "classes", "edge_weights")
    return {
        "command": command,
        "started": now(),
        "deployment": dict(asked),
        "config": {
            "method": method.name,
            "runtime": "nvflare",
            "seed": config.seed,
            "training": dataclasses.asdict(config),
            **({} if plugin is None else {"plugins": [plugin.to_json()]}),
        },
        "seeds": {"run": config.seed, "partition": None, "split": asked["split_seed"]},
        "data": {
            "name": project.name,
            **dict.fromkeys(unknown),
            "class_names": [],
            "feature_names": [],
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
    """A name for a run that no run had before."""
    return f"{label}-{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}-{secrets.token_hex(3)}"
