"""Measure a round of every method on a GPU and on the CPU of the same machine.

    social      a generated graph of 10^4 nodes, mean degree 10, 128 features; 10 clients, or a client a node
                for the methods whose partition is `ego`; methods in LARGE also with 10^5 nodes
    roads       60 sensors and a week of readings, every 16th window of them, for forecasting

Every run has the method's defaults and scores the validation nodes in every round. The same run is made on
both devices, one after the other, and must end with the same test loss to 1 percent (float32); that devices
agree to 1e-9 in float64 is a law (tests/golden). Without a CUDA device only the CPU is measured."""

import argparse
import json
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from measure import add_common_options, finish, load_average, summary

import graphfed
from graphfed.methods.registry import METHODS, get_method
from graphfed.methods.tasks import CLASSIFICATION, FORECASTING

#: Rounds that are left out, and that are timed; of a method in SLOW fewer are timed.
WARM_UP, TIMED, TIMED_SLOW = 2, 8, 2
SLOW = ("fedgat", "fedgat_ldp", "cnfgnn", "gru_central", "gru_fedavg", "gru_local", "gru_fmtl")
#: Methods that are measured with ten times the nodes too.
LARGE = ("central", "fedavg", "fedgcn", "lumos")


def cases(tiny: bool) -> list[tuple[str, int]]:
    """Return every method with a number of nodes; 0: it forecasts the readings of sensors."""
    found = []
    for name in METHODS.own:
        method = get_method(name)
        if CLASSIFICATION in method.tasks:
            found.append((name, 300 if tiny else 10_000))
            if name in LARGE and not tiny:
                found.append((name, 100_000))
        elif FORECASTING in method.tasks and name not in ("last_value", "historical_average"):
            found.append((name, 0))
    return found


def measure(name: str, nodes: int, device: str, options: argparse.Namespace) -> dict[str, Any]:
    """Run a method on a device; return its seconds, its GPU memory, and its loss."""
    method = get_method(name)
    timed = 1 if options.tiny else TIMED_SLOW if name in SLOW else TIMED
    asked: dict[str, Any] = {"rounds": WARM_UP + timed, "device": device, "threads": options.threads}
    settings: dict[str, Any] = {}
    if nodes:
        social = {"num_nodes": nodes, "average_degree": 10, "features": 128}
        settings |= {f"data.{key}": value for key, value in social.items()}
        asked |= {"data": "social", "split": "random:0.5,0.25,0.25"}
        if method.partition != "ego":
            asked["clients"] = 10
    else:
        asked |= {"data": "roads"}
        settings |= {"data.weeks": 1, "every": 64 if options.tiny else 16}
    names = method.tree.names
    settings |= {"eval_every": 1} if "eval_every" in names else {}
    settings |= {"feature_low": -4.0, "feature_high": 4.0} if "feature_low" in names else {}
    settings |= {"noise_seed": 0} if "noise_seed" in names else {}
    if device != "cpu":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        result = graphfed.run(name, out=out, settings=settings, **asked)
        ends = [json.loads(line)["seconds"] for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert result.test is not None
    found = {
        "round_ms": summary((1e3 * np.diff(ends)[WARM_UP - 1 :]).tolist()),
        "test_loss": result.test.get("loss", result.test.get("mae")),
    }
    if device != "cpu":
        found["peak_gpu_mb"] = round(torch.cuda.max_memory_allocated() / 1e6, 1)
    return found


def table_of(cases: dict[str, Any]) -> str:
    """Return the Markdown table of a record's cases."""
    lines = [
        "| method | nodes | CPU, ms | GPU, ms | CPU / GPU | GPU memory, MB |",
        "| --- | --: | --: | --: | --: | --: |",
    ]
    for label, row in cases.items():
        name, nodes = label.split(", ")
        cpu, gpu = (row[device]["round_ms"]["median"] for device in ("cpu", "cuda"))
        count = nodes.removesuffix(" nodes")
        times = f"{cpu:.1f} | {gpu:.1f} | {row['cpu_over_gpu']:.1f}"
        lines.append(f"| `{name}` | {count} | {times} | {row['cuda']['peak_gpu_mb']:.0f} |")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_common_options(parser, "devices")
    parser.add_argument("--methods", nargs="*", help="only these methods")
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    began, load_before = time.perf_counter(), load_average()
    devices = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
    found: dict[str, Any] = {}
    for name, nodes in cases(options.tiny):
        if options.methods and name not in options.methods:
            continue
        label = f"{name}, {nodes} nodes" if nodes else f"{name}, roads"
        row = {device: measure(name, nodes, device, options) for device in devices}
        if "cuda" in row:
            one, other = (row[device]["test_loss"] for device in devices)
            assert abs(one - other) <= 0.01 * abs(one), f"{label}: {one} on the CPU, {other} on the GPU"
            times = [row[device]["round_ms"]["median"] for device in devices]
            row["cpu_over_gpu"] = round(times[0] / times[1], 2)
        found[label] = row
        print(f"{label:32s} {row}", flush=True)
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    finish(options.out, began, load_before, {"gpu": gpu, "warm_up": WARM_UP, "cases": found})


if __name__ == "__main__":
    main()
