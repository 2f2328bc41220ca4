"""Golden runs: every registered method on small data, for every task and every protection that it has.

A golden run goes through `graphfed.run` as a user's does: one process, all clients stacked, float64. What it
found is kept in golden.json and must stay equal, so that code can move without its results moving. The
expected values are copied from the program's own output: they prove that nothing moved, and nothing else.
The laws and the independent programs under tests/laws say that they are right.

    python tests/golden/golden_runs.py        write golden.json again, after an intended change
"""

import dataclasses
import json
import os
import sys
import tempfile
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

import numpy as np
import torch
from safetensors.numpy import load_file

if TYPE_CHECKING:
    from graphfed.methods.base import Method

RECORD = Path(__file__).with_name("golden.json")

#: Names of transfers that differ from those in golden.json while the code moves: {recorded: now}.
RENAMED_TRANSFERS: Mapping[str, str] = {}

#: The key that clients share in runs with node_ids=keyed.
CLIENTS_KEY = {"GRAPHFED_CLIENTS_KEY": "5c" * 32}

#: Settings that make a run small, for the methods that have them. The noise of local differential privacy
#: repeats only with a seed of its own.
SMALL = {
    "hidden": 4,
    "rounds": 3,
    "eval_every": 1,
    "noise_seed": 0,
    "feature_low": -4.0,
    "feature_high": 4.0,
    "shuffle_rounds": 2,
    "heads": 2,
    "policy": "constant",
    "lags": 4,
    "horizon": 3,
    "mcmc_iterations": 5,
}


@dataclasses.dataclass(frozen=True)
class GoldenRun:
    """One run.

    Args:
        method: The name of a registered method.
        task: The name of a task that the method has.
        settings: What differs from the method's defaults, beyond `SMALL`."""

    method: str
    task: str
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def name(self) -> str:
        """Return the key in golden.json."""
        return " ".join([self.method, self.task, *(f"{key}={value}" for key, value in self.settings.items())])


def golden_runs() -> list[GoldenRun]:
    """Return every golden run, made from the registry.

    Each method runs with the settings of both presets on each of its tasks. On its first task it also runs
    with every protection that is not the default one, its protocols real and simulated."""
    from graphfed.federation.secure.protection import PLAINTEXT
    from graphfed.methods.registry import METHODS, get_method
    from graphfed.methods.settings import values as settings_of
    from graphfed.tasks.base import PRESETS

    runs = []
    for name in METHODS.own:
        method = get_method(name)
        runs += [GoldenRun(name, task, {"preset": preset}) for task in method.tasks for preset in PRESETS]
        default = settings_of(method.configure({}))
        protocols = choices(method, "protocols")
        found: list[dict[str, Any]] = []
        for setting, values in method.protections.items():
            for value in values:
                if value == PLAINTEXT:
                    found.append({setting: value})
                else:
                    found += [{setting: value, "protocols": form} for form in protocols]
        if protocols and default["protocols"] != "real":  # it has protocols whatever its settings
            found.append({"protocols": "real"})
        found += [{"node_ids": value} for value in choices(method, "node_ids")]
        runs += [
            GoldenRun(name, method.tasks[0], settings)
            for settings in found
            if any(value != default[key] for key, value in settings.items() if key != "protocols")
            or list(settings) == ["protocols"]
        ]
    return runs


def choices(method: "Method", name: str) -> tuple[Any, ...]:
    """Return the values that a setting chooses among; none if the method does not have the setting."""
    if name not in method.tree.names:
        return ()
    leaf = next(leaf for leaf in method.tree.leaves if leaf.name == name)
    return method.tree.choices(leaf) or typing.get_args(leaf.field.annotation)


