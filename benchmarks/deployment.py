"""Measure a deployment over NVIDIA FLARE: transfers, the number of sites on one machine, and a round.

Transfers are compared with a bare mutual-TLS socket and with FLARE's Collab calls. Server and sites are
processes of this machine that communicate over loopback with mutual TLS. A round trip goes from the server to
every site and back, for all sites at once, and is timed by the server's clock; one way is half of it. The
returned bytes are compared with those sent. The three ways take turns in the same processes: messages of the
runtime's own link; bare sockets with the certificates of the same startup kits (`tls_sockets.py`); a Collab
call with the bytes as its argument and its result.

On a machine with other load, processor seconds (user and system, of the processes of all participants
together) are more reliable than wall-clock seconds."""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from measure import add_common_options, finish, load_average, ratio, summary

import graphfed
from graphfed.errors import GraphfedError
from graphfed.runtime.interrupts import StopRequest
from graphfed.runtime.nvflare.loopback import Loopback, free_port
from graphfed.runtime.nvflare.project import Project, Site, Timing

WAYS = ("link", "socket", "call")
#: Of the 50 sites: starting them all keeps a small machine busy for longer than a site may usually be silent.
PATIENT = Timing(give_up=300.0)
KB, MB = 1000, 1_000_000
#: Methods whose rounds are measured, each with the partition of its data.
METHODS = (("fedavg", "random"), ("sapgnn", "edges_uniform"))


class Light(Loopback):
    """Processes as `graphfed site start` runs them, without the checks that it makes before. The process
    that has read a site's data keeps torch in memory as long as the site runs."""

    def start(self, name: str) -> None:
        program = "import sys; from pathlib import Path; from graphfed.runtime.nvflare.place import Place; "
        program += "from graphfed.runtime.nvflare.process import run_parent; "
        program += "run_parent(Place('', Path(sys.argv[1]), allow=('deployment_places',)))"
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        with (self.startup_kits[name] / "terminal.txt").open("ab") as log:
            self._processes[name] = subprocess.Popen(
                [sys.executable, "-c", program, str(self.startup_kits[name])],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment,
            )


class Federation:
    """Server and sites on this machine, and the reports of runs of `deployment_places.round_trips`."""

    def __init__(self, sites: int, folder: Path, kind: type[Loopback] = Loopback) -> None:
        names = tuple(Site(f"site-{i}") for i in range(sites))
        project = Project("benchmark", names, port=free_port(), timing=PATIENT)
        began = time.perf_counter()
        self._folder, self.sites = folder, sites
        self.loopback = kind(project, folder / "startup_kits", {}, allow=["deployment_places"])
        loopback_sites = self.loopback.__enter__()
        try:
            self._coordinator = loopback_sites.coordinator()
            self._coordinator.wait_for_sites(lambda message: None, StopRequest())
        except BaseException:
            self.__exit__()
            raise
        #: Seconds until all sites were connected, including the time to make the startup kits.
        self.start = time.perf_counter() - began

    def __enter__(self) -> "Federation":
        return self

    def __exit__(self, *_: object) -> None:
        self.loopback.__exit__()

    def run(self, *plans: Sequence[tuple[str, int, int, int]], sockets: bool = False) -> list[list[Any]]:
        """Return the server's report of every plan. All plans run in one job, or in several if a job ends
        early (`jobs`). The first report says how many seconds passed from the request of the job until all
        sites had answered."""
        events: dict[str, list[Any]] = {f"plan-{i}": [] for i in range(len(plans))}
        runs = [
            {
                "run": name,
                "program": "deployment_places:round_trips",
                "arguments": {"run": name, "plan": plan, "port": free_port() if sockets else None},
                "workers": [[i] for i in range(self.sites)],
            }
            for name, plan in zip(events, plans, strict=True)
        ]

        def on_message(text: str) -> None:
            print(text, file=sys.stderr)
            if "their processes start" in text:
                self.jobs += 1
                for reports in events.values():
                    if reports and "memory" not in reports[-1]:  # of a job that ended early
                        reports.clear()

        self.jobs, began = 0, time.time()
        with tempfile.TemporaryDirectory(dir=self._folder) as kept:
            outcomes = self._coordinator.run(
                runs,
                on_event=lambda run, event: events[run].append(event),
                on_message=on_message,
                stop_request=StopRequest(),
                results=Path(kept),
            )
        if [outcome["kind"] for outcome in outcomes] != ["done"] * len(runs):
            raise GraphfedError(f"a run of the benchmark failed: {outcomes}")
        return [[reports[0]["answered"] - began, *reports[1:]] for reports in events.values()]


