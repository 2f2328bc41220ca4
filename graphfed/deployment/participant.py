"""The programs of a deployment: every place joins, reads its own data, trains its part, or predicts with it,
and keeps what is its own.

Joining comes before anything else crosses: every site says which versions it has, how its data is formed and
from which rounds it can go on, and the server refuses the run where these do not go together.

    runs/RUN/   in each place's kit
      manifest.json       what was asked, versions, the form of the data
      checkpoint/         this place's part of the latest rounds
      ledger.json         what left this place and what reached it
      model.safetensors   this place's part of the model
      predictions.parquet at a site: of its own nodes; predictions-TIME.parquet: of a later prediction
      metrics.jsonl       at the server: a line a round
      result.json         what became of the run, written last
"""

import dataclasses
import hashlib
import hmac
import json
import platform
import re
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch
from pydantic import ValidationError

from graphfed import __version__
from graphfed.deployment.folder_schema import SiteReport
from graphfed.errors import InputError, shown
from graphfed.federation import CLIENTS, SERVER, Federation, Located, wire
from graphfed.federation.series import TaskData
from graphfed.files import JsonObject, read_tensors, write_bytes, write_json
from graphfed.methods.base import Method, Task
from graphfed.methods.common.entity_alignment import AlignmentSettings, count_owners
from graphfed.methods.common.feature_scaling import scale_features
from graphfed.methods.common.local_training import as_configured
from graphfed.methods.config import CommonSettings
from graphfed.methods.registry import METHODS, get_method
from graphfed.plugins import load_plugin
from graphfed.runs import folder as files
from graphfed.runs.checkpoint import Checkpoints, whole_rounds
from graphfed.runs.predict import with_weights
from graphfed.runs.processes import part_of_run
from graphfed.runs.run import diagnosed, model_arrays
from graphfed.runs.settings import has_value
from graphfed.runs.train import Event, train
from graphfed.runtime.interrupts import StopRequest
from graphfed.tasks.base import OwnData
from graphfed.tasks.evaluation import Predicted
from graphfed.tasks.inputs import WorkerPart
from graphfed.tasks.outcome import Outcome
from graphfed.tasks.registry import first_task, get_task
from graphfed.terminal import say

if TYPE_CHECKING:
    import pyarrow as pa

    from graphfed.runtime.nvflare.place import Place

__all__ = ["MESSAGES", "TRIAL", "check_sets_up_again", "predict_place", "run_place"]

#: The transfers of joining, in words (see `Sent.messages`).
MESSAGES = {
    "join": "What a site says before a run begins: versions of its programs, how many clients it holds, "
    "names of its columns of features and of its classes (in forecasting how many readings there are, when "
    "they were made and which are trained on), how its clock differs, which rounds it can go on "
    "from, and a digest of its data under a secret of its own, by which the server can tell only that the "
    "data has changed. Where the run tells the server how many training, validation or test nodes a site "
    "has, the site declares them here first: no later count may be larger. No data. The server reads it and "
    "tells the coordinator.",
    "agreed": "What all places then agree on: how many features and classes there are, and the round to go "
    "on from.",
}

#: What all participants agree on, from what each site says of its data (`ParticipantFiles.agree`).
Agree: TypeAlias = Callable[[Mapping[str, JsonObject], Any], JsonObject]
#: Seconds that a site's clock may differ from the server's.
CLOCK = 60.0
#: What a place of a trial hands to the experimenter, who dealt it its data.
TRIAL = "trial.part"


@dataclasses.dataclass(frozen=True)
class _Part:
    """What one place brings to a run. site, part: its own data, as it was read and as its host trains on it,
    None at the server; data: as `train` takes it."""

    method: Method
    config: CommonSettings
    folder: Path
    task: Task
    site: OwnData | None
    part: "WorkerPart | None"
    data: TaskData
    agreed: JsonObject


