"""The programs of a deployment: how the server and every site take part in training and in predicting.

A participant joins, reads its own data, computes its part, and keeps its own results. Joining comes before
any other message: every site reports its versions, the schema of its data and the rounds from which it can
continue, and the server refuses the run if they are not compatible.

    runs/RUN/   in the startup kit of each participant
      manifest.json       what was asked, versions, the schema of the data
      checkpoint/         this participant's part of the latest rounds
      ledger.json         what this participant sent and received
      model.safetensors   this participant's part of the model
      predictions.parquet at a site: for its own nodes; predictions-TIME.parquet: of a later prediction
      metrics.jsonl       at the server: one line per round
      result.json         the outcome of the run, written last
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
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch
from pydantic import ValidationError

from graphfed import __version__
from graphfed.deployment.arguments import (
    check_arguments,
    check_deployable,
    check_rule,
    without_other_rules,
)
from graphfed.deployment.folder_schema import SiteManifest, SiteReport
from graphfed.deployment.memory import check_memory
from graphfed.errors import InputError, shown
from graphfed.federation import CLIENTS, SERVER, Federation, Located, wire
from graphfed.federation.series import TaskData
from graphfed.files import JsonObject, contained, read_regular, read_tensors, write_bytes, write_json
from graphfed.methods.base import Method, Task
from graphfed.methods.common.entity_alignment import count_owners
from graphfed.methods.common.feature_transform import transform_features
from graphfed.methods.common.local_training import as_configured
from graphfed.methods.registry import METHODS, get_method
from graphfed.methods.settings import values
from graphfed.plugins import code_digest, load_plugin
from graphfed.runs import folder as files
from graphfed.runs.checkpoint import Checkpoints, whole_rounds
from graphfed.runs.diagnostics import diagnose
from graphfed.runs.model_file import model_arrays, with_weights
from graphfed.runs.processes import part_of_run
from graphfed.runs.settings import breaks_rule
from graphfed.runs.train import Event, train
from graphfed.runtime.interrupts import StopRequest
from graphfed.runtime.nvflare.requests import differences
from graphfed.tasks.evaluation import Predicted
from graphfed.tasks.inputs import WorkerPart
from graphfed.tasks.kind import OwnData
from graphfed.tasks.outcome import Outcome
from graphfed.tasks.registry import first_task, get_task
from graphfed.terminal import say

if TYPE_CHECKING:
    import pyarrow as pa

    from graphfed.runtime.nvflare.place import Place
    from graphfed.tasks.kind import DataKind

#: Descriptions of the transfers of joining (see `Sent.messages`).
MESSAGES = {
    "join": "Before a run begins, each site sends the server the versions of its programs, its number of "
    "clients, the names of its feature columns and classes, of the categories that occur at the site and of "
    "the columns with gaps (for forecasting: the number of readings, their times and which are used for "
    "training), the difference of its clock, and the rounds from which it can continue. It also sends a "
    "digest of its data, keyed with a secret of the site, from which the server learns only whether the data "
    "has changed. If the method later sends the numbers of training, validation or test nodes, the site "
    "declares them here, and no later number may be larger. The message contains no other data. The server "
    "reads it and passes it to the coordinator.",
    "agreed": "The server sends all sites what they agreed on: the numbers of features and classes, the "
    "categories of all sites, the columns with gaps, and the round from which the run continues.",
}

#: Returns what all participants agree on, from the schema of each site's data (`DataKind.agree`).
Agree: TypeAlias = Callable[[Mapping[str, JsonObject], Any], JsonObject]
#: The largest difference in seconds between the clocks of a site and of the server.
MAX_CLOCK_DIFFERENCE = 60.0
#: The file with a participant's part of the outcome of a rehearsal, for the caller who partitioned the data.
REHEARSAL_PART = "rehearsal.part"


@dataclasses.dataclass(frozen=True)
class _Part:
    """What one participant contributes to a run. At the server `site` and `part` are None.

    Attributes:
        folder: The folder of the run in the startup kit.
        site: The data of a site as it was read.
        part: The data of a site as its program trains on it.
    """

    method: Method
    config: Any
    folder: Path
    task: Task
    site: OwnData | None
    part: "WorkerPart | None"
    data: TaskData
    agreed: JsonObject


def run_place(
    fed: Federation, arguments: JsonObject, log: Callable[[JsonObject], None], place: "Place"
) -> None:
    """Train this participant's part of a run.

    Raises InputError if this participant cannot take part; the message says nothing about its data. Raises
    Interrupted if a stop request was obeyed, after saving.
    """
    is_server = fed.server_is_here

    def on_event(event: Event) -> None:
        log(dataclasses.asdict(event))

    with _taking_part(fed, arguments, place) as part:
        checkpoints = Checkpoints(
            part.folder,
            every=float(arguments["checkpoint_every"]),
            start=part.agreed["start"],
            # The server decides for all when to stop, and its control message says so.
            stop_request=place.stop_request if is_server else StopRequest(),
        )
        outcome = train(
            fed,
            part.method,
            part.data,
            part.task,
            part.config,
            on_event=on_event if is_server else None,
            checkpoints=checkpoints,
        )
        _write(part, fed, outcome)
        if arguments["rehearsal"] and part.agreed["owners_known"]:
            write_bytes(part.folder / REHEARSAL_PART, wire.encode(part_of_run(fed, part.method, outcome)))


def predict_place(
    fed: Federation, arguments: JsonObject, log: Callable[[JsonObject], None], place: "Place"
) -> None:
    """Predict this participant's part with the model of a finished run, each site for its present data.

    Raises InputError if this participant cannot take part, has no finished run of this name, or the method
    would release noised values a second time.
    """
    check_arguments(arguments, fed.num_clients)
    # Before joining, because a request that is refused must not cause any message, nor leave a file.
    check_sets_up_again(_accepted(arguments, place)[0], arguments["run"])
    if not (contained(place.runs, arguments["run"]) / "result.json").exists():
        raise InputError(f"{place.name} has no finished run {arguments['run']!r}; train the model first")
    with _taking_part(fed, arguments, place) as part:
        arrays, _ = read_tensors(part.folder / "model.safetensors")
        with fed.phase("setup", round_number=0):
            data, _ = transform_features(fed, part.data, part.method, part.config, part.task)
            fresh = part.method.setup(fed, data, part.task, part.config)
        with fed.phase("predict"):
            state = with_weights(fed, fresh, arrays, part.method)
            logits = part.method.predict(fed, state, part.config, "all")
            evaluation = get_task(part.task.name)
            predictions = fed.clients.run(evaluation.keep, evaluation.at_clients(part.data), logits)
        stamp = arguments["stamp"]
        if part.site is not None:
            tables = _tables(part, fed.local_parts(predictions))
            files.write_predictions(part.folder / f"predictions-{stamp}.parquet", tables)
        write_json(part.folder / f"ledger-{stamp}.json", files.plain(fed.ledger.to_json()))
        write_bytes(part.folder / f"request-{stamp}.json", place.request.encode())


def check_sets_up_again(method: Method, run: str) -> None:
    """Raise InputError for a method whose set-up would spend its privacy budget a second time."""
    if method.restore is not None:
        raise InputError(
            f"{method.name} released noised values in the training of {run!r}, and a new prediction would "
            f"release more; each site has its predictions in runs/{run}/predictions.parquet of its startup "
            "kit"
        )


@contextmanager
def _taking_part(fed: Federation, arguments: JsonObject, place: "Place") -> Iterator[_Part]:
    """Join a run: check the request, read the data of this participant, and agree with the others."""
    # Before anything else, also of the method: the arguments come from another participant.
    check_arguments(arguments, fed.num_clients)
    torch.set_default_dtype(getattr(torch, arguments["dtype"]))
    method, config = _accepted(arguments, place)
    kind, site, of_server = first_task(method).data, None, None
    if fed.here:
        file = _own_file(place)
        with _kept_private(place):
            site = kind.read(arguments, file, place.name)
    elif kind.server_has_data:
        file = _own_file(place)
        with _kept_private(place):
            of_server = kind.read_server(arguments, file)
    folder = contained(place.runs, arguments["run"])
    with _opened(folder, float(arguments["wait"])):
        # A second request of the same name could continue a run under weaker protections.
        _check_same(folder, arguments)
        report = None if site is None else _report(site, method, config, place, whole_rounds(folder, fed))
        agreed, reports = _join(fed, report, folder, arguments, config, kind, of_server)
        task = kind.task(agreed)
        if site is not None:
            site = kind.with_agreed(site, agreed)
        # Nothing of the model is allocated before this.
        check_memory(place, method, config, task, 0 if site is None else kind.rows(site, config))
        if of_server is not None:
            of_server = kind.server_part(of_server, agreed)
        local_part = None
        if site is not None:
            local_part = as_configured(kind.part(site, fed.workers[fed.here[0]], task, fed.device), config)
        # After everything that may refuse the data here, and before anything of the data is sent. A
        # prediction leaves the manifest of the training as it is.
        if not (folder / "result.json").exists():
            _write_manifest(folder, arguments, place, site, agreed, report, reports)
        data = get_task(task.name).data.located(
            fed, *(([], [of_server]) if site is None else ([local_part], []))
        )
        if not agreed["owners_known"] and "node_ids" in method.tree.names:
            assert isinstance(data, Located)
            with fed.phase("setup", round_number=0):
                data = count_owners(fed, data, config)
        yield _Part(method, config, folder, task, site, local_part, data, agreed)


# ---- what is asked -----------------------------------------------------------------------------------------


def _accepted(arguments: JsonObject, place: "Place") -> tuple[Method, Any]:
    """Return the method and its settings; InputError if the operator of this participant refuses them."""
    name = str(arguments["method"])
    if name not in METHODS.own:
        _check_plugin(name, arguments["plugin"] or {}, place)
    method = get_method(name)
    if place.methods and method.name not in place.methods:
        raise InputError(
            f"{place.name} refuses runs of {shown(method.name)}: its operator allows only "
            f"{', '.join(place.methods)} (graphfed site start ... --methods)"
        )
    # The settings are made only afterwards, because making them imports the rule.
    _refused_by(place, check_rule, method, arguments["config"])
    method = without_other_rules(method)
    config = method.configure(arguments["config"])
    for unwanted in place.forbid:
        if breaks_rule(config, unwanted):
            raise InputError(
                f"{place.name} refuses runs with {unwanted}: its operator forbids this value (graphfed "
                "site start ... --forbid); choose another value"
            )
    if not place.rehearsal:
        _refused_by(place, check_deployable, method, config, arguments["split"])
        if arguments["rehearsal"]:
            raise InputError(
                f"{place.name} refuses a rehearsal, in which a site writes its part of the outcome for the "
                "coordinator"
            )
    return method, config


def _refused_by(place: "Place", check: Callable[..., None], *given: object) -> None:
    """Name this participant in the refusal of a check."""
    try:
        check(*given)
    except InputError as error:
        raise InputError(f"{place.name} refuses the run: {error}") from None


def _check_plugin(name: str, asked: JsonObject, place: "Place") -> None:
    """Raise InputError unless the method of a plug-in is installed here and the operator allows it.

    The coordinator says which plug-in it has, but the code that runs is the one installed here. No plug-in is
    imported before the operator allows it.
    """
    module = str(asked.get("module") or "")
    # The operator's list decides what is imported, not the request.
    if module and module in place.allow:
        load_plugin(module)
    here, inside = METHODS.plugin(name), METHODS.module(name)
    if here is not None:
        allowed = any(f"{inside}.".startswith(f"{each}.") for each in place.allow)
        if name in place.methods or allowed:
            _check_code(name, asked, place)
            return
        raise InputError(
            f"{place.name} does not run the method {name!r} of {here}; its operator can allow it with "
            f"'graphfed site start ... --methods {name}', or the whole plug-in with --allow "
            f"{inside.partition('.')[0]}"
        )
    if module and module not in place.allow:
        raise InputError(
            f"{place.name} does not run methods of {shown(module)}; its operator can allow them with "
            f"'graphfed site start ... --allow {module[:100]}'"
        )
    plugin = f"{module or asked.get('distribution')} {asked.get('version')}"
    raise InputError(
        f"{place.name} has no method {shown(name)}; its operator can install the plug-in {shown(plugin)} and "
        f"allow it with 'graphfed site start ... --methods {name[:100]}'"
    )


def _check_code(name: str, asked: JsonObject, place: "Place") -> None:
    """Raise InputError unless the plug-in here has the code of the coordinator's."""
    here = code_digest(METHODS.module(name))
    if asked["sha256"] != here:
        raise InputError(
            f"{place.name} has other code of {METHODS.plugin(name)} than the coordinator (sha256 {here[:16]} "
            f"and {asked['sha256'][:16]}); install the same version at all participants"
        )