def make_graph() -> Any:
    """Return a graph of 48 nodes with 3 classes, as PyG's `Data`."""
    from torch_geometric.data import Data

    rng = np.random.default_rng(7)
    labels = rng.integers(0, 3, 48)
    ends = rng.integers(0, 46, (2, 220))  # the last two nodes have no edge
    kept = (labels[ends[0]] == labels[ends[1]]) | (rng.random(220) < 0.25)
    edges = ends[:, kept & (ends[0] != ends[1])]
    features = rng.normal(0, 1, (48, 9)) + 1.5 * (np.arange(9) % 3 == labels[:, None])
    return Data(
        x=torch.from_numpy(features.astype(np.float32)),
        y=torch.from_numpy(labels),
        edge_index=torch.from_numpy(np.concatenate([edges, edges[::-1]], axis=1)),
    )


def write_sensors(folder: Path) -> dict[str, Any]:
    """Write the readings of 5 sensors on a ring and their distances, and return their description."""
    rng = np.random.default_rng(8)
    steps, sensors = 90, 5
    wave = 50 + 15 * np.sin(np.arange(steps)[:, None] / 7 + np.arange(sensors))
    readings = (wave + rng.normal(0, 1, wave.shape)).round(3)
    lines = ["time," + ",".join(f"s{i}" for i in range(sensors))]
    for step, row in enumerate(readings):
        cells = ["" if rng.random() < 0.03 else str(value) for value in row]
        lines.append(f"2024-01-01T{step // 12:02d}:{step % 12 * 5:02d}:00," + ",".join(cells))
    (folder / "readings.csv").write_text("\n".join(lines) + "\n")
    ring = [(i, (i + hop) % sensors, 1.0 + i / 3) for i in range(sensors) for hop in (1, sensors - 1)]
    rows = [f"s{sender},s{receiver},{length:.3f}" for sender, receiver, length in ring]
    (folder / "distances.csv").write_text("\n".join(["from,to,distance", *rows]) + "\n")
    return {
        "readings": str(folder / "readings.csv"),
        "distances": str(folder / "distances.csv"),
        "step_minutes": 5,
        "name": "ring",
    }


def execute(golden_run: GoldenRun, device: str = "cpu") -> dict[str, Any]:
    """Run it on a device, and return what golden.json keeps of it."""
    import graphfed
    from graphfed.methods.registry import get_method
    from graphfed.methods.settings import only_those
    from graphfed.studies.plan import existing_settings

    method = get_method(golden_run.method)
    small = only_those(method.tree.names, SMALL)
    own = dict(golden_run.settings)
    settings = existing_settings(method, golden_run.task, small, own) | own
    forecasting = golden_run.task == "forecasting"
    one_client_per_row = forecasting or method.partition == "ego"
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with tempfile.TemporaryDirectory() as folder, mock.patch.dict(os.environ, CLIENTS_KEY):
            result = graphfed.run(
                golden_run.method,
                task=golden_run.task,
                data=write_sensors(Path(folder)) if forecasting else make_graph(),
                clients=None if one_client_per_row else 3,
                split="random:0.5,0.25,0.25" if golden_run.task == "classification" else "default",
                seed=1,
                threads=1,
                device=device,
                out=Path(folder) / "run",
                settings=settings,
            )
            weights = load_file(Path(folder) / "run" / "model.safetensors")
    finally:
        torch.set_default_dtype(before)
    return {
        "rounds": result.rounds,
        "best_round": result.best_round,
        "val": result.val,
        "test": result.test,
        "bytes": result.bytes["by_transfer"],
        "weights": {name: _digest(array) for name, array in weights.items()},
    }


def _digest(array: np.ndarray) -> list[Any]:
    """Return the shape of an array, the sum of its magnitudes and its product with a fixed vector, in which
    every entry counts with another weight."""
    flat = array.astype(np.float64).ravel()
    return [list(array.shape), float(np.abs(flat).sum()), float(flat @ np.cos(1.0 + np.arange(flat.size)))]


def main() -> None:
    """Write golden.json."""
    record = {}
    for golden_run in golden_runs():
        print(golden_run.name, file=sys.stderr)
        record[golden_run.name] = execute(golden_run)
    lines = [f"  {json.dumps(name)}: {json.dumps(found)}" for name, found in record.items()]
    RECORD.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()