def run_place(
    fed: Federation, arguments: JsonObject, log: Callable[[JsonObject], None], place: "Place"
) -> None:
    """This place's part of training. arguments: plain JSON, from the coordinator: run, method, plugin (of
    the method, None for graphfed's own), config, dtype, split, split_seed, sites, roster (the clients'
    names), checkpoint_every, wait (seconds for an earlier attempt's process to leave the folder), trial.

    InputError where this place cannot take part, said in words that tell nothing of its data; Interrupted
    after saving, when somebody asked to stop."""
    here = fed.server_is_here

    def on_event(event: Event) -> None:
        log(dataclasses.asdict(event))

    with _taking_part(fed, arguments, place) as part:
        checkpoints = Checkpoints(
            part.folder,
            every=float(arguments["checkpoint_every"]),
            start=part.agreed["start"],
            stop_request=place.stop_request if here else StopRequest(),
        )
        outcome = train(
            fed,
            part.method,
            part.data,
            part.task,
            part.config,
            on_event=on_event if here else None,
            checkpoints=checkpoints,
        )
        _write(part, fed, outcome)
        if arguments["trial"] and part.agreed["owners_known"]:
            write_bytes(part.folder / TRIAL, wire.encode(part_of_run(fed, part.method, outcome)))


def predict_place(
    fed: Federation, arguments: JsonObject, log: Callable[[JsonObject], None], place: "Place"
) -> None:
    """This place's part of predicting with a run's model, every part of which stays where it is: the sites'
    present data, set up as for training, and a file of predictions at each site. arguments: as for training,
    and `stamp`, which the files' names end with.

    InputError also where this place has no finished run of that name, and for a method that would release
    noised values a second time."""
    check_sets_up_again(_accepted(arguments, place)[0], str(arguments["run"]))
    with _taking_part(fed, arguments, place) as part:
        if not (part.folder / "result.json").exists():
            raise InputError(f"{place.name} has no finished run {arguments['run']!r}; train it first")
        arrays, _ = read_tensors(part.folder / "model.safetensors")
        with fed.phase("setup", round_number=0):
            data, _ = scale_features(fed, part.data, part.method, part.config, part.task)
            fresh = part.method.setup(fed, data, part.task, part.config)
        with fed.phase("predict"):
            state = with_weights(fed, fresh, arrays, part.method)
            logits = part.method.predict(fed, state, part.config, "all")
            evaluation = get_task(part.task.name).evaluation
            predictions = fed.clients.run(evaluation.keep, evaluation.at_clients(part.data), logits)
        stamp = str(arguments["stamp"])
        if not re.fullmatch(r"[0-9-]{1,40}", stamp):
            raise InputError(f"the stamp {shown(stamp)} is no time")
        if part.site is not None:
            tables = _tables(part, fed.local_parts(predictions))
            files.write_predictions(part.folder / f"predictions-{stamp}.parquet", tables)
        write_json(part.folder / f"ledger-{stamp}.json", files.plain(fed.ledger.to_json()))


def check_sets_up_again(method: Method, run: str) -> None:
    """InputError where setting a method up once more would spend its privacy budget once more."""
    if method.restore is not None:
        raise InputError(
            f"{method.name} released noised values when {run!r} was trained, and predicting anew would "
            f"release more; each site has its predictions in runs/{run}/predictions.parquet of its kit"
        )