@contextmanager
def _kept_private(place: "Place") -> Iterator[None]:
    """Write errors about the data only to this participant's console.txt, because they may quote the data."""
    try:
        yield
    except InputError as error:
        say(f"{place.name}: {error}")
        raise InputError(
            f"the data of {place.name} cannot be used; the reason is in console.txt of its startup kit"
        ) from None


def _own_file(place: "Place") -> Path:
    if place.data is None:
        raise InputError(f"{place.name} was started without data; start it with --data FILE")
    return Path(place.data)


def _check_same(folder: Path, arguments: JsonObject) -> None:
    """Raise InputError if a run of this name was asked for with other arguments here."""
    file = folder / "manifest.json"
    if not file.exists():
        return
    # These change nothing that is computed or sent in the training.
    free = dict.fromkeys(("wait", "checkpoint_every", "stamp"))
    before = files.read_json(file, SiteManifest)["asked"]
    changed = differences(before | free, arguments | free)
    if changed:
        raise InputError(
            f"the run {folder.name!r} was asked for with other arguments before: {'; '.join(changed[:5])}; "
            "start a new run"
        )


@contextmanager
def _opened(folder: Path, patience: float) -> Iterator[None]:
    """Lock the folder of the run; wait for the process of an earlier attempt that still holds it."""
    # The process of an attempt that was lost may still be saving.
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


