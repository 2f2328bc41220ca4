"""Checkpoints: the values that every process of a run saves between two rounds, from which the run goes on.

    checkpoint/round-00000042/local.safetensors   values of the latest and of the best round
                              local.json          decision, progress, metrics, ledger, the other file's sha256

In separate processes the files are called server, worker0, worker1, ... Each process writes and reads its own
files. A round counts if all of its files are there and undamaged. The newest round that every process is
known to have saved is kept, and all later ones, so a file that was cut short or damaged costs one checkpoint,
never the run.

What set-up prepared is not saved. It is computed again from the same data and seeds, or from the saved values
if a method must not send again what it sent (`Method.restore`), and its transfers stay on the ledger once.
Draws of training are keyed by round and step, so there is no state of a generator to save.
"""

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

#: The number of the newest rounds that one process keeps.
KEPT = 2
#: The control values of a round without a save or a stop.
NOTHING_DUE = {"save": 0, "interrupt": 0}
#: The layout of the files; another number is refused.
VERSION = 3


@dataclass(frozen=True)
class Progress:
    """What the server remembers between rounds to decide about the next one.

    Attributes:
        best_round: The round with the best validation metric; 0 before the first evaluation.
        stale: The number of evaluations since then.
        diverged: The first round whose predictions were not finite; 0 for none.
    """

    best_round: int = 0
    best: float | None = None
    stale: int = 0
    latest_is_best: bool = False
    diverged: int = 0


@dataclass(frozen=True)
class Snapshot:
    """A run between two rounds, as one process knows it.

    Attributes:
        number: The next round.
        decision: The control values that open it; None until they are sent.
        evaluated: The state of the last evaluated round.
        best_scores: Every client's best validation metric, if clients select by themselves.
        planned: The largest number of rounds when the decision was sent; 0 for the number that is asked for.
    """

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
    planned: int = 0


def process_names(num_workers: int, separate: bool) -> list[str]:
    """Return the names of the processes of a run, whose server and workers may be `separate` processes."""
    return ["server", *(f"worker{h}" for h in range(num_workers))] if separate else ["local"]


def _process_name(fed: Federation) -> str:
    if fed.link is None:
        return "local"
    return "server" if fed.server_is_here else f"worker{fed.here[0]}"


class Checkpoints:
    """When and where one process saves its part of a run.

    `every` is the number of seconds between checkpoints, 0 for one in every round. `start` is the round to go
    on from (`newest_round`), None for the beginning. `stop_request` is a request to stop that the caller
    passes on; if it is None, `listen` hears the signals of this process.
    """

    def __init__(
        self, folder: Path, *, every: float, start: int | None = None, stop_request: StopRequest | None = None
    ) -> None:
        self._folder, self._every, self.start = folder / CHECKPOINTS, every, start
        self._stop_request = StopRequest() if stop_request is None else stop_request
        self._listens = stop_request is None
        self._last = time.monotonic()
        self._saved: list[Path] = []
        #: The newest round that this process has saved, and the newest one that every process has saved.
        self._newest = self._common = start or 0

    @contextlib.contextmanager
    def listen(self) -> Iterator[None]:
        """Take SIGINT and SIGTERM for a request to stop in this block, unless the caller passes one on."""
        with listening() if self._listens else contextlib.nullcontext(self._stop_request) as stop_request:
            self._stop_request = stop_request
            yield

    def due(self) -> dict[str, int]:
        """Return "save" and "interrupt", each 0 or 1: control values whose size reveals nothing."""
        stop = int(self._stop_request.asked)
        return {"save": int(stop or time.monotonic() - self._last >= self._every), "interrupt": stop}

    def save(self, fed: Federation, snapshot: Snapshot) -> None:
        """Write this process's part of a round.

        If the disk refuses, warn and go on; the checkpoint before stays the newest one.
        """
        number = snapshot.number - 1
        folder = self._folder / _name(number)
        # A process may be behind the others, because absent clients send nothing.
        oldest = None if fed.link is None else self._common
        try:
            _save(self._folder, _process_name(fed), fed, snapshot, oldest)
        except OSError as error:
            kept = self._saved[-1].name if self._saved else "none"
            say(
                f"warning: the checkpoint {folder} could not be written ({error.strerror or error}); "
                f"training goes on, the newest checkpoint is {kept}"
            )
            return
        finally:
            # Also after a failure, so that a full disk is not tried again in every round.
            self._last = time.monotonic()
        self._saved.append(folder)
        self._newest = number

    def all_evaluated(self) -> None:
        """Record that every process has evaluated a round, and so has saved the rounds before it."""
        self._common = self._newest

    def load(self, fed: Federation, prepare: Callable[[Mapping[str, Located]], State]) -> Snapshot:
        """Read this process's part of round `start`. The ledger of `fed` becomes the saved one.

        `prepare` completes the saved values to a state, with what set-up prepares.
        """
        assert self.start is not None
        self._saved = [self._folder / _name(self.start)]
        return _load(self._folder, self.start, _process_name(fed), fed, prepare)