@contextmanager
def _taking_part(fed: Federation, arguments: JsonObject, place: "Place") -> Iterator[_Part]:
    """Join: what this place is asked, its own data, and what all places agree on."""
    torch.set_default_dtype(getattr(torch, _one_of(arguments, "dtype", ("float32", "float64"))))
    method, config = _accepted(arguments, place)
    kind, site, of_server = first_task(method).data.participants, None, None
    if fed.here:
        file = _own_file(place)
        with _kept_private(place):
            site = kind.read(arguments, file, place.name)
    elif kind.read_server is not None:
        file = _own_file(place)
        with _kept_private(place):
            of_server = kind.read_server(arguments, file)
    folder = place.runs / arguments["run"]
    with _opened(folder, float(arguments["wait"])):
        told = None if site is None else _joining(site, method, config, place, whole_rounds(folder, fed))
        agreed, reports = _join(fed, told, folder, arguments, config, kind.agree, of_server)
        task = kind.task(agreed)
        if of_server is not None and kind.server_part is not None:
            of_server = kind.server_part(of_server, agreed)
        if not (folder / "result.json").exists():
            _write_manifest(folder, arguments, site, agreed, reports)
        mine = None
        if site is not None:
            mine = as_configured(kind.part(site, fed.workers[fed.here[0]], task, fed.device), config)
        data = get_task(task.name).data.located(fed, *(([], [of_server]) if site is None else ([mine], [])))
        if not agreed["owners_known"] and isinstance(config, AlignmentSettings):
            assert isinstance(data, Located)
            with fed.phase("setup", round_number=0):
                data = count_owners(fed, data, config)
        yield _Part(method, config, folder, task, site, mine, data, agreed)


# ---- what is asked -----------------------------------------------------------------------------------------


def _one_of(arguments: JsonObject, key: str, known: Sequence[str]) -> str:
    value = arguments[key]
    if value not in known:
        raise InputError(f"{key} {shown(value)} cannot be used; expected {' or '.join(known)}")
    return str(value)


def _accepted(arguments: JsonObject, place: "Place") -> tuple[Method, CommonSettings]:
    """The method and its settings; InputError where this place's operator does not want to take part in such
    a run."""
    name = str(arguments["method"])
    if name not in METHODS.own:
        _check_plugin(name, arguments["plugin"] or {}, place)
    method = get_method(name)
    if place.methods and method.name not in place.methods:
        raise InputError(
            f"{place.name} takes part in no run of {shown(method.name)}, only of {', '.join(place.methods)}; "
            "so its operator has said"
        )
    config = method.config(**arguments["config"])
    for unwanted in place.forbid:
        key, _, value = unwanted.partition("=")
        if has_value(config, key, value):
            raise InputError(
                f"{place.name} takes part in no run with {key}={value}; so its operator has said: choose "
                "another value"
            )
    return method, config


def _check_plugin(name: str, asked: JsonObject, place: "Place") -> None:
    """Check that a method that graphfed lacks is here, and that this place's operator allows it.

    The message says which plug-in the coordinator has; what runs is this place's own. Nothing of a plug-in is
    imported before its operator allows it.

    Raises:
        InputError: One of these is not so; the message says what the operator can do.
    """
    module = str(asked.get("module", ""))
    if module and module in place.allow:
        load_plugin(module)
    here, inside = METHODS.plugin(name), METHODS.module(name)
    if here is not None:
        allowed = any(f"{inside}.".startswith(f"{each}.") for each in place.allow)
        if name in place.methods or allowed:
            return
        raise InputError(
            f"{place.name} does not run the method {name!r} of {here}; its operator allows it with 'graphfed "
            f"site start ... --methods {name}', or the whole plug-in with --allow {inside.partition('.')[0]}"
        )
    if module and module not in place.allow:
        raise InputError(
            f"{place.name} does not run methods of {shown(module)}; its operator allows it with "
            f"'graphfed site start ... --allow {module[:100]}'"
        )
    plugin = f"{module or asked.get('distribution')} {asked.get('version')}"
    raise InputError(
        f"{place.name} has no method {shown(name)}; its operator installs the plug-in {shown(plugin)} and "
        f"allows it with 'graphfed site start ... --methods {name[:100]}'"
    )


@contextmanager
def _kept_private(place: "Place") -> Iterator[None]:
    """What is wrong with a site's own files is said in its own console.txt only: it may quote them."""
    try:
        yield
    except InputError as error:
        say(f"{place.name}: {error}")
        raise InputError(
            f"the data of {place.name} cannot be used; its own console.txt, in its kit, says why"
        ) from None