def _config_hash(config: Any) -> str:
    """Hash the settings: equal hashes mean that two participants understand them alike."""
    return hashlib.sha256(json.dumps(dict(values(config)), sort_keys=True).encode()).hexdigest()


def _data_digest(arrays: Mapping[str, np.ndarray], place: "Place") -> str:
    """Digest the data of a site with a secret that stays in its startup kit. Equal data has the same digest,
    from which nothing else can be learned without the secret.
    """
    # Without a secret, anybody could test guesses of the data against the digest.
    secret = place.startup_kit / "digest.key"
    if not secret.exists():
        write_bytes(secret, secrets.token_bytes(32), private=True)
    mac = hmac.new(read_regular(secret), digestmod="sha256")
    for name, array in sorted(arrays.items()):
        mac.update(f"{name} {array.dtype} {array.shape} ".encode())
        mac.update(np.ascontiguousarray(array).data)
    return mac.hexdigest()


def versions(method: str) -> dict[str, str]:
    """Return the versions that must be equal at all participants, the plug-in's included: other versions may
    send other messages.
    """
    plugin = METHODS.plugin(method)
    return {
        "graphfed": __version__,
        # Builds for the CPU and for CUDA differ after the plus sign only.
        "torch": str(torch.__version__).partition("+")[0],
        **({} if plugin is None else {plugin.name: plugin.version}),
    }


