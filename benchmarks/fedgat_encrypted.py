"""Measure FedGAT's message before training when the server computes it from ciphertexts.

Digits, 3 clients, vector form, the method's defaults, 20 rounds. Each exchange runs in a separate process,
whose peak memory is measured. Both runs must reach the same test accuracy, because the errors of decrypted
numbers are far too small to change a prediction."""

import argparse
import json
import resource
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any

import torch
from measure import add_common_options, finish, load_average

import graphfed

EXCHANGES = ("plaintext", "encrypted")


def measured(exchange: str, tiny: bool) -> dict[str, Any]:
    """Run one exchange in this process, and measure its peak memory.

    Args:
        exchange: How features are sent.
        tiny: Whether a small graph is enough.
    """
    options: dict[str, Any] = {"data": "digits", "clients": 3, "rounds": 20, "seed": 0}
    settings: dict[str, Any] = {"form": "vector", "exchange": exchange}
    if tiny:
        options |= {"data": "social", "split": "random:0.5,0.25,0.25", "rounds": 2}
        settings["data.num_nodes"] = 60
    result = graphfed.run("fedgat", **options, threads=1, settings=settings, out=False)
    return {
        "exchange": exchange,
        **options,
        "bytes_before_training": result.bytes["setup"],
        "setup_s": result.seconds["setup"],
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "test_accuracy": result.test["accuracy"],
    }


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    add_common_options(parser, "fedgat_encrypted")
    parser.add_argument("--one", choices=EXCHANGES, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    if options.one:
        print(json.dumps(measured(options.one, options.tiny)))
        return
    began, load_before = time.perf_counter(), load_average()
    rows = {}
    for exchange in EXCHANGES:
        command = [sys.executable, __file__, "--one", exchange, *(["--tiny"] if options.tiny else [])]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        rows[exchange] = json.loads(done.stdout)
        print(f"{exchange}: {rows[exchange]}", file=sys.stderr, flush=True)
    assert rows["plaintext"]["test_accuracy"] == rows["encrypted"]["test_accuracy"]
    finish(options.out, began, load_before, {"rows": rows})


if __name__ == "__main__":
    main()