def _own_file(place: "Place") -> Path:
    if place.data is None:
        raise InputError(f"{place.name} was started without data; start it with --data FILE")
    return Path(place.data)


@contextmanager
def _opened(folder: Path, patience: float) -> Iterator[None]:
    """The run's folder, locked; one that a process of an earlier attempt still holds is waited for."""
    end = time.monotonic() + patience
    with ExitStack() as stack:
        while True:
            try:
                stack.enter_context(files.open_folder(folder, resume=folder.exists()))
                break
            except InputError:
                if time.monotonic() > end:
                    raise
                time.sleep(0.2)
        yield


# ---- joining -----------------------------------------------------------------------------------------------


def _config_hash(config: CommonSettings) -> str:
    """Alike where two places understand the settings alike."""
    return hashlib.sha256(json.dumps(dataclasses.asdict(config), sort_keys=True).encode()).hexdigest()


def _data_digest(arrays: Mapping[str, np.ndarray], place: "Place") -> str:
    """The same for the same data, and nothing else can be told from it: it is keyed with a secret that stays
    in this site's kit."""
    secret = place.startup_kit / "digest.key"
    if not secret.exists():
        write_bytes(secret, secrets.token_bytes(32), private=True)
    mac = hmac.new(secret.read_bytes(), digestmod="sha256")
    for name, array in sorted(arrays.items()):
        mac.update(f"{name} {array.dtype} {array.shape} ".encode())
        mac.update(np.ascontiguousarray(array).data)
    return mac.hexdigest()


def versions(method: str) -> dict[str, str]:
    """Return the versions that must be alike at all places: another version may send other messages."""
    plugin = METHODS.plugin(method)
    return {
        "graphfed": __version__,
        "torch": str(torch.__version__).partition("+")[0],
        **({} if plugin is None else {plugin.name: plugin.version}),
    }


def _joining(
    own: OwnData, method: Method, config: CommonSettings, place: "Place", rounds: list[int]
) -> JsonObject:
    """What a site says of itself."""
    kind = first_task(method).data.participants
    return {
        "versions": versions(method.name),
        "python": platform.python_version(),
        "clients": len(own.clients),
        "declared": kind.declared(own, method, config),
        "schema": own.schema.to_json(),
        "config": _config_hash(config),
        "data": _data_digest(kind.arrays(own), place),
        "clock": place.clock,
        "rounds": rounds,
    }


def _join(
    fed: Federation,
    told: JsonObject | None,
    folder: Path,
    arguments: JsonObject,
    config: CommonSettings,
    agree: Agree,
    of_server: object,
) -> tuple[JsonObject, JsonObject]:
    """What all places agree on, after the server has compared what the sites say; and at the server what
    each has said."""
    with fed.phase("control", round_number=0):
        reports = fed.report(fed.locate(CLIENTS, "joining", [] if told is None else [told]), name="join")
        agreed = fed.control(
            _agree,
            reports,
            tuple(arguments["sites"]),
            tuple(len(h) for h in fed.workers),
            versions(str(arguments["method"])),
            _config_hash(config),
            tuple(whole_rounds(folder, fed)),
            agree,
            fed.locate(SERVER, "own", [of_server] if fed.server_is_here else []),
            name="agreed",
        )
    said = fed.local_parts(reports)
    for reported_by_all in said:
        fed.received.declared = _declared(reported_by_all)
    return agreed, dict(zip(arguments["sites"], said[0], strict=True)) if said else {}


def _declared(reports: Sequence[JsonObject]) -> dict[str, np.ndarray]:
    """What all sites have declared together, [K] by part of the split; they have agreed before."""
    parts = set.intersection(*(set(report["declared"]) for report in reports))
    return {
        part: np.concatenate([np.array(report["declared"][part], dtype=np.int64) for report in reports])
        for part in parts
    }


