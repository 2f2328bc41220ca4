"""Record what generated neighbours add to averaging: the accuracy of FedSage (FedAvg on GraphSAGE), FedSage+
and FedSage+ without gradients from other clients' features, with training alone and on the whole graph.

As in the paper (Zhang et al., NeurIPS 2021): clients by Louvain, without their cross-client edges, and 60 %
of the nodes for training, 20 % each for validation and test; here 5 clients. All rows have GraphSAGE and the
defaults; a seed draws split and partition too, seeds 0 to 4. An accuracy is over all clients' test nodes,
each scored at its client; a pooled one is that of the same weights on the whole graph. Differences are paired
by seed, with the 95 % interval of Student's t distribution.

The figures of the paper could not be read here. The published ones are of FederatedScope-GNN's documentation:
5 clients by Louvain, random splits with many labels, GraphSAGE, and settings from its grid of learning rates
and local steps."""

import argparse
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import torch
from measure import add_common_options, finish, load_average

import graphfed
from graphfed.studies.paired import paired_difference

ROWS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "isolated": ("isolated", {}),
    "fedsage": ("fedavg", {}),
    "alone": ("fedsage_plus", {"cross_steps": 0}),
    "fedsage_plus": ("fedsage_plus", {}),
    "central": ("central", {}),
}
GRAPHS = ("cora", "lastfm")
PUBLISHED = {"cora": {"fedsage": {"mean": 87.19, "std": 1.28}, "fedsage_plus": {"mean": 87.68, "std": 1.55}}}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    add_common_options(parser, "missing_neighbours")
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    began, load_before = time.perf_counter(), load_average()
    asked = {
        "clients": 5,
        "partition": "louvain",
        "split": "random:0.6,0.2,0.2",
        "threads": options.threads,
        **({"rounds": 2} if options.tiny else {}),
    }
    quick = {"generator_steps": 2, "cross_steps": 1} if options.tiny else {}
    seeds = (0, 1) if options.tiny else (0, 1, 2, 3, 4)
    graphs: dict[str, Any] = {}
    for data in ("digits",) if options.tiny else GRAPHS:
        rows: dict[str, Any] = {}
        for name, (method, own) in ROWS.items():
            settings = {"backbone": "sage", **(quick if method == "fedsage_plus" else {}), **own}
            runs = [
                graphfed.run(method, data=data, seed=seed, settings=settings, out=False, **asked)
                for seed in seeds
            ]
            rows[name] = {
                "settings": settings,
                "test": spread([100 * run.test["accuracy"] for run in runs]),
                "bytes": sum(run.bytes["total"] for run in runs) / len(runs),
            }
            if runs[0].details.get("test_pooled"):
                rows[name]["pooled"] = spread([100 * run.details["test_pooled"]["accuracy"] for run in runs])
        base = rows["fedsage"]["test"]["values"]
        for name in ("alone", "fedsage_plus"):
            difference = paired_difference(rows[name]["test"]["values"], base)
            assert difference is not None
            rows[name]["over_fedsage"] = asdict(difference)
        graphs[data] = {"rows": rows, "published": PUBLISHED.get(data, {})}
        print(data, {name: round(row["test"]["mean"], 1) for name, row in rows.items()}, flush=True)
    finish(options.out, began, load_before, {**asked, "seeds": seeds, "graphs": graphs})


def spread(values: list[float]) -> dict[str, Any]:
    """Return mean, deviation and values, in percent."""
    found = torch.tensor(values, dtype=torch.float64)
    return {"mean": float(found.mean()), "std": float(found.std()), "values": values}


if __name__ == "__main__":
    main()
