"""Run every benchmark, one after the other; `make bench` runs this program.

--full selects every size, and --tiny shows that the programs work."""

import argparse
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

#: In this order: the shortest first.
BENCHMARKS = (
    "transfers",
    "whole_command",
    "own_data",
    "secure_aggregation",
    "split_learning",
    "federation_tax",
    "growth",
)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--full", action="store_const", dest="size", const="--full", help="every size")
    size.add_argument(
        "--tiny",
        action="store_const",
        dest="size",
        const="--tiny",
        help="run for seconds, as a check",
    )
    options = parser.parse_args(arguments)
    failed = []
    for name in BENCHMARKS:
        script = Path(__file__).resolve().parent / f"{name}.py"
        if not script.exists():
            continue
        print(f"\n==== {name}", flush=True)
        # `transfers` has one size.
        more = [options.size] if options.size and name != "transfers" else []
        if subprocess.run([sys.executable, str(script), *more], check=False).returncode:
            failed.append(name)
    if failed:
        sys.exit(f"error: these benchmarks failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
