"""Programs that `deployment.py` runs at the server and at the sites: round trips, by several ways in turn.

All participants follow the same plan: a list of [way, bytes, warm-up repeats, repeats]. One clock, at the
participant where a round trip begins, takes the times. The returned bytes are compared with those sent,
outside of the timed section."""

import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import tls_sockets
from nvflare.collab import collab
from nvflare.collab.api.context import get_call_context

from graphfed.federation import Federation
from graphfed.federation.link import SERVER_INDEX
from graphfed.runtime.nvflare.place import Place

__all__ = ["round_trips"]

#: Seconds of one Collab call.
CALL = 300.0


def round_trips(
    fed: Federation, arguments: Mapping[str, Any], log: Callable[[Any], None], place: Place
) -> None:
    """Run a plan of round trips. The server reports {"way", "bytes", "seconds"} for every line of the plan,
    the time (time.time()) when all sites had answered for the first time, and at the end the processes of
    every participant.

    Args:
        arguments: run; plan; port, of the bare sockets, None if the plan has none.
    """
    processes = _processes()
    for pid in processes.values():
        Path(f"/proc/{pid}/clear_refs").write_text("5")  # forget the peak so far
    if fed.server_is_here:
        _server(fed, arguments, log, place, processes)
    else:
        fed.link.send(SERVER_INDEX, "processes", json.dumps(list(processes.values())).encode())
        _site(fed, arguments, place)
    used = {name: _memory(pid) for name, pid in processes.items()}
    if fed.server_is_here:
        site_memory = [json.loads(fed.link.recv(end, "memory")) for end in range(len(fed.workers))]
        log({"memory": {"server": used, **{f"site-{i}": site for i, site in enumerate(site_memory)}}})
    else:
        fed.link.send(SERVER_INDEX, "memory", json.dumps(used).encode())


def _server(
    fed: Federation,
    arguments: Mapping[str, Any],
    log: Callable[[Any], None],
    place: Place,
    processes: Mapping[str, int],
) -> None:
    sites = range(len(fed.workers))

    def by_link(message: bytes, key: str) -> list[bytes]:
        for end in sites:
            fed.link.send(end, f"{key}/there", message)
        return [fed.link.recv(end, f"{key}/back") for end in sites]

    def by_call(message: bytes, key: str) -> list[bytes]:
        return [found for _, found in collab.clients(timeout=CALL).start(request=message)]

    by_link(b"?", "first")
    log({"answered": time.time()})
    everybody = [*processes.values()]
    for end in sites:
        everybody += json.loads(fed.link.recv(end, "processes"))
    port = arguments["port"]
    sockets = None if port is None else tls_sockets.Server(place.startup_kit, port, len(fed.workers))
    for number, (way, size, warm, times) in enumerate(arguments["plan"]):
        before = _processor_seconds(everybody)
        if way == "site to site":
            seconds = json.loads(fed.link.recv(0, f"{number}/seconds"))
        else:
            ways = {"link": by_link, "call": by_call}
            if sockets is not None:
                ways["socket"] = lambda message, key: sockets.round_trip(message)
            seconds = _timed(ways[way], size, warm, times, str(number))
        spent = (_processor_seconds(everybody) - before) / (warm + times)
        log({"way": way, "bytes": size, "seconds": seconds, "processor": spent})
    if sockets is not None:
        sockets.__exit__()


def _site(fed: Federation, arguments: Mapping[str, Any], place: Place) -> None:
    (me,) = fed.here
    if arguments["port"] is not None:
        tls_sockets.echo_until_closed(place.startup_kit, arguments["port"])
    # A published method of the site's app answers the Collab calls while this program runs.
    app = get_call_context().app.obj
    app.start = _echo
    try:
        _send_back(fed, SERVER_INDEX, "first")
        for number, (way, size, warm, times) in enumerate(arguments["plan"]):
            if way == "link":
                for i in range(warm + times):
                    _send_back(fed, SERVER_INDEX, f"{number}/{i}")
            elif way == "site to site" and me == 0:
                seconds = _timed(
                    lambda message, key: [_there_and_back(fed, 1, key, message)],
                    size,
                    warm,
                    times,
                    str(number),
                )
                fed.link.send(SERVER_INDEX, f"{number}/seconds", json.dumps(seconds).encode())
            elif way == "site to site" and me == 1:
                for i in range(warm + times):
                    _send_back(fed, 0, f"{number}/{i}")
    finally:
        del app.start


@collab.publish
def _echo(request: bytes) -> bytes:
    return request


def _there_and_back(fed: Federation, to: int, key: str, message: bytes) -> bytes:
    fed.link.send(to, f"{key}/there", message)
    return fed.link.recv(to, f"{key}/back")


def _send_back(fed: Federation, worker: int, key: str) -> None:
    fed.link.send(worker, f"{key}/back", fed.link.recv(worker, f"{key}/there"))


def _timed(
    trip: Callable[[bytes, str], Sequence[Any]], size: int, warm: int, times: int, key: str
) -> list[float]:
    """Return the seconds of every trip after the warm-up. Raise AssertionError if other bytes are
    returned."""
    seconds = []
    for i in range(warm + times):
        message = os.urandom(size)
        began = time.perf_counter()
        back = trip(message, f"{key}/{i}")
        seconds.append(time.perf_counter() - began)
        assert all(found == message for found in back), f"{key}: other bytes came back"
    return seconds[warm:]


# ---- this place's processes


def _processes() -> dict[str, int]:
    """Return the processes of this participant: of the run, FLARE's long-lived one, and `graphfed site
    start`."""
    flare = os.getppid()
    stat = Path(f"/proc/{flare}/stat").read_text()
    start = int(stat.rpartition(")")[2].split()[1])
    return {"run": os.getpid(), "flare": flare, "start": start}


def _processor_seconds(pids: Sequence[int]) -> float:
    """Return the processor time that these processes have used."""
    ticks = 0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])  # user and system
    return ticks / os.sysconf("SC_CLK_TCK")


def _memory(pid: int) -> dict[str, float]:
    """Return memory in MB (10^6 bytes). peak: resident, since the program began; pss: now, where memory that
    several processes use is divided among them."""

    def kib(file: str, name: str) -> int:
        lines = Path(f"/proc/{pid}/{file}").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))

    found = {"peak": kib("status", "VmHWM"), "pss": kib("smaps_rollup", "Pss")}
    return {name: round(n * 1024 / 1e6, 1) for name, n in found.items()}