# ---- the files ---------------------------------------------------------------------------------------------


def write_part(
    checkpoints: Path,
    number: int,
    process: str,
    arrays: dict[str, np.ndarray],
    content: Mapping[str, object],
    oldest: int | None = None,
) -> None:
    """Write what one process saves after a round, and remove the rounds before `oldest` (None: all except
    KEPT).

    `number` counts the rounds that are done, or another progress. `content` goes into the JSON file, with the
    version and the other file's checksum. Raises OSError if the disk refuses.
    """
    folder = checkpoints / _name(number)
    path = folder / f"{process}.safetensors"
    write_tensors(path, arrays)
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    # Written last: a round without this file does not count.
    write_json(folder / f"{process}.json", {"version": VERSION, "sha256": digest, **content})
    earlier = [old for old in _rounds(checkpoints) if old.name < folder.name]
    for old in earlier[KEPT - 1 :] if oldest is None else earlier:
        if oldest is None or old.name < _name(oldest):
            shutil.rmtree(old, ignore_errors=True)


def read_part(
    checkpoints: Path, number: int, process: str, schema: "type[BaseModel]"
) -> tuple[JsonObject, dict[str, np.ndarray]]:
    """Read the JSON content and the arrays that `write_part` wrote.

    Raises OSError, ValueError, InputError or SafetensorError if the files cannot be used.
    """
    folder, name = checkpoints / _name(number), f"{process}.json"
    content = check_content(parse_json(read_regular(folder / name)), schema, name)
    return content, read_tensors(folder / f"{process}.safetensors")[0]


def newest_round(
    folder: Path, processes: Sequence[str], schema: "type[BaseModel]" = CheckpointFile
) -> tuple[int | None, list[str]]:
    """Find the newest round of which every process has an undamaged file; None if there is none.

    The second result says what is wrong with newer rounds.
    """
    wrong: list[str] = []
    for path in _rounds(folder / CHECKPOINTS):
        faults = [fault for name in processes if (fault := _fault(path, name, schema))]
        if not faults:
            return int(path.name.removeprefix("round-")), wrong
        wrong.append(f"{path}: {faults[0]}")
    return None, wrong


def whole_rounds(folder: Path, fed: Federation) -> list[int]:
    """Return the rounds of which this process has an undamaged file."""
    name = _process_name(fed)
    return [
        int(path.name.removeprefix("round-"))
        for path in _rounds(folder / CHECKPOINTS)
        if not _fault(path, name, CheckpointFile)
    ]


def _name(rounds_done: int) -> str:
    return f"round-{rounds_done:08d}"


def _rounds(folder: Path) -> list[Path]:
    """Return the folders of rounds, the newest first."""
    try:
        found = [path for path in folder.iterdir() if re.fullmatch(r"round-\d{8,}", path.name)]
    except OSError:
        return []
    return sorted(found, key=lambda path: int(path.name.removeprefix("round-")), reverse=True)