def _report(own_data: OwnData, method: Method, config: Any, place: "Place", rounds: list[int]) -> JsonObject:
    kind = first_task(method).data
    return {
        "versions": versions(method.name),
        "python": platform.python_version(),
        "clients": len(own_data.clients),
        "declared": kind.declared(own_data, method, config),
        "schema": own_data.schema.to_json(),
        "config": _config_hash(config),
        "data": _data_digest(kind.arrays(own_data), place),
        "clock": place.clock,
        "rounds": rounds,
    }


def _join(
    fed: Federation,
    report: JsonObject | None,
    folder: Path,
    arguments: JsonObject,
    config: Any,
    kind: "DataKind[Any, Any, Any, Any]",
    of_server: object,
) -> tuple[JsonObject, JsonObject]:
    """Send the report of a site, and return what all participants agree on.

    The second value is the report of every site by name at the server, and empty at a site.
    """
    with fed.phase("control", round_number=0):
        reports = fed.report(fed.locate(CLIENTS, "joining", [] if report is None else [report]), name="join")
        agreed = fed.control(
            _agree,
            reports,
            tuple(arguments["sites"]),
            tuple(len(clients) for clients in fed.workers),
            versions(str(arguments["method"])),
            _config_hash(config),
            tuple(whole_rounds(folder, fed)),
            kind.agree,
            fed.locate(SERVER, "own", [of_server] if fed.server_is_here else []),
            name="agreed",
            accept=None if report is None else partial(_accept_agreed, kind, report),
        )
    received = fed.local_parts(reports)
    # At the server: from now on no site may report more nodes than it has declared.
    for reports_of_all in received:
        fed.received.declared = _declared(reports_of_all)
    return agreed, dict(zip(arguments["sites"], received[0], strict=True)) if received else {}


def _declared(reports: Sequence[JsonObject]) -> dict[str, np.ndarray]:
    """Return the numbers of nodes that the sites have declared, [K] by part of the split."""
    # A number that one site has not declared cannot bound a sum over all sites.
    parts = set.intersection(*(set(report["declared"]) for report in reports))
    return {
        part: np.concatenate([np.array(report["declared"][part], dtype=np.int64) for report in reports])
        for part in parts
    }


def _accept_agreed(kind: "DataKind[Any, Any, Any, Any]", report: JsonObject, agreed: JsonObject) -> str:
    """Check what the server sends as the agreement (see `Federation.control`)."""
    # All schemas are alike, so what all agree on follows from this site's own one.
    try:
        expected = kind.expected(report["schema"], agreed)
    except InputError as error:
        return str(error)
    for key in (*expected, *agreed):
        if key != "start" and (key not in agreed or key not in expected or agreed[key] != expected[key]):
            return f"{shown(key)} = {shown(agreed.get(key))} where {shown(expected.get(key))} is expected"
    if "start" not in agreed:
        return "no 'start' where a round that the site has saved, or none, is expected"
    start = agreed["start"]
    if start is None or (type(start) is int and start in report["rounds"]):
        return ""
    return f"'start' = {shown(start)} where a round that the site has saved, or none, is expected"


