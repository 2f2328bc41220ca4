"""Record the accuracy of several methods on Cora: the figures that README and docs print.

Public split, 10 clients, `label_dirichlet` with beta 10000 (every client has all classes), the defaults of
every method, three seeds. tests/claims/test_public_data.py compares the same runs."""

import argparse
import time
from collections.abc import Sequence

import torch
from measure import add_common_options, finish, load_average

import graphfed

METHODS = ("central", "isolated", "fedavg", "fedgcn")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    add_common_options(parser, "comparison")
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    began, load_before = time.perf_counter(), load_average()
    asked = {
        "data": "digits" if options.tiny else "cora",
        "clients": 10,
        "partition": "label_dirichlet",
        "seeds": (0, 1) if options.tiny else (0, 1, 2),
    }
    more = {"rounds": 2} if options.tiny else {}
    table = graphfed.compare(METHODS, **asked, **more, out=False)
    accuracy = {
        row["method"]: {
            key: 100 * value for key, value in row["test"]["accuracy"].items() if key in ("mean", "std")
        }
        for row in table.rows
    }
    finish(options.out, began, load_before, {**asked, "accuracy": accuracy})


if __name__ == "__main__":
    main()