def _fault(folder: Path, process: str, schema: "type[BaseModel]") -> str:
    """Return why a process's part of a round cannot be used; an empty text if it can."""
    arrays = folder / f"{process}.safetensors"
    try:
        content = parse_json(read_regular(folder / f"{process}.json"))
        if isinstance(content, dict) and content.get("version") != VERSION:
            return (
                f"{process}.json has layout {shown(content.get('version'))}, and this version reads {VERSION}"
            )
        check_content(content, schema, f"{process}.json")
        check_regular(arrays)
        with arrays.open("rb") as file:
            if hashlib.file_digest(file, "sha256").hexdigest() != content["sha256"]:
                return f"{process}.safetensors is damaged (its checksum differs)"
    except OSError as error:
        return f"{Path(error.filename or process).name} cannot be read ({error.strerror})"
    except InputError as error:
        return str(error)
    except ValueError as error:
        return f"{process}.json is damaged: {error}"
    return ""


# ---- the state of a run ------------------------------------------------------------------------------------


def _save(checkpoints: Path, process: str, fed: Federation, snapshot: Snapshot, oldest: int | None) -> None:
    state, best = snapshot.state.values, snapshot.best.values
    values = {f"state.{k}": v for k, v in state.items()}
    # If the latest round is the best one, its values are stored once.
    shared = [k for k in state if best[k] is state[k]]
    values |= {f"best.{k}": v for k, v in best.items() if k not in shared}
    if snapshot.best_scores is not None:
        values["best_scores"] = snapshot.best_scores
    arrays = arrays_of(fed, values)
    # The best value as text: JSON has no nan and no infinity.
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
        # The other file sorts the names, and the tensors of a payload are sent in this order.
        "names": list(arrays),
        "best_scores": snapshot.best_scores is not None,
        "progress": progress,
        "history": snapshot.history,
        "planned": snapshot.planned,
        "setup_seconds": snapshot.setup_seconds,
        "seconds": snapshot.seconds,
        "ledger": fed.ledger.to_json(),
    }
    write_part(checkpoints, snapshot.number - 1, process, arrays, content, oldest)


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
        content, stored = read_part(checkpoints, number, process, CheckpointFile)
        arrays = {name: stored[name] for name in content["names"]}
        values = values_from(arrays, content["members"], content["places"], fed)
        names = [name.removeprefix("state.") for name in values if name.startswith("state.")]
        state = {k: values[f"state.{k}"] for k in names}
        best = {k: state[k] if k in content["shared"] else values[f"best.{k}"] for k in names}
        progress = [
            Progress(**{**p, "best": None if p["best"] is None else float(p["best"])})
            for p in content["progress"]
        ]
        located_progress = fed.locate(SERVER, "progress", progress)
        ledger = Ledger.from_json(content["ledger"])
    except (OSError, ValueError, KeyError, TypeError, InputError, SafetensorError) as error:
        raise InputError(
            f"the checkpoint {folder} cannot be used ({type(error).__name__}: {str(error)[:200]}); "
            "remove that folder to go on from the one before"
        ) from None
    fresh = prepare(state)
    # After `prepare`, whose transfers are on the saved ledger already.
    fed.ledger = ledger
    # The ledger counts under the round that is done until the next one begins.
    fed.ledger.round = content["number"] - 1
    chosen = State(best, fresh.prepared)
    return Snapshot(
        number=content["number"],
        decision=content["decision"],
        state=State(state, fresh.prepared),
        # Only the best of the evaluated states is used again.
        evaluated=chosen,
        best=chosen,
        best_scores=values.get("best_scores"),
        progress=located_progress,
        history=content["history"],
        setup_seconds=content["setup_seconds"],
        seconds=content["seconds"],
        planned=content.get("planned", 0),
    )
