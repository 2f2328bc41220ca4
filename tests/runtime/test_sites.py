"""A training run in separate processes leaves no raw data on the disk while it trains."""

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from graphfed.data.graphs.graph import Split, make_graph
from graphfed.data.partitions.partition import from_assignment
from graphfed.errors import InputError
from graphfed.federation import Federation
from graphfed.federation.cohort import Cohort, make_cohort
from graphfed.methods.base import Task
from graphfed.methods.registry import get_method
from graphfed.random import fold, permutation
from graphfed.runs import processes as experiment_sites
from graphfed.runs.checkpoint import newest_round, process_names
from graphfed.runs.processes import run_worker, train_in_processes
from graphfed.runs.train import Event
from graphfed.runtime.processes import Workers
from graphfed.tasks.registry import default_settings


def two_clients() -> list[Cohort]:
    """A ring of twelve nodes, every second one at client 1."""
    rng = np.random.default_rng(0)
    node = np.arange(12)
    graph = make_graph(
        "ring", rng.normal(size=(12, 3)), node % 2, np.stack([node, (node + 1) % 12]), num_classes=2
    )
    split = Split("random", node < 6, (node >= 6) & (node < 9), node >= 9)
    partition = from_assignment(graph, node // 6, num_clients=2)
    return [make_cohort(graph, split, partition, [k]) for k in range(2)]


@pytest.mark.slow
def test_sites_remove_their_data_files_before_training_and_use_the_threads_asked_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """So a caller that is killed while the workers train leaves no raw data behind."""
    given: list[int] = []
    written: list[str] = []
    left: dict[str, list[Path]] = {}

    class Recorded(Workers):
        def __init__(self, workers: Any, *, threads: int) -> None:
            given.append(threads)
            super().__init__(workers, threads=threads)

        def run(self, program: str, arguments: dict[int, Any], **options: Any) -> dict[int, Any]:
            written.extend(path.name for path in tmp_path.rglob("*.safetensors"))
            return super().run(program, arguments, **options)

    def on_event(event: Event) -> None:
        left[event.phase] = list(tmp_path.rglob("*.safetensors"))

    monkeypatch.setattr(experiment_sites, "Workers", Recorded)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    method = get_method("fedavg")
    config = method.configure({"rounds": 1, "hidden": 2}, default_settings(method, preset="paper"))
    outcome, _ = train_in_processes(method, two_clients(), Task(3, 2), config, on_event=on_event, threads=2)
    assert outcome.rounds_run == 1
    assert given == [2]
    assert sorted(written) == ["worker0.safetensors", "worker1.safetensors"]
    assert left["train"] == []
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_a_run_whose_worker_was_behind_goes_on_from_a_round_that_all_processes_have(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Absent clients send nothing, so the others do not wait for their worker."""
    monkeypatch.setattr(experiment_sites, "PROGRAM", "runtime_programs:lagging_worker")
    method = get_method("fedavg")
    settings = {"rounds": 9, "hidden": 2, "fraction": 0.5, "eval_every": 9, "optimizer_at": "clients"}

    def absent(seed: int) -> bool:
        """Whether client 1 takes part in none of the rounds 3 to 6."""
        return all(permutation(fold(seed, "roster", number), 2)[0] == 0 for number in range(3, 7))

    seed = next(seed for seed in range(1000) if absent(seed))
    config = method.configure({**settings, "seed": seed}, default_settings(method))

    def kill(event: Event) -> None:
        if event.phase == "train" and event.round == 6:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train_in_processes(
            method, two_clients(), Task(3, 2), config, on_event=kill, checkpoints=(tmp_path, 0.0, None)
        )
    assert newest_round(tmp_path, process_names(2, separate=True))[0] == 1


def test_a_data_file_that_cannot_be_read_is_removed_all_the_same(tmp_path: Path) -> None:
    path = tmp_path / "worker0.safetensors"
    path.write_bytes(b"not a cohort")
    dtype = str(torch.get_default_dtype()).removeprefix("torch.")
    arguments = {"dtype": dtype, "data": str(path), "task": {"name": "classification"}}
    with pytest.raises(InputError, match="is not a cohort file"):
        run_worker(Federation([(0,)]), arguments, print)
    assert not path.exists()
