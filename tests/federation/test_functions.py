"""The stock functions, what a transfer takes, and what an observer sees."""

import pytest
import torch
from torch import Tensor

from graphfed.federation import CLIENTS, SERVER, Federation, Located
from graphfed.federation.functions import as_leaves, constant, detach, full_like, sum_over_clients
from graphfed.nn.sparse import SparseMatrix, SparseWeights


def weights_at_server(fed: Federation) -> Located:
    return fed.locate(SERVER, "w", [{"w": torch.tensor([1.0, 2.0])}])


def squared(weights: dict[str, Tensor]) -> Tensor:
    return (weights["w"] ** 2).sum()


@pytest.mark.parametrize(("cut", "expected"), [(False, [2.0, 4.0]), (True, [0.0, 0.0])])
def test_no_gradient_goes_back_from_what_is_detached(cut: bool, expected: list[float]) -> None:
    fed = Federation([(0,)])
    leaves = fed.server.run(as_leaves, weights_at_server(fed))
    with fed.tape():
        received = fed.broadcast(leaves, name="model")
        used = fed.clients.run(detach, received) if cut else received
        fed.backward(fed.clients.run(squared, used))
    assert fed.gradients(leaves).parts[0]["w"].tolist() == expected


def test_whole_numbers_and_sparse_rows_are_no_leaves_and_sparse_weights_are() -> None:
    rows = SparseMatrix.from_dense(torch.eye(2))
    weights = SparseWeights.expand(torch.ones(2, 3), torch.tensor([0, 1]), torch.tensor([1, 0]), 2)
    leaves = as_leaves({"n": torch.arange(3), "rows": rows, "w": weights})
    assert not leaves["n"].requires_grad
    assert leaves["rows"] is rows
    assert leaves["w"].values.requires_grad
    assert leaves["w"].values.is_leaf


def test_a_constant_is_a_number_without_dimensions_and_whole_numbers_stay_whole() -> None:
    assert constant(3).dtype == torch.int64
    assert constant(3).shape == ()
    assert constant(0.5).item() == 0.5


def test_totals_and_constants_have_the_form_of_their_payload() -> None:
    payload = {"a": torch.tensor([[1, 2], [3, 4]]), "b": (torch.tensor([0.5, 1.5]),)}
    total = sum_over_clients(payload)
    assert total["a"].tolist() == [4, 6]
    assert total["b"][0].item() == 2.0
    filled = full_like(payload, 7)
    assert filled["a"].tolist() == [[7, 7], [7, 7]]
    assert filled["b"][0].tolist() == [7.0, 7.0]


@pytest.mark.parametrize("options", [{"name": "x", "protecton": "plaintext"}, {"protection": "plaintext"}])
def test_a_transfer_refuses_an_option_that_it_does_not_have_and_needs_a_name(options: dict[str, str]) -> None:
    fed = Federation([(0,)])
    x = fed.locate(CLIENTS, "x", [torch.ones(1, 2)])
    for transfer in (fed.gather, fed.collect, fed.sum):
        with pytest.raises(TypeError, match=r"'protecton'|'name'"):
            transfer(x, **options)
    assert fed.ledger.entries == []


def test_an_observer_sees_every_message_by_name_sender_and_receiver() -> None:
    fed, seen = Federation([(0,), (1,)]), []
    fed.observe(lambda name, messages: seen.append((name, sorted(messages))))
    fed.broadcast(weights_at_server(fed), name="model")
    fed.sum(fed.locate(CLIENTS, "x", [torch.ones(2), torch.ones(2)]), name="total")
    fed.control(dict, name="decision")
    assert seen == [
        ("model", [(-1, 0), (-1, 1)]),
        ("total", [(0, -1), (1, -1)]),
        ("decision", [(-1, 0), (-1, 1)]),
    ]
