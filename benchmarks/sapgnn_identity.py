"""Check SAPGNN's claim on real data: the number of clients does not change the results.

In float64 with gradients in plaintext, runs with 1 to 4 clients must end with the same metrics for every
seed, with the paper's settings (two layers, Adam 0.01, at most 300 epochs, early stopping on the validation
nodes). The program also measures what float32 and secret sharing change: the difference of the validation
loss from the float64 run with one client, for every epoch, with a drawing next to the result file."""

import argparse
import io
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from measure import add_common_options, finish, float64, load_average

import graphfed

#: The paper's messages, which leave one linear map per layer at the server.
PAPER = {"maps": "identity", "predictor": "server", "weight_decay": 5e-3}
#: Runs that drift: dtype, number of clients and how gradients are summed. The predictor is at the clients.
DRIFTING = {
    "float64, 3 holders, clear": (torch.float64, 3, "plaintext"),
    "float64, 3 holders, shares": (torch.float64, 3, "additive"),
    "float32, 1 holder, clear": (torch.float32, 1, "plaintext"),
    "float32, 3 holders, clear": (torch.float32, 3, "plaintext"),
    "float32, 3 holders, shares": (torch.float32, 3, "additive"),
}


def metrics(data: str, clients: int, seed: int, rounds: int, patience: int) -> dict[str, Any]:
    """Return the final metrics of a float64 run."""
    with float64():
        result = graphfed.run(
            "sapgnn", data=data, clients=clients, partition="edges_uniform", rounds=rounds, seed=seed,
            out=False, settings={**PAPER, "aggregation": "plaintext", "patience": patience},
        )  # fmt: skip
    return {
        "best_round": result.best_round,
        "rounds": result.rounds,
        "accuracy": result.test["accuracy"],
        "macro_f1": result.test["macro_f1"],
    }


def losses(data: str, dtype: torch.dtype, clients: int, aggregation: str, rounds: int) -> list[float]:
    """Return the validation loss of every epoch, seed 0."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with tempfile.TemporaryDirectory() as folder:
            graphfed.run(
                "sapgnn", data=data, clients=clients, partition="edges_uniform", rounds=rounds,
                out=Path(folder) / "run",
                settings={**PAPER, "predictor": "clients", "aggregation": aggregation},
            )  # fmt: skip
            lines = (Path(folder) / "run/metrics.jsonl").read_text().splitlines()
    finally:
        torch.set_default_dtype(before)
    return [json.loads(line)["val"]["loss"] for line in lines]


def drawn(drift: dict[str, list[float]], data: str) -> bytes:
    """Draw the drift of every run as SVG."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    with mpl.rc_context({"svg.hashsalt": "graphfed", "svg.fonttype": "none"}):
        figure = Figure(figsize=(7, 3.8), layout="constrained")
        axes = figure.add_subplot()
        for name, gaps in drift.items():
            axes.semilogy(range(1, len(gaps) + 1), [max(gap, 1e-17) for gap in gaps], label=name)
        axes.set_xlabel("epoch")
        axes.set_ylabel("difference of the validation loss")
        axes.set_title(f"SAPGNN on {data}: drift from float64 with one client", fontsize="medium")
        axes.grid(alpha=0.3)
        axes.legend(fontsize="small")
        image = io.BytesIO()
        figure.savefig(image, format="svg", metadata={"Date": None})
    return image.getvalue()


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    add_common_options(parser, "sapgnn_identity")
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    began, load_before = time.perf_counter(), load_average()
    sets, seeds, rounds = (["digits"], 1, 4) if options.tiny else (["cora", "citeseer"], 10, 300)
    found: dict[str, Any] = {}
    for data in sets:
        for seed in range(seeds):
            first, *others = (metrics(data, clients, seed, rounds, 30) for clients in (1, 2, 3, 4))
            for clients, other in enumerate(others, 2):
                assert other == first, (
                    f"{data}, seed {seed}: {clients} clients end with {other}, 1 client with {first}"
                )
            found.setdefault(data, []).append({"seed": seed, **first})
            print(f"{data}, seed {seed}: 1 to 4 clients agree, {first}", file=sys.stderr, flush=True)
    reference = losses(sets[0], torch.float64, 1, "plaintext", rounds)
    drift = {
        name: [abs(a - b) for a, b in zip(losses(sets[0], *case, rounds), reference, strict=True)]
        for name, case in DRIFTING.items()
    }
    options.out.with_suffix(".svg").write_bytes(drawn(drift, sets[0]))
    finish(options.out, began, load_before, {"alike": found, "drift": drift})


if __name__ == "__main__":
    main()
