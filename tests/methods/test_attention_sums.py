"""attention_sums: predictions and gradients are those of a dense GAT; what is hidden, what is not, and what
each participant receives."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from law_fixtures import float64, three_clients
from torch import Tensor
from torch.nn.functional import cross_entropy, elu, leaky_relu, softmax
from worlds import (
    PLACEMENTS,
    ThreeWorkers,
    Watched,
    World,
    by_node,
    cohorts_of,
    config_of,
    last_round_stands,
    make_world,
    one_node_each,
    pooled,
    run_local,
    run_processes,
)

import graphfed
from graphfed.crypto.sharing import FRACTION_BITS, decode
from graphfed.data.graphs.graph import Split, make_graph
from graphfed.data.partitions.partition import from_assignment
from graphfed.errors import InputError
from graphfed.federation import Federation
from graphfed.methods.attention_sums.attention import LARGEST_SCORE, Pattern, neighbour_parts
from graphfed.methods.attention_sums.method import METHOD
from graphfed.methods.attention_sums.neighbour_sums import Masks, mask_parts
from graphfed.methods.base import State
from graphfed.methods.common.local_training import initial_weights
from graphfed.methods.parts import is_simulated
from graphfed.nn.sparse import SparseMatrix
from graphfed.runs.run import Result

__all__ = ["float64", "three_clients"]

NAME = "attention_sums"
SCORES, PARTS = f"{NAME}/scores", f"{NAME}/parts"
#: A round is one step of plain gradient descent.
ONE_STEP = {"optimizer": "sgd", "rounds": 1, "lr": 0.1, "weight_decay": 0.0, "features": "raw"}


# ---- a dense GAT, written from the formulas ----------------------------------------------------------------


def features(world: World) -> Tensor:
    x = world.graph.x
    return torch.from_numpy(np.asarray(x.todense() if hasattr(x, "todense") else x)).double()


def adjacency(world: World) -> Tensor:
    """[N, N] bool, with self-loops."""
    linked = torch.eye(world.graph.num_nodes, dtype=torch.bool)
    u, v = torch.from_numpy(world.graph.edges)
    linked[u, v] = linked[v, u] = True
    return linked


def dense_gat(world: World, weights: dict[str, Tensor], layers: int) -> Tensor:
    """Logits of all nodes; Velickovic et al. 2018, Eqs. (1) to (6), with [N, N] matrices."""
    h, linked = features(world), adjacency(world)
    for layer in range(layers):
        w, source, target, bias = (
            weights[f"layers.{layer}.{name}"] for name in ("weight", "att_src", "att_dst", "bias")
        )
        outputs = []
        for head, z in enumerate((h @ w).chunk(len(source), 1)):
            score = leaky_relu((z @ target[head])[:, None] + (z @ source[head])[None], 0.2)
            outputs.append(softmax(score.masked_fill(~linked, -torch.inf), 1) @ z)
        h = elu(torch.cat(outputs, 1) + bias) if layer < layers - 1 else sum(outputs) / len(outputs) + bias
    return h


def dense_step(world: World, config: Any) -> tuple[Tensor, dict[str, Tensor]]:
    """The logits of all nodes after one step of gradient descent, and the gradient."""
    weights = {
        name: w.double().requires_grad_()
        for name, w in initial_weights(world.task, config.network, config.run.seed, "cpu").items()
    }
    train = torch.from_numpy(world.split.train)
    y = torch.from_numpy(world.graph.y)
    cross_entropy(dense_gat(world, weights, config.network.layers)[train], y[train]).backward()
    gradients = {name: w.grad for name, w in weights.items()}
    stepped = {name: (w - config.training.lr * gradients[name]).detach() for name, w in weights.items()}
    return dense_gat(world, stepped, config.network.layers), gradients


def set_up(
    world: World, placement: str = "stacked", fed: Federation | None = None, **settings: Any
) -> tuple[Federation, State, Any]:
    config = config_of(METHOD, **settings)
    fed = fed or PLACEMENTS[placement](world.clients, simulated=is_simulated(config))
    data = fed.locate("clients", "data", cohorts_of(world, fed.workers, config))
    return fed, METHOD.setup(fed, data, world.task, config), config


def gradient_of(world: World, placement: str, **settings: Any) -> dict[str, Tensor]:
    """The mean gradient, from the step that the server takes with it."""
    fed, state, config = set_up(world, placement, **{**ONE_STEP, **settings})
    before = {name: w.clone() for name, w in state.weights.parts[0].items()}
    with fed.phase("train", round_number=1):
        after = METHOD.round(fed, state, config, 1).weights.parts[0]
    return {name: (before[name] - after[name]) / config.training.lr for name in before}


@pytest.mark.parametrize(("layers", "output_heads"), [(1, 1), (2, 1), (3, 1), (1, 3), (2, 8)])
@pytest.mark.parametrize("clients", [2, 3, 5, 10])
@pytest.mark.sampled(5)
def test_gradients_and_predictions_are_those_of_a_dense_gat(
    clients: int, layers: int, output_heads: int
) -> None:
    for placement, sparse in (("stacked", True), ("one at a time", False)):
        world = last_round_stands(make_world(clients, clients=clients, sparse=sparse))
        settings = {**ONE_STEP, "layers": layers, "output_heads": output_heads}
        expected, gradients = dense_step(world, config_of(METHOD, **settings))
        found = gradient_of(world, placement, layers=layers, output_heads=output_heads)
        for name, gradient in gradients.items():
            assert torch.allclose(found[name], gradient, rtol=0, atol=1e-9), name
        outcome, _ = run_local(NAME, world, placement, **settings)
        assert torch.allclose(by_node(outcome, world), expected, rtol=0, atol=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize(("exchange", "output_heads"), [("plaintext", 1), ("secure", 1), ("plaintext", 3)])
def test_in_processes_it_is_the_dense_gat(
    exchange: str, output_heads: int, three_clients: ThreeWorkers
) -> None:
    world = last_round_stands(make_world(1))
    settings = {**ONE_STEP, "output_heads": output_heads}
    expected, _ = dense_step(world, config_of(METHOD, **settings))
    outcome, _ = run_processes(NAME, world, three_clients, **settings, exchange=exchange)
    off = 1e-9 if exchange == "plaintext" else 1e-5
    assert torch.allclose(by_node(outcome, world), expected, rtol=0, atol=off)


@pytest.mark.parametrize("output_heads", [1, 3])
@pytest.mark.parametrize("aggregation", ["plaintext", "secure"])
def test_with_dropout_it_is_central_training(aggregation: str, output_heads: int) -> None:
    """The draws of inputs and of attention are those of central training, at whichever client an edge is."""
    world = last_round_stands(make_world(2, clients=4))
    settings = {"dropout": 0.4, "rounds": 3, "optimizer": "sgd", "features": "raw", "weight_decay": 1e-2}
    settings |= {"output_heads": output_heads}
    ours, _ = run_local(NAME, world, **settings, aggregation=aggregation)
    central, _ = run_local("central", world, **settings, backbone="gat", local_steps=1)
    off = 1e-9 if aggregation == "plaintext" else 1e-5
    assert torch.allclose(by_node(ours, world), by_node(central, pooled(world)), rtol=0, atol=off)


def test_a_client_for_every_node_is_the_dense_gat() -> None:
    world = last_round_stands(one_node_each(make_world(3, nodes=30)))
    expected, _ = dense_step(world, config_of(METHOD, **ONE_STEP))
    outcome, _ = run_local(NAME, world, **ONE_STEP)
    assert torch.allclose(by_node(outcome, world), expected, rtol=0, atol=1e-9)


# ---- stability ---------------------------------------------------------------------------------------------


def test_scores_of_any_size_as_a_target_do_not_overflow() -> None:
    """a_i = 1e4 would overflow exp in float64; the shifted exponent stays between c_j and 0.2 c_j."""
    matrix = SparseMatrix.from_coo(torch.zeros(2).long(), torch.arange(2), torch.ones(2), (1, 2))
    pattern = Pattern(matrix, torch.arange(2))
    z, source = torch.tensor([[1.0], [2.0]]), torch.tensor([[3.0], [-4.0]])
    for a in (-1e4, 0.0, 1e4):
        target = torch.tensor([[a]])
        parts = neighbour_parts(pattern, z, source, target, None, 0)[0]
        assert torch.isfinite(parts).all()
        alpha = softmax(leaky_relu(a + source[:, 0], 0.2), 0)
        assert torch.allclose(parts[0] / parts[1], alpha @ z[:, 0], rtol=1e-12)


def test_scores_that_would_overflow_are_refused() -> None:
    world = make_world()
    with pytest.raises(InputError, match=f"at most {LARGEST_SCORE:g}; training has diverged"):
        run_local(NAME, world, **{**ONE_STEP, "rounds": 30, "lr": 1e4})


# ---- exchange=secure ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("clients", [3, 6])
def test_hidden_totals_are_off_by_the_rounding_that_is_stated(clients: int) -> None:
    """n parts are each off by at most 2^-25; divided by the denominator D_i, a mean is off by at most
    n 2^-25 (1 + |mean|) / (D_i - n 2^-25), with D_i >= exp(-|c_i|) from the node itself."""
    world = make_world(1, clients=clients)
    heads, layer = 1, {"layers": 1, "features": "raw"}
    results = {}
    for exchange in ("plaintext", "secure"):
        fed, state, config = set_up(world, exchange=exchange, **layer)
        results[exchange] = torch.cat(list(METHOD.predict(fed, state, config, "all").parts))
    weights = {n: w.double() for n, w in state.weights.parts[0].items()}
    ids = torch.from_numpy(world.partition.held_id)
    z = (features(world) @ weights["layers.0.weight"])[ids]
    c = z @ weights["layers.0.att_src"][heads - 1]
    step = (clients - 1) * 2.0 ** -(FRACTION_BITS + 1)
    means = (results["plaintext"] - weights["layers.0.bias"]).abs()
    bound = step * (1 + means) / ((-c.abs()).exp() - step)[:, None]
    off = (results["secure"] - results["plaintext"]).abs()
    assert (off <= bound + 1e-12).all()
    assert off.max() > 1e-12, "something was rounded"


def test_hidden_training_is_that_in_plaintext_up_to_rounding() -> None:
    world = last_round_stands(make_world(4, clients=5))
    plain, _ = run_local(NAME, world, dropout=0.3)
    hidden, _ = run_local(NAME, world, dropout=0.3, exchange="secure", aggregation="secure")
    assert torch.allclose(by_node(plain, world), by_node(hidden, world), rtol=0, atol=1e-4)


def one_hub(clients: int = 4) -> World:
    """Node 0 at client 0 is a neighbour of one node at each of the other clients."""
    n = clients
    graph = make_graph(
        "hub",
        np.eye(n, 5, dtype=np.float32),
        np.arange(n) % 3,
        np.stack([np.zeros(n - 1, dtype=int), np.arange(1, n)]),
        num_classes=3,
    )
    mask = np.arange(n) == 0
    split = Split("hub", mask, np.arange(n) == 1, np.arange(n) == 2)
    return World(graph, split, from_assignment(graph, np.arange(n), num_clients=n))


def received(fed: Watched, name: str, owner: int) -> list[Tensor]:
    return [payload for seen, (_, to), payload in fed.seen if seen == name and to == owner]


def test_masked_parts_are_new_words_in_every_use_and_open_to_their_total() -> None:
    world = one_hub()
    fed = Watched([(k,) for k in range(4)])
    fed, state, config = set_up(world, fed=fed, exchange="secure", layers=1)
    METHOD.predict(fed, state, config, "all")
    METHOD.predict(fed, state, config, "all")
    sent = torch.cat(received(fed, PARTS, 0)).view(2, 3, -1)
    assert (sent[0] != sent[1]).all(), "a mask is used once"
    assert torch.equal(sent[0].sum(0), sent[1].sum(0)), "the weights are the same, and the masks cancel"
    plain = Watched([(k,) for k in range(4)])
    plain, state, config = set_up(world, fed=plain, layers=1)
    METHOD.predict(plain, state, config, "all")
    parts = torch.cat(received(plain, PARTS, 0))
    assert torch.allclose(decode(sent[0].sum(0), torch.float64), parts.sum(0), atol=3 * 2.0**-25)
    # Words of masks are uniform: none of these 36 is in the range of the parts, 2^33 of 2^64 (2e-8 at most).
    assert (decode(sent, torch.float64).abs() > 2**8).all()


def test_fewer_than_three_clients_cannot_hide_sums() -> None:
    """Each protection names the setting that asked for it."""
    with pytest.raises(
        InputError, match=r"exchange=secure needs 3 .* this run has 2.* or exchange=plaintext"
    ):
        run_local(NAME, make_world(clients=2), exchange="secure")
    with pytest.raises(InputError, match=r"needs 3 to .* this round has 2.* or aggregation=plaintext"):
        run_local(NAME, make_world(clients=2), aggregation="secure")


# ---- what each participant learns --------------------------------------------------------------------------


def test_the_sum_over_one_neighbour_is_that_neighbours() -> None:
    """Each other client has one neighbour of node 0: in plaintext its client reads W h_j of every head."""
    fed = Watched([(k,) for k in range(4)])
    fed, state, config = set_up(one_hub(), fed=fed, layers=2, heads=3)
    METHOD.predict(fed, state, config, "all")
    w = state.weights.parts[0]["layers.0.weight"]
    width = 3 * (config.network.hidden + 1)
    parts = [payload for payload in received(fed, PARTS, 0) if payload.shape[1] == width]
    for k, part in enumerate(parts, start=1):
        by_head = part.view(3, -1)
        found = (by_head[:, :-1] / by_head[:, -1:]).flatten()
        assert torch.allclose(found, w[k], atol=1e-12), "the features of node k are a unit vector"


def test_sums_of_several_rounds_give_the_features() -> None:
    """A round has 4 linear functions of the 5 features of each neighbour, and the next round 4 others."""
    fed = Watched([(k,) for k in range(4)])
    fed, state, config = set_up(one_hub(), fed=fed, layers=2, heads=2, hidden=2, lr=1.0, optimizer="sgd")
    equations: list[Tensor] = []
    for number in range(1, 7):
        equations.append(state.weights.parts[0]["layers.0.weight"].clone())
        with fed.phase("train", round_number=number):
            state = METHOD.round(fed, state, config, number)
    parts = [payload for payload in received(fed, PARTS, 0) if payload.shape[1] == 2 * 3]
    assert len(parts) == 3 * 6
    system = torch.cat(equations, 1).T
    for k in range(1, 4):
        sums = torch.cat([part.view(2, 3) for part in parts[k - 1 :: 3]])
        found = torch.linalg.lstsq(system, (sums[:, :-1] / sums[:, -1:]).flatten()[:, None], driver="gelsd")
        assert torch.allclose(found.solution[:, 0], torch.eye(4, 5, dtype=torch.float64)[k], atol=1e-6)


@pytest.mark.parametrize("heads", [1, 3])
def test_the_gradient_of_the_last_layer_shows_the_label_of_a_training_node(heads: int) -> None:
    """In the gradient of the sum of every output head."""
    for exchange in ("plaintext", "secure"):
        world = one_hub()
        fed = Watched([(k,) for k in range(4)])
        fed, state, config = set_up(world, fed=fed, layers=1, exchange=exchange, output_heads=heads)
        with fed.phase("train", round_number=1):
            METHOD.round(fed, state, config, 1)
        gradients = [
            payload
            for name, (source, _), payload in fed.seen
            if name.startswith(f"{PARTS}/grad") and source == 0
        ]
        gradients = [g[0] if isinstance(g, tuple) else g for g in gradients]
        assert len(gradients) == 3, "every client with a neighbour receives it"
        for gradient in gradients:
            assert (gradient.view(heads, -1)[:, :-1].argmin(1) == int(world.graph.y[0])).all()


def test_the_server_receives_no_feature_embedding_or_edge() -> None:
    _, fed = run_local(NAME, make_world(), exchange="secure", aggregation="secure")
    own = {e.name for e in fed.ledger.entries if e.name.startswith(f"{NAME}/")}
    through_server = {
        f"{NAME}/keys",
        f"{NAME}/all_keys",
        *(n for n in own if n.startswith(f"{NAME}/gradient")),
    }
    to_or_from_server = {e.name for e in fed.ledger.entries if e.direction != "peer"}
    assert own & to_or_from_server == through_server


# ---- min_group ---------------------------------------------------------------------------------------------


def group_sizes(world: World, *, totals: bool) -> dict[Any, int]:
    """The neighbours at other clients of each node, in parts by client or together."""
    client = dict(zip(world.partition.held_id.tolist(), world.partition.held_client.tolist(), strict=True))
    sizes: dict[Any, int] = {}
    for u, v in world.graph.edges.T.tolist():
        for i, j in ((u, v), (v, u)):
            if client[i] != client[j]:
                group = i if totals else (i, client[j])
                sizes[group] = sizes.get(group, 0) + 1
    return sizes


@pytest.mark.parametrize("exchange", ["plaintext", "secure"])
def test_sums_below_min_group_are_not_sent(exchange: str) -> None:
    world = make_world(5, clients=4)
    sizes = group_sizes(world, totals=exchange == "secure")
    assert min(sizes.values()) < 3 <= max(sizes.values())
    parts = group_sizes(world, totals=False)
    kept = [part for part in parts if sizes[part[0] if exchange == "secure" else part] >= 3]
    fed, state, config = set_up(world, exchange=exchange, min_group=3, layers=1)
    METHOD.predict(fed, state, config, "all")
    sent = [e for e in fed.ledger.entries if e.name == PARTS]
    assert sum(e.bytes for e in sent) == len(kept) * 4 * 8


def test_with_min_group_the_network_has_no_edges_of_small_groups() -> None:
    """It is the dense GAT without the edges towards the nodes whose sums are left out."""
    world = last_round_stands(make_world(5, clients=4))
    client = torch.from_numpy(world.partition.held_client)[
        torch.argsort(torch.from_numpy(world.partition.held_id))
    ]
    linked = adjacency(world)
    for k in range(4):
        remote = linked & (client[None] == k) & (client[:, None] != k)
        linked[(remote.sum(1) < 2)[:, None] & remote] = False
    fed, state, config = set_up(world, min_group=2, layers=1, features="raw")
    found = torch.cat(list(METHOD.predict(fed, state, config, "all").parts))
    weights = {name: w.double() for name, w in state.weights.parts[0].items()}
    z = features(world) @ weights["layers.0.weight"]
    a, c = (z @ weights[f"layers.0.att_{end}"][0] for end in ("dst", "src"))
    alpha = softmax(leaky_relu(a[:, None] + c[None], 0.2).masked_fill(~linked, -torch.inf), 1)
    expected = alpha @ z + weights["layers.0.bias"]
    ids = torch.from_numpy(world.partition.held_id)
    assert torch.allclose(found, expected[ids], rtol=0, atol=1e-9)


@pytest.mark.slow
def test_masks_cancel_in_a_run_that_goes_on_in_new_processes(tmp_path: Path) -> None:
    """All processes make new keys and count their masks from the beginning; otherwise totals were noise."""
    settings = {"exchange": "secure", "protocols": "real", "hidden": 4}
    options: dict[str, Any] = {"rounds": 3, "clients": 3, "runtime": "processes", "threads": 1}
    folder = tmp_path / "run"
    whole = graphfed.run(NAME, out=folder, checkpoint_every=0, settings=settings, **options)
    # As if it had been killed in its last round.
    (folder / "result.json").unlink()
    shutil.rmtree(folder / "checkpoint" / "round-00000003")
    again = graphfed.resume(folder)
    assert isinstance(again, Result)
    assert (again.val, again.test) == (whole.val, whole.test)


def test_a_part_above_the_fixed_point_is_refused_with_the_exchange_that_holds_it() -> None:
    """A source score of 30 is in the range of exchange=plaintext, and exp(30) is not in that of a sum."""
    parts = torch.tensor([[float(np.exp(30.0))]])
    with pytest.raises(InputError, match=r"exchange=secure has .* up to about 26: .* or exchange=plaintext"):
        mask_parts(Masks(()), parts, 3)