def _check_report(site: str, report: object, clients: int) -> None:
    """Raise InputError unless the report of a site has the form of `_report`."""
    wrong: list[object]
    try:
        declared = SiteReport.model_validate(report).declared.values()
        wrong = [] if all(len(counts) == clients for counts in declared) else ["declared"]
    except ValidationError as error:
        wrong = [*error.errors()[0]["loc"], *SiteReport.model_fields]
    if wrong:
        raise InputError(
            f"the report with which {site} joined cannot be used: {wrong[0]!r} is missing or has the wrong "
            f"form; install the same version of graphfed at {site}, and check who operates it"
        )


def _version(value: object) -> str:
    # It is printed at other participants, so a terminal must not obey it.
    plain = isinstance(value, str) and re.fullmatch(r"[\w.+-]{1,60}", value, re.ASCII)
    return str(value) if plain else shown(value)


def _agree(
    reports: list[JsonObject],
    sites: tuple[str, ...],
    clients: tuple[int, ...],
    server_versions: Mapping[str, str],
    config: str,
    server_rounds: tuple[int, ...],
    agree: Agree,
    of_server: object,
) -> JsonObject:
    """Return what the sites agree on; InputError if their reports are not compatible."""
    schemas = {}
    for site, count, report in zip(sites, clients, reports, strict=True):
        _check_report(site, report, count)
        # Another version may send other messages, or round the same numbers otherwise.
        for program, version in server_versions.items():
            site_version = report["versions"].get(program)
            if site_version != version:
                raise InputError(
                    f"{site} has {program} {_version(site_version)} and the server {version}; install the "
                    "same version at the server and at all sites"
                )
        if report["config"] != config:
            raise InputError(
                f"{site} understands the settings of the run differently from the server; install the same "
                "version of graphfed"
            )
        if abs(report["clock"]) > MAX_CLOCK_DIFFERENCE:
            raise InputError(
                f"the clock of {site} differs by {report['clock']:.0f} s from that of the server (at most "
                f"{MAX_CLOCK_DIFFERENCE:g} s are allowed); synchronise both clocks with network time (NTP)"
            )
        if report["clients"] != count:
            raise InputError(
                f"{site} holds {report['clients']} clients and the project says {count}; correct the "
                "project, or give the site the data of all its clients"
            )
        schemas[site] = report["schema"]
    agreed = agree(schemas, of_server)
    # The newest round of which every participant has its part.
    common = set(server_rounds).intersection(*(set(report["rounds"]) for report in reports))
    return {**agreed, "start": max(common) if common else None}


# ---- what stays here ---------------------------------------------------------------------------------------


def _write_manifest(
    folder: Path,
    arguments: JsonObject,
    place: "Place",
    own_data: OwnData | None,
    agreed: JsonObject,
    report: JsonObject | None,
    reports: JsonObject,
) -> None:
    content = {
        "asked": arguments,
        "request": place.request,
        "data": None if report is None else report["data"],
        "agreed": agreed,
        "joined": reports,
        "schema": None if own_data is None else own_data.schema.to_json(),
        "dropped": list(getattr(own_data, "dropped", ())),
        "versions": {**versions(str(arguments["method"])), "python": platform.python_version()},
    }
    write_json(folder / "manifest.json", files.plain(content))


def _write(part: _Part, fed: Federation, outcome: Outcome) -> None:
    """Write the files of this participant, the result last."""
    # Only the link of a deployment counts bytes with headers and encryption.
    wire_bytes = dict(getattr(fed.link, "wire", {}))
    result: JsonObject = {
        "rounds": outcome.rounds_run,
        "seconds": outcome.seconds,
        "bytes": fed.ledger.totals(),
        "privacy": fed.ledger.statement(),
        "wire": {"total": sum(wire_bytes.values()), "by_transfer": wire_bytes},
    }
    if fed.server_is_here:
        # Only the server has the metrics over all clients.
        result |= {key: getattr(outcome, key) for key in ("best_round", "val", "test", "test_confusion")}
        warnings = diagnose(part.method, part.task.name, part.config, outcome, ())
        result |= {"details": {**outcome.details, **warnings}, "task": dict(part.agreed)}
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
    table = first_task(part.method).data.table
    return [table(part.site, part.part, each) for each in predicted]
