"""Checkpoints: what every process of a run saves between two rounds, so that the run can go on from there.

    checkpoint/round-00000042/local.safetensors   values of the latest and of the best round
                              local.json          decision, progress, metrics, ledger, the other file's sha256

In separate processes the files are called server, host0, host1, ... Each process writes its own and reads its
own. A round counts when all of its files are there and whole; the two newest rounds are kept, so a file that
was cut short or damaged costs one checkpoint, never the run.

What setup prepared is not saved: it is worked out again from the same data and seeds, or from the saved
values where a method must not send again what it sent (`Method.restore`), and its transfers stay on the
ledger once. Draws of training are keyed by round and step, so there is no generator to save."""

import contextlib
import hashlib
import re
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from graphfed.errors import InputError, shown
from graphfed.federation import SERVER, Federation, Ledger, Located
from graphfed.federation.state import arrays_of, members_of, values_from
from graphfed.files import (
    JsonObject,
    check_regular,
    parse_json,
    read_regular,
    read_tensors,
    write_json,
    write_tensors,
)
from graphfed.methods.base import State
from graphfed.runs.folder import CHECKPOINTS
from graphfed.runs.folder_schema import CheckpointFile, check_content
from graphfed.runtime.interrupts import StopRequest, listening
from graphfed.terminal import say

if TYPE_CHECKING:
    from pydantic import BaseModel

__all__ = [
    "NOTHING_DUE",
    "Checkpoints",
    "Progress",
    "Snapshot",
    "newest_round",
    "process_names",
    "read_part",
    "whole_rounds",
    "write_part",
]

#: Rounds kept.
KEPT = 2
#: Control values of a round in which nobody saves or stops.
NOTHING_DUE = {"save": 0, "interrupt": 0}
#: The layout of the files; another number is refused.
VERSION = 3


@dataclass(frozen=True)
class Progress:
    """What the server remembers between rounds to decide: the best validation metric, how many evaluations
    ago it was, and the first round whose predictions were not finite (0: none)."""

    best_round: int = 0
    best: float | None = None
    stale: int = 0
    latest_is_best: bool = False
    diverged: int = 0


@dataclass(frozen=True)
class Snapshot:
    """A run between two rounds, as one process knows it.

    number: the round to come; decision: the control values that open it, None while they are not sent; state,
    evaluated, best: after the latest round, the latest evaluated one, and the best one; best_scores: every
    client's own best validation metric, where clients select by themselves; progress: at the server; history:
    lines of metrics.jsonl; setup_seconds, seconds: spent on set-up, and in all."""

    number: int
    decision: JsonObject | None
    state: State
    evaluated: State
    best: State
    best_scores: Located | None
    progress: Located
    history: list[JsonObject]
    setup_seconds: float = 0.0
    seconds: float = 0.0


def process_names(num_workers: int, separate: bool) -> list[str]:
    """The names of the processes of a run: ``["local"]``, or the server and every host on its own."""
    return ["server", *(f"worker{h}" for h in range(num_workers))] if separate else ["local"]


def _process_name(fed: Federation) -> str:
    if fed.link is None:
        return "local"
    return "server" if fed.server_is_here else f"worker{fed.here[0]}"


