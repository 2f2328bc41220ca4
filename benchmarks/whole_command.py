"""Measure 100 rounds of W1 as a whole process started from the shell; the aim is 5 s and 400 MB.

The command is `graphfed run fedavg --data cora --clients 10 --json`, with files written. The record also has
the processor time (which other programs on the machine disturb less than the seconds), the cost of the
imports, and the parts of the memory."""

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

from measure import add_common_options, finish, load_average, summary

#: What the installed `graphfed` script does.
ENTRY = "import sys; from graphfed.cli import main; sys.exit(main())"
AIM = {"seconds": 5.0, "peak_mb": 400.0}

#: Resident memory after every stage, in a process of its own; the command's imports and steps in their order.
STAGES = """
import os, sys
def rss():
    with open("/proc/self/statm") as f:
        return int(f.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6
found = {"python": rss()}
import numpy; found["import numpy"] = rss()
import torch; found["import torch"] = rss()
import graphfed.cli, graphfed.runs.run, graphfed.runs.train
found["import graphfed's commands"] = rss()
import graphfed
name, rounds, threads = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
from graphfed.data.datasets import load
load(name); found["load " + name] = rss()
graphfed.run("fedavg", data=name, clients=10, rounds=rounds, threads=threads, out=False); found["run"] = rss()
import pyarrow.parquet; found["import pyarrow (to write the predictions)"] = rss()
import json; print(json.dumps(found))
"""


def whole(data: str, rounds: int, threads: int) -> dict[str, Any]:
    """Run one command; return its seconds, processor seconds, peak MB (10^6 bytes) and its own report of its
    time."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-c", ENTRY, "run", "fedavg", "--data", data, "--clients", "10", "--json"]
        command += ["--rounds", str(rounds), "--threads", str(threads), "--out", str(Path(folder) / "run")]
        began = time.perf_counter()
        with open(Path(folder) / "out", "w+") as out, open(Path(folder) / "err", "w+") as err:
            child = subprocess.Popen(command, stdout=out, stderr=err)
            _, status, used = os.wait4(child.pid, 0)
            child.returncode = os.waitstatus_to_exitcode(status)
            seconds = time.perf_counter() - began
            out.seek(0)
            err.seek(0)
            if child.returncode:
                raise RuntimeError(
                    f"{' '.join(command[3:])} ended with {child.returncode}: {err.read()[-500:]}"
                )
            result = json.loads(out.read().strip().splitlines()[-1])
    unit = 1 if sys.platform == "darwin" else 1024
    return {
        "seconds": round(seconds, 3),
        "cpu_seconds": round(used.ru_utime + used.ru_stime, 3),
        "peak_mb": round(used.ru_maxrss * unit / 1e6, 1),
        "own_seconds": result["seconds"],
        "test_accuracy": result["test"]["accuracy"],
    }


def import_times(count: int) -> dict[str, float]:
    """Return the slowest imports of the command in seconds, each with what it imports, from -X importtime."""
    modules = "import graphfed.cli, graphfed.runs.run, graphfed.runs.train, pyarrow.parquet"
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-c", modules], capture_output=True, text=True, check=True
    )
    total: dict[str, float] = {}
    for line in done.stderr.splitlines():
        parts = line.removeprefix("import time:").split("|")
        if len(parts) == 3 and parts[1].strip().isdigit():
            name = parts[2].strip()
            # The parts of a package add little information to its root.
            if name.startswith("graphfed") or "." not in name:
                total[name] = int(parts[1]) / 1e6
    slowest = sorted(total.items(), key=lambda item: -item[1])[:count]
    return {name: round(seconds, 3) for name, seconds in slowest}


def memory_stages(data: str, rounds: int, threads: int) -> dict[str, float]:
    """Return the resident MB (10^6 bytes) after every stage; empty if there is no /proc."""
    if not Path("/proc/self/statm").exists():
        return {}
    done = subprocess.run(
        [sys.executable, "-c", STAGES, data, str(rounds), str(threads)],
        capture_output=True,
        text=True,
        check=True,
    )
    found: dict[str, float] = json.loads(done.stdout.strip().splitlines()[-1])
    return {stage: round(mb, 1) for stage, mb in found.items()}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_common_options(parser, "whole_command")
    options = parser.parse_args(arguments)
    began, load_before = time.perf_counter(), load_average()
    data = "cora" if os.environ.get("GRAPHFED_DATA") and not options.tiny else "social"
    rounds, repeats = (5, 1) if options.tiny else (100, 7 if options.full else 4)
    runs = [whole(data, rounds, options.threads) for _ in range(repeats)]
    seconds, cpu, peak = (summary([r[key] for r in runs]) for key in ("seconds", "cpu_seconds", "peak_mb"))
    print(f"{rounds} rounds of W1 on {data}, {options.threads} thread(s), {repeats} processes")
    print(
        f"    seconds     min {seconds['min']:.2f}, median {seconds['median']:.2f} (aim {AIM['seconds']:g})"
    )
    print(f"    processor   min {cpu['min']:.2f}, median {cpu['median']:.2f}")
    print(f"    peak MB     max {max(r['peak_mb'] for r in runs):.0f} (aim {AIM['peak_mb']:g})")
    best = min(runs, key=lambda r: r["seconds"])
    print("    of the fastest: " + ", ".join(f"{k} {v:.3f} s" for k, v in best["own_seconds"].items()))
    imports, stages = import_times(15), memory_stages(data, rounds, options.threads)
    print("    imports, s: " + ", ".join(f"{name} {s}" for name, s in imports.items()))
    print("    MB after: " + ", ".join(f"{stage} {mb:.0f}" for stage, mb in stages.items()))
    finish(
        options.out,
        began,
        load_before,
        {
            "data": data,
            "rounds": rounds,
            "aim": AIM,
            "reached": {"seconds": seconds, "cpu_seconds": cpu, "peak_mb": peak},
            "runs": runs,
            "import_seconds": imports,
            "memory_mb": stages,
        },
    )


if __name__ == "__main__":
    main()