def _check_report(site: str, report: object, clients: int) -> None:
    """InputError where what a site says of itself has not the form of `_joining`."""
    wrong: list[object]
    try:
        declared = SiteReport.model_validate(report).declared.values()
        wrong = [] if all(len(counts) == clients for counts in declared) else ["declared"]
    except ValidationError as error:
        wrong = [*error.errors()[0]["loc"], *SiteReport.model_fields]
    if wrong:
        raise InputError(
            f"what {site} said when it joined cannot be used: {wrong[0]!r} is missing, or not what a site "
            f"says; install the same graphfed at {site}, and see who runs it"
        )


def _agree(
    reports: list[JsonObject],
    sites: tuple[str, ...],
    clients: tuple[int, ...],
    here: Mapping[str, str],
    config: str,
    mine: tuple[int, ...],
    agree: Agree,
    of_server: object,
) -> JsonObject:
    """InputError where the sites do not go together; else what they agree on."""
    schemas = {}
    for site, count, report in zip(sites, clients, reports, strict=True):
        _check_report(site, report, count)
        for program, version in here.items():
            theirs = report["versions"].get(program)
            if theirs != version:
                raise InputError(
                    f"{site} has {program} {theirs} and the server {version}; install the same version at "
                    "all places"
                )
        if report["config"] != config:
            raise InputError(f"{site} reads the run's settings in another way; install the same graphfed")
        if abs(report["clock"]) > CLOCK:
            raise InputError(
                f"the clock of {site} differs by {report['clock']:.0f} s from the server's (at most "
                f"{CLOCK:g}); set both by the network's time"
            )
        if report["clients"] != count:
            raise InputError(
                f"{site} holds {report['clients']} clients and the project says {count}; correct the project "
                "or give the site the data of all its clients"
            )
        schemas[site] = report["schema"]
    agreed = agree(schemas, of_server)
    common = set(mine).intersection(*(set(report["rounds"]) for report in reports))
    return {**agreed, "start": max(common) if common else None}


# ---- what stays here ---------------------------------------------------------------------------------------


def _write_manifest(
    folder: Path, arguments: JsonObject, own: OwnData | None, agreed: JsonObject, reports: JsonObject
) -> None:
    content = {
        "asked": arguments,
        "agreed": agreed,
        "joined": reports,
        "schema": None if own is None else own.schema.to_json(),
        "dropped": list(getattr(own, "dropped", ())),
        "versions": {**versions(str(arguments["method"])), "python": platform.python_version()},
    }
    write_json(folder / "manifest.json", files.plain(content))


def _write(part: _Part, fed: Federation, outcome: Outcome) -> None:
    """This place's own files, the result last."""
    wire_bytes = dict(getattr(fed.link, "wire", {}))
    result: JsonObject = {
        "rounds": outcome.rounds_run,
        "seconds": outcome.seconds,
        "bytes": fed.ledger.totals(),
        "privacy": fed.ledger.statement(),
        "wire": {"total": sum(wire_bytes.values()), "by_transfer": wire_bytes},
    }
    if fed.server_is_here:
        result |= {key: getattr(outcome, key) for key in ("best_round", "val", "test", "test_confusion")}
        trust = diagnosed(part.method, part.task.name, part.config, outcome, ())
        result |= {"details": {**outcome.details, **trust}, "task": dict(part.agreed)}
    files.write_run(
        part.folder,
        method=part.method.name,
        ledger=fed.ledger.to_json(),
        result=result,
        weights=model_arrays(part.method, outcome),
        history=outcome.history if fed.server_is_here else None,
        predictions=_tables(part, fed.local_parts(outcome.predictions)) if fed.here else None,
    )


def _tables(part: _Part, predicted: Sequence[Predicted]) -> "list[pa.Table]":
    """What is predicted at this site, as its kind of data has it (`ParticipantFiles.table`)."""
    table = first_task(part.method).data.participants.table
    return [table(part.site, part.part, each) for each in predicted]