class Checkpoints:
    """Where and when one process saves its part of a run.

    folder: the run's; every: seconds between checkpoints, 0 for every round; start: the round after which to
    go on (`newest_round`), None to start from the beginning; stop_request: somebody's stop_request to stop
    (None: `listen` hears the signals of this process)."""

    def __init__(
        self, folder: Path, *, every: float, start: int | None = None, stop_request: StopRequest | None = None
    ) -> None:
        self._folder, self._every, self.start = folder / CHECKPOINTS, every, start
        self._stop_request = StopRequest() if stop_request is None else stop_request
        self._listens = stop_request is None
        self._last = time.monotonic()
        self._saved: list[Path] = []

    @contextlib.contextmanager
    def listen(self) -> Iterator[None]:
        """In this block SIGINT and SIGTERM are a stop_request to stop, where nobody else listens for this
        process."""
        with listening() if self._listens else contextlib.nullcontext(self._stop_request) as stop_request:
            self._stop_request = stop_request
            yield

    def due(self) -> dict[str, int]:
        """Whether to save now and whether to stop, as 0 or 1: control values whose size tells nothing."""
        stop = int(self._stop_request.asked)
        return {"save": int(stop or time.monotonic() - self._last >= self._every), "interrupt": stop}

    def save(self, fed: Federation, snapshot: Snapshot) -> None:
        """Write this process's part; where the disk refuses, say so and go on with the checkpoint before."""
        folder = self._folder / _name(snapshot.number - 1)
        try:
            _save(self._folder, _process_name(fed), fed, snapshot)
        except OSError as error:
            kept = self._saved[-1].name if self._saved else "none"
            say(
                f"warning: the checkpoint {folder} could not be written ({error.strerror or error}); "
                f"training goes on, the newest checkpoint is {kept}"
            )
            return
        finally:
            self._last = time.monotonic()
        self._saved.append(folder)

    def load(self, fed: Federation, prepare: Callable[[Mapping[str, Located]], State]) -> Snapshot:
        """This process's part of round `start`. prepare: the saved values -> a state with what set-up
        prepares. The ledger of `fed` becomes the saved one.

        InputError for a file that cannot be used."""
        assert self.start is not None
        self._saved = [self._folder / _name(self.start)]
        return _load(self._folder, self.start, _process_name(fed), fed, prepare)


# ---- the files ---------------------------------------------------------------------------------------------


def write_part(
    checkpoints: Path, number: int, process: str, arrays: dict[str, np.ndarray], content: Mapping[str, object]
) -> None:
    """Write what one process saves after a round; of older rounds the newest stays.

    Args:
        checkpoints: The folder of all rounds.
        number: The rounds that are done; of what has no rounds, whatever counts its progress.
        process: The name of the process.
        arrays: What goes into the safetensors file, by name.
        content: What goes into the JSON file, with the version and the other file's checksum.

    Raises:
        OSError: When the disk refuses."""
    folder = checkpoints / _name(number)
    path = folder / f"{process}.safetensors"
    write_tensors(path, arrays)
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    # Last: a round without it does not count.
    write_json(folder / f"{process}.json", {"version": VERSION, "sha256": digest, **content})
    # Other processes may not have this round yet: the one before stays until the next.
    for old in _rounds(checkpoints)[KEPT:]:
        if old.name < folder.name:
            shutil.rmtree(old, ignore_errors=True)


def read_part(
    checkpoints: Path, number: int, process: str, schema: "type[BaseModel]"
) -> tuple[JsonObject, dict[str, np.ndarray]]:
    """The content and the arrays that `write_part` wrote. OSError, ValueError, InputError or SafetensorError
    for files that cannot be used."""
    folder, name = checkpoints / _name(number), f"{process}.json"
    content = check_content(parse_json(read_regular(folder / name)), schema, name)
    return content, read_tensors(folder / f"{process}.safetensors")[0]


def newest_round(
    folder: Path, processes: Sequence[str], schema: "type[BaseModel]" = CheckpointFile
) -> tuple[int | None, list[str]]:
    """The newest round of which every process has a whole file, and what is wrong with newer ones.

    schema: of the JSON files."""
    wrong: list[str] = []
    for path in _rounds(folder / CHECKPOINTS):
        faults = [fault for name in processes if (fault := _fault(path, name, schema))]
        if not faults:
            return int(path.name.removeprefix("round-")), wrong
        wrong.append(f"{path}: {faults[0]}")
    return None, wrong


def whole_rounds(folder: Path, fed: Federation) -> list[int]:
    """The rounds of which this process has a whole file, the newest first."""
    name = _process_name(fed)
    return [
        int(path.name.removeprefix("round-"))
        for path in _rounds(folder / CHECKPOINTS)
        if not _fault(path, name, CheckpointFile)
    ]


def _name(rounds_done: int) -> str:
    return f"round-{rounds_done:08d}"


def _rounds(folder: Path) -> list[Path]:
    """The folders of rounds, the newest first."""
    try:
        found = [path for path in folder.iterdir() if re.fullmatch(r"round-\d{8,}", path.name)]
    except OSError:
        return []
    return sorted(found, key=lambda path: int(path.name.removeprefix("round-")), reverse=True)