# ---- transfers


def transfers(options: argparse.Namespace) -> dict[str, Any]:
    """Measure round trips of every size by every way, in turns."""
    sites, repeats = (2, 1) if options.tiny else (4, 5)
    # bytes, and the number of trips in each repeat
    sizes = [(KB, 3), (100 * KB, 2)] if options.tiny else [(KB, 40), (MB, 10), (50 * MB, 2)]
    repeat = [(way, size, 1, times) for size, times in sizes for way in WAYS]
    repeat += [("site to site", size, 1, times) for size, times in sizes if size <= MB]
    with tempfile.TemporaryDirectory() as folder, Federation(sites, Path(folder)) as federation:
        (reports,) = federation.run([line for _ in range(repeats) for line in repeat], sockets=True)
        memory = None if options.tiny else largest(federation)
    lines = [line for line in reports if isinstance(line, dict) and "way" in line]
    found: dict[str, Any] = {}
    for size, _ in sizes:
        found[name_of(size)] = row = of_size(lines, size, sites)
        print(f"{name_of(size)}: {row['milliseconds']}", file=sys.stderr)
    return {"sites": sites, "round_trips": found, "largest_message": memory}


def of_size(lines: Sequence[dict[str, Any]], size: int, sites: int) -> dict[str, Any]:
    """Return milliseconds, processor time and ratios of the round trips of one size."""
    same_size = [line for line in lines if line["bytes"] == size]
    ways = {line["way"]: [other for other in same_size if other["way"] == line["way"]] for line in same_size}
    times = {way: [[1e3 * s for s in line["seconds"]] for line in repeats] for way, repeats in ways.items()}
    processor = {way: [[1e3 * line["processor"]] for line in repeats] for way, repeats in ways.items()}
    flat = {way: [ms for repeat in repeats for ms in repeat] for way, repeats in times.items()}
    both_ways = 2 * sites * size / MB
    return {
        "milliseconds": {way: summary(found) for way, found in flat.items()},
        "one_way_milliseconds": {
            way: {"min": summary(found)["min"] / 2, "median": summary(found)["median"] / 2}
            for way, found in flat.items()
        },
        "megabytes_per_second": {
            way: round(1e3 * both_ways / min(found), 1) for way, found in flat.items() if way in WAYS
        },
        "processor_milliseconds": {way: summary([ms for (ms,) in found]) for way, found in processor.items()},
        "ratios": {f"link / {way}": ratio(times["link"], times[way]) for way in WAYS[1:]},
        # Times below one tick of the processor's clock are 0 and have no ratio.
        "processor_ratios": {
            f"link / {way}": ratio(processor["link"], processor[way])
            for way in WAYS[1:]
            if all(ms > 0 for (ms,) in processor[way])
        },
    }


def largest(federation: Federation) -> dict[str, Any]:
    """Measure one round trip of 300 MB and the peak memory of every process, and the same for small
    messages."""
    size = 300 * MB
    small, large = federation.run([("link", KB, 0, 1)], [("link", size, 0, 1)])
    trip = next(line for line in large if isinstance(line, dict) and "way" in line)
    return {
        "bytes": size,
        "round_trip_seconds": trip["seconds"],
        "processor_seconds": trip["processor"],
        "peak_mb": {"after 1 KB": peaks(small), "after 300 MB": peaks(large)},
    }


