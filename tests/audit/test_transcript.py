"""A repeated run sends the messages of the run, and what a check asks for of them is recorded."""

import numpy as np
import pytest
import torch
from audited_runs import finished as open_run

import graphfed
from graphfed.audit.base import AuditedRun
from graphfed.audit.transcript import ObservedTransfer, record_rounds
from graphfed.files import read_tensors

ROUNDS = 5


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> AuditedRun:
    folder = tmp_path_factory.mktemp("transcript") / "run"
    graphfed.run(
        "attention_sums", data="digits", clients=3, rounds=ROUNDS, threads=1, eval_every=2, out=folder
    )
    return open_run(folder)


def model(transfer: ObservedTransfer) -> object:
    return transfer.payload if transfer.name == "model" else None


def test_all_rounds_are_those_of_the_run(finished: AuditedRun) -> None:
    """The ledger of the run counts the same messages, and the last weights are those that were saved."""
    again = finished.record(model)
    assert (again.rounds, again.complete) == (ROUNDS, True)
    assert {t.name for t in again.observed_transfers} == {"model"}
    trained = [t.round for t in again.observed_transfers if t.phase == "train"]
    assert trained == [1, 2, 3, 4, 5]
    evaluated = [t.round for t in again.observed_transfers if t.phase == "eval"]
    assert evaluated == [2, 4, 5], "every second round and the last one"
    entries = [entry for entry in finished.ledger.entries if entry.name == "model"]
    assert sum(entry.transfers for entry in entries) == len(again.observed_transfers)
    saved = read_tensors(finished.folder / "model.safetensors")[0]
    (last,) = [t for t in again.observed_transfers if t.phase == "predict"]
    for name, values in last.payload.items():
        assert np.array_equal(values.numpy(), saved[name])


def test_what_is_kept_is_a_copy_and_nothing_else_is_held(finished: AuditedRun) -> None:
    rows = finished.record(lambda t: t.payload[:2] if t.name == "attention_sums/scores" else None)
    for transfer in rows.observed_transfers:
        assert transfer.payload.shape == (2, transfer.payload.shape[1])
        assert transfer.payload.untyped_storage().nbytes() == transfer.payload.nbytes
    weights = [t.payload["layers.0.weight"] for t in finished.record(model).observed_transfers]
    assert not torch.equal(weights[0], weights[-1])


def test_recording_ends_after_the_rounds_asked_for_and_with_the_room(finished: AuditedRun) -> None:
    config, inputs = finished.config, finished.inputs
    two = record_rounds(config, inputs, rounds=2)
    assert (two.rounds, two.complete) == (2, False)
    assert {t.round for t in two.observed_transfers} == {0, 1, 2}
    assert {"setup", "train", "eval"} == {t.phase for t in two.observed_transfers}
    everything = record_rounds(config, inputs)
    early = [t for t in everything.observed_transfers if t.round <= 2]
    assert [t.name for t in early[: len(two.observed_transfers)]] == [t.name for t in two.observed_transfers]
    assert record_rounds(config, inputs, most_bytes=1).rounds == 1, "one whole round at least"
    of_model = sum(w.nbytes for w in everything.first("model", "train", to_server=False).payload.values())
    assert record_rounds(config, inputs, keep=model, most_bytes=of_model).rounds == 1
    assert record_rounds(config, inputs, keep=model, most_bytes=4 * of_model).rounds == 3
    assert record_rounds(config, inputs, rounds=0).rounds == 0