def _fault(folder: Path, process: str, schema: "type[BaseModel]") -> str:
    """Why a process's part of a round cannot be used; empty when it can."""
    arrays = folder / f"{process}.safetensors"
    try:
        told = parse_json(read_regular(folder / f"{process}.json"))
        if isinstance(told, dict) and told.get("version") != VERSION:
            return (
                f"{process}.json is of layout {shown(told.get('version'))}, and this version reads {VERSION}"
            )
        check_content(told, schema, f"{process}.json")
        check_regular(arrays)
        with arrays.open("rb") as file:
            if hashlib.file_digest(file, "sha256").hexdigest() != told["sha256"]:
                return f"{process}.safetensors is damaged (its checksum differs)"
    except OSError as error:
        return f"{Path(error.filename or process).name} cannot be read ({error.strerror})"
    except InputError as error:
        return str(error)
    except ValueError as error:
        return f"{process}.json is damaged: {error}"
    return ""


# ---- the state of a run ------------------------------------------------------------------------------------


def _save(checkpoints: Path, process: str, fed: Federation, snapshot: Snapshot) -> None:
    state, best = snapshot.state.values, snapshot.best.values
    values = {f"state.{k}": v for k, v in state.items()}
    # A round that is the best so far is stored once.
    shared = [k for k in state if best[k] is state[k]]
    values |= {f"best.{k}": v for k, v in best.items() if k not in shared}
    if snapshot.best_scores is not None:
        values["best_scores"] = snapshot.best_scores
    arrays = arrays_of(fed, values)
    progress = [
        {**asdict(p), "best": None if p.best is None else str(p.best)}
        for p in fed.local_parts(snapshot.progress)
    ]
    content = {
        "number": snapshot.number,
        "decision": snapshot.decision,
        "shared": shared,
        "members": members_of(values),
        "places": {name: value.place for name, value in values.items()},
        # The other file sorts them, and a payload's tensors are sent in their order.
        "names": list(arrays),
        "best_scores": snapshot.best_scores is not None,
        "progress": progress,
        "history": snapshot.history,
        "setup_seconds": snapshot.setup_seconds,
        "seconds": snapshot.seconds,
        "ledger": fed.ledger.to_json(),
    }
    write_part(checkpoints, snapshot.number - 1, process, arrays, content)


def _load(
    checkpoints: Path,
    number: int,
    process: str,
    fed: Federation,
    prepare: Callable[[Mapping[str, Located]], State],
) -> Snapshot:
    from safetensors import SafetensorError

    folder = checkpoints / _name(number)
    try:
        told, stored = read_part(checkpoints, number, process, CheckpointFile)
        arrays = {name: stored[name] for name in told["names"]}
        values = values_from(arrays, told["members"], told["places"], fed)
        names = [name.removeprefix("state.") for name in values if name.startswith("state.")]
        state = {k: values[f"state.{k}"] for k in names}
        best = {k: state[k] if k in told["shared"] else values[f"best.{k}"] for k in names}
        progress = [
            Progress(**{**p, "best": None if p["best"] is None else float(p["best"])})
            for p in told["progress"]
        ]
        ledger = Ledger.from_json(told["ledger"])
    except (OSError, ValueError, KeyError, TypeError, InputError, SafetensorError) as error:
        raise InputError(
            f"the checkpoint {folder} cannot be used ({type(error).__name__}: {str(error)[:200]}); "
            "remove that folder to go on from the one before"
        ) from None
    fresh = prepare(state)
    fed.ledger = ledger
    fed.ledger.round = told["number"] - 1
    chosen = State(best, fresh.prepared)
    return Snapshot(
        number=told["number"],
        decision=told["decision"],
        state=State(state, fresh.prepared),
        # Of the evaluated states only the best is asked for again.
        evaluated=chosen,
        best=chosen,
        best_scores=values.get("best_scores"),
        progress=fed.locate(SERVER, "progress", progress),
        history=told["history"],
        setup_seconds=told["setup_seconds"],
        seconds=told["seconds"],
    )