def peaks(reports: Sequence[Any]) -> dict[str, dict[str, float]]:
    """Return the peak resident MB of every process of every participant."""
    memory = reports[-1]["memory"]
    return {place: {name: used["peak"] for name, used in by.items()} for place, by in memory.items()}


def name_of(size: int) -> str:
    """Return a size in bytes as text, such as "1 KB"."""
    return f"{size // MB} MB" if size >= MB else f"{size // KB} KB"


# ---- many sites


def many(options: argparse.Namespace) -> dict[str, Any]:
    """Measure many sites on this machine: start-up, the round trip of one small message, memory."""
    sites, times = (3, 2) if options.tiny else (options.many, 20)
    with tempfile.TemporaryDirectory() as folder, Federation(sites, Path(folder), Light) as federation:
        connected = federation.start
        print(f"{sites} sites are connected after {connected:.0f} s", file=sys.stderr)
        (reports,) = federation.run([("link", KB, 2, times)])
    memory = reports[-1]["memory"]
    by_process: dict[str, list[float]] = {}
    for place, by in memory.items():
        for name, used in by.items():
            by_process.setdefault(name if place != "server" else f"server's {name}", []).append(used["pss"])
    return {
        "sites": sites,
        "seconds": {"until connected": round(connected, 1), "until all answer a job": round(reports[0], 1)},
        "jobs": federation.jobs,
        "round_trip_milliseconds": summary([1e3 * s for s in reports[1]["seconds"]]),
        "processor_milliseconds": round(1e3 * reports[1]["processor"], 1),
        "pss_mb": {
            "total": round(sum(sum(found) for found in by_process.values())),
            "of a process": {name: summary(found) for name, found in by_process.items()},
        },
    }


# ---- rounds


def rounds(options: argparse.Namespace) -> dict[str, Any]:
    """Measure a round of training (scoring included) over FLARE and in the other runtimes, in seconds. All
    runtimes must reach the same scores."""
    count, repeats = (2, 1) if options.tiny else (20, 3)
    data = "cora" if os.environ.get("GRAPHFED_DATA") else "digits"
    found: dict[str, Any] = {"data": data}
    for method, partition_name in METHODS[:1] if options.tiny else METHODS:
        ways = {
            "one at a time": {"runtime": "local", "placement": "one-at-a-time"},
            "processes": {"runtime": "processes"},
            "nvflare": {"runtime": "nvflare"},
        }
        seconds: dict[str, list[list[float]]] = {way: [] for way in ways}
        scores = set()
        for _ in range(repeats):
            for way, settings in ways.items():
                result = graphfed.run(
                    method,
                    data=data,
                    clients=3,
                    partition=partition_name,
                    rounds=count,
                    threads=1,
                    out=False,
                    **settings,
                )
                seconds[way].append([1e3 * result.seconds["per_round"]])
                scores.add(json.dumps([result.val, result.test], sort_keys=True))
        assert len(scores) == 1, f"{method}: the runtimes do not agree: {scores}"
        found[method] = {
            "rounds": count,
            "milliseconds": {way: summary([ms for (ms,) in found]) for way, found in seconds.items()},
            "ratios": {f"nvflare / {way}": ratio(seconds["nvflare"], seconds[way]) for way in seconds},
        }
        print(f"{method}: {found[method]['milliseconds']}", file=sys.stderr)
    return found


PARTS = {"transfers": transfers, "many": many, "rounds": rounds}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    add_common_options(parser, "deployment")
    parser.add_argument("--parts", default=",".join(PARTS), help=f"of {', '.join(PARTS)} (default: all)")
    parser.add_argument("--many", type=int, default=50, help="sites of the largest deployment (default 50)")
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    began, load_before = time.perf_counter(), load_average()
    result = {}
    for name in options.parts.split(","):
        print(f"== {name}", file=sys.stderr)
        result[name] = {"load": load_average(), **PARTS[name](options)}
    finish(options.out, began, load_before, result)


if __name__ == "__main__":
    main()
