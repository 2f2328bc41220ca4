"""Rules of averaging (`methods.rules`): each is the plain loop of its paper, in every placement; FedSGD is
central training."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from protections import protection
from test_resuming import TRANSFERS, Crash, assert_same_bits, crash_at, resumed
from test_resuming import run as run_with_checkpoints
from torch import Tensor
from torch.nn.functional import cross_entropy
from worlds import (
    ThreeWorkers,
    World,
    by_node,
    config_of,
    last_round_stands,
    logits,
    make_world,
    pooled,
    run_local,
    run_processes,
)

import graphfed as gf
from graphfed.data.partitions.partition import from_assignment
from graphfed.errors import InputError
from graphfed.federation.cohort import Cohort, make_cohort
from graphfed.methods.common.local_training import Prepared, initial_weights, prepare_own
from graphfed.methods.registry import get_method
from graphfed.methods.settings import value
from graphfed.nn.backbones import Weights
from graphfed.nn.sparse import SparseMatrix, SparseWeights
from graphfed.runs.checkpoint import Checkpoints
from graphfed.runtime.interrupts import StopRequest

METHOD = get_method("distgat")
#: What a rule needs beside its name.
RULES = {
    "fedavg": {},
    "fedprox": {"mu": 0.7},
    "fedadam": {"server_lr": 0.05, "tau": 1e-2},
    "scaffold": {"optimizer": "sgd"},
    "fedsgd": {},
    "admm": {"rho": 0.3},
}
SETTINGS = {"optimizer": "sgd", "lr": 0.1, "weight_decay": 1e-2, "dropout": 0.0}
#: Whether they are sparse: then clients keep the first layer's weights only of the features that they have.
FEATURES = [pytest.param(True, id="sparse"), pytest.param(False, id="dense", marks=pytest.mark.slow)]


def settings_of(rule: str) -> dict[str, object]:
    return {"rule": rule, **RULES[rule]}


class Plain:
    """One client at a time, with dense weights and autograd."""

    def __init__(self, world: World, **settings: object) -> None:
        config = config_of(METHOD, **{**SETTINGS, **settings})
        self.config = config
        self.clients = [prepare_own(dense_cohort(world, k), config) for k in range(world.clients)]
        n = torch.tensor([float(c.counts[0]) for c in self.clients])
        self.share = (n / n.sum()).tolist()
        self.first = initial_weights(world.task, config.network, config.run.seed, "cpu")

    def loss(self, client: Prepared, w: Weights) -> Tensor:
        out = self.config.network.kernel.forward(w, client.train, None)
        return cross_entropy(out, client.train.y)

    def gradient(self, client: Prepared, w: Weights, extra: Callable[[Weights], Tensor]) -> Weights:
        w = {k: v.detach().requires_grad_() for k, v in w.items()}  # type: ignore[union-attr]
        found = torch.autograd.grad(self.loss(client, w) + extra(w), list(w.values()))
        return dict(zip(w, found, strict=True))

    def descend(self, client: Prepared, w: Weights, extra: Callable[[Weights], Tensor]) -> Weights:
        for _ in range(self.config.steps.local_steps):
            g = self.gradient(client, w, lambda w: extra(w) + 0.5e-2 * squared(w))
            w = {k: v.detach() - 0.1 * g[k] for k, v in w.items()}  # type: ignore[union-attr]
        return w

    def corrected(self, x: Weights, controls: list[Weights]) -> tuple[list[Weights], list[Weights]]:
        """A round of SCAFFOLD: the clients' weights, and their control variates."""
        c = self.mean(controls)
        trained = []
        for client, own in zip(self.clients, controls, strict=True):

            def extra(y: Weights, own: Weights = own) -> Tensor:
                return sum(((c[k] - own[k]) * y[k]).sum() for k in y)  # type: ignore

            trained.append(self.descend(client, x, extra))
        covered = 0.1 * self.config.steps.local_steps
        after = [
            {k: own[k] - c[k] + (x[k] - y[k]) / covered for k in x}  # type: ignore
            for own, y in zip(controls, trained, strict=True)
        ]
        return trained, after

    def mean(self, vectors: list[Weights]) -> Weights:
        return {k: sum(p * t[k] for p, t in zip(self.share, vectors, strict=True)) for k in vectors[0]}  # type: ignore


def dense_cohort(world: World, k: int) -> Cohort:
    cohort = make_cohort(world.graph, world.split, world.partition, [k])
    return replace(cohort, x=cohort.x.to_dense()) if isinstance(cohort.x, SparseMatrix) else cohort


def nothing(w: Weights) -> Tensor:
    return torch.tensor(0.0)


def squared(w: Weights, reference: Weights | None = None) -> Tensor:
    return sum((((v - reference[k]) if reference else v) ** 2).sum() for k, v in w.items())  # type: ignore


def expected(world: World, rule: str, rounds: int) -> Weights:
    """The weights after some rounds, as the papers write them."""
    plain = Plain(world, **settings_of(rule))
    w, config = plain.first, plain.config
    rho, tau = value(config, "rho"), value(config, "tau", 0.0)
    own = [dict(w) for _ in plain.clients]
    dual = [{k: torch.zeros_like(v) for k, v in w.items()} for _ in plain.clients]  # type: ignore[arg-type]
    controls = [dict(y) for y in dual]
    m = {k: torch.zeros_like(v) for k, v in w.items()}  # type: ignore[arg-type]
    v = {k: torch.full_like(t, tau**2) for k, t in w.items()}  # type: ignore[arg-type]
    for _ in range(rounds):
        if rule == "fedsgd":
            g = plain.mean([plain.gradient(c, w, nothing) for c in plain.clients])
            w = {k: t - 0.1 * (g[k] + 1e-2 * t) for k, t in w.items()}
            continue
        if rule == "admm":

            def added(x: Weights, y: Weights, w: Weights = w) -> Tensor:
                return sum((y[k] * (x[k] - w[k])).sum() for k in x) + rho / 2 * squared(x, w)  # type: ignore

            triples = zip(plain.clients, own, dual, strict=True)
            own = [plain.descend(c, o, lambda x, y=y: added(x, y)) for c, o, y in triples]  # type: ignore
            vectors = [{k: o[k] + y[k] / rho for k in o} for o, y in zip(own, dual, strict=True)]
            w = plain.mean(vectors)
            dual = [{k: y[k] + rho * (o[k] - w[k]) for k in y} for o, y in zip(own, dual, strict=True)]
            continue
        if rule == "scaffold":
            own, controls = plain.corrected(w, controls)
            w = plain.mean(own)
            continue
        mu = value(config, "mu") if rule == "fedprox" else 0.0
        mean = plain.mean(
            [plain.descend(c, w, lambda x, w=w, mu=mu: mu / 2 * squared(x, w)) for c in plain.clients]
        )
        if rule == "fedadam":
            for k, t in w.items():
                delta = mean[k] - t
                m[k] = 0.9 * m[k] + 0.1 * delta
                v[k] = 0.99 * v[k] + 0.01 * delta**2
                mean[k] = t + value(config, "server_lr") * m[k] / (v[k].sqrt() + tau)
        w = mean
    return w


@pytest.mark.parametrize("sparse", FEATURES)
@pytest.mark.parametrize("rule", RULES)
def test_every_rule_is_a_plain_loop_over_clients(rule: str, sparse: bool) -> None:
    """Also where clients keep the first layer's weights only of the features that they have."""
    world = last_round_stands(make_world(3, sparse=sparse))
    found, _ = run_local("distgat", world, rounds=5, **{**SETTINGS, **settings_of(rule)})
    for k, w in expected(world, rule, rounds=5).items():
        assert torch.allclose(found.state.weights.parts[0][k], w, rtol=0, atol=1e-9), k


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_fedsgd_is_central_training(optimizer: str) -> None:
    """Of fedgat, which sees every edge with any partition; of distgat, without cross-client edges. With
    attention dropout too, whose draws go by the edge."""
    settings = {**SETTINGS, **settings_of("fedsgd"), "optimizer": optimizer, "rounds": 8, "lr": 0.05}
    direct = {**settings, "drop_single": False, "evaluation": "direct"}
    found = []
    for clients in (1, 3, 10):
        world = last_round_stands(make_world(clients=clients))
        found.append(by_node(run_local("fedgat", world, **direct)[0], world))
    assert torch.allclose(found[1], found[0], rtol=0, atol=1e-7)
    assert torch.allclose(found[2], found[0], rtol=0, atol=1e-7)
    whole = last_round_stands(make_world())
    apart = np.zeros(whole.graph.num_nodes, dtype=np.int64)
    apart[-4:] = 1  # the last four nodes have no edge
    partitioned = World(whole.graph, whole.split, from_assignment(whole.graph, apart, num_clients=2))
    with_dropout = {**settings, "dropout": 0.4}
    one = by_node(run_local("distgat", partitioned, **with_dropout)[0], partitioned)
    central = {k: v for k, v in with_dropout.items() if k != "rule"}
    two, _ = run_local("central", pooled(whole), backbone="gat", heads=8, local_steps=1, **central)
    assert torch.allclose(one, logits(two), rtol=0, atol=1e-7)


@pytest.mark.slow
def test_admm_and_scaffold_reach_the_common_optimum_where_fedavg_stops_short() -> None:
    """Logistic regression, as GAT of one layer without edges is, with a class at each client: the gradient of
    all clients' loss at the model."""
    world = last_round_stands(make_world(5))
    graph = replace(world.graph, edges=world.graph.edges[:, :0])
    world = World(graph, world.split, from_assignment(graph, graph.y, num_clients=3))
    shared = {"local_steps": 20, "lr": 0.3, "layers": 1}
    norms = {}
    for rule in ("fedavg", "admm", "scaffold"):
        own = {"rho": 0.1} if rule == "admm" else {}
        found, _ = run_local("distgat", world, rounds=150, **{**SETTINGS, **shared, **own, "rule": rule})
        plain = Plain(world, **shared)
        w = found.state.weights.parts[0]
        g = plain.mean([plain.gradient(c, w, lambda w: 0.5e-2 * squared(w)) for c in plain.clients])
        norms[rule] = float(squared(g).sqrt())
    assert norms["fedavg"] > 0.01
    assert norms["admm"] < 1e-4
    assert norms["scaffold"] < 1e-4


@pytest.mark.parametrize(
    ("optimizer", "weight_decay", "form"),
    [
        *((optimizer, decay, "plaintext") for optimizer in ("sgd", "adam", "adamw") for decay in (0.0, 1e-2)),
        pytest.param("sgd", 1e-2, "simulated", marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("rule", RULES)
def test_stacked_equals_one_client_at_a_time_to_the_last_ledger_entry(
    rule: str, optimizer: str, weight_decay: float, form: str
) -> None:
    """Without weight decay the gradient of some weights is 0 except for rounding errors, which Adam must not
    turn into steps."""
    if rule == "scaffold" and optimizer != "sgd":
        pytest.skip("scaffold has steps of sgd only")
    world = last_round_stands(make_world(1))
    settings = {"optimizer": optimizer, **settings_of(rule), "weight_decay": weight_decay, "dropout": 0.4}
    settings |= protection("aggregation", form)
    fast, fed = run_local("distgat", world, **settings)
    slow, oracle = run_local("distgat", world, "one at a time", **settings)
    assert torch.allclose(logits(fast), logits(slow), rtol=0, atol=1e-9)
    assert fed.ledger.to_json() == oracle.ledger.to_json()


@pytest.mark.parametrize("optimizer", ["adam", "adamw"])
@pytest.mark.parametrize("rule", ["fedprox", "admm"])
@pytest.mark.parametrize("dropout", [0.0, 0.6])
def test_adam_does_not_follow_rounding_errors_of_attention(dropout: float, rule: str, optimizer: str) -> None:
    """Where all scores of a node have one sign, the gradient of its target scores is 0; the pull towards the
    model would turn a step of Adam along a rounding error into a difference of placements."""
    settings = {"data.num_nodes": 60, "rule": rule, "optimizer": optimizer, "weight_decay": 0.0}
    settings |= {"local_steps": 3, "lr": 0.1, "eval_every": 3, "dropout": dropout}
    one, two = (
        gf.run(
            "distgat", data="social", clients=5, split="random:0.5,0.25,0.25", rounds=3, out=False,
            placement=placement, settings=settings,
        ).test["loss"]
        for placement in ("stacked", "one-at-a-time")
    )  # fmt: skip
    assert one == pytest.approx(two, abs=1e-10)


@pytest.mark.slow
@pytest.mark.parametrize("rule", RULES)
def test_separate_processes_equal_stacked_to_the_last_ledger_entry(
    rule: str, three_clients: ThreeWorkers
) -> None:
    world = last_round_stands(make_world(1))
    settings = {**settings_of(rule), "weight_decay": 1e-2, "dropout": 0.4}
    together, fed = run_local("distgat", world, **settings)
    apart, ledger = run_processes("distgat", world, three_clients, **settings)
    assert torch.allclose(logits(apart), logits(together), rtol=0, atol=1e-9)
    assert ledger.to_json() == fed.ledger.to_json()


def test_the_secure_mean_of_gradients_is_the_plain_one() -> None:
    world = last_round_stands(make_world())
    settings = {**SETTINGS, **settings_of("fedsgd")}
    plain, _ = run_local("distgat", world, **settings)
    secure, fed = run_local("distgat", world, aggregation="secure", **settings)
    assert 0 < (logits(plain) - logits(secure)).abs().max() < 1e-5
    protections = {entry.protection for entry in fed.ledger.entries if entry.name.startswith("gradient")}
    assert protections == {"public", "encrypted", "aggregate", "shared"}


def test_fedsgd_goes_on_where_few_clients_take_part() -> None:
    """Gathered or masked, absent clients have no part: the mean is that of those who are there."""
    world = last_round_stands(make_world(clients=8))
    settings = {**SETTINGS, **settings_of("fedsgd"), "fraction": 0.25}
    fast, fed = run_local("distgat", world, **settings)
    slow, oracle = run_local("distgat", world, "one at a time", **settings)
    assert torch.allclose(logits(fast), logits(slow), rtol=0, atol=1e-9)
    assert fed.ledger.to_json() == oracle.ledger.to_json()
    whole, _ = run_local("distgat", world, **{**settings, "fraction": 1.0})
    assert not torch.allclose(logits(fast), logits(whole), atol=1e-3)


@pytest.mark.parametrize("sparse", FEATURES)
def test_the_mean_of_the_control_variates_is_that_of_the_clients_whoever_took_part(sparse: bool) -> None:
    """c = sum_i (n_i / n) c_i, also where some clients have been absent, gathered or masked."""
    for fraction in (0.25, 0.6, 1.0):
        world = last_round_stands(make_world(clients=8, sparse=sparse))
        settings = {**SETTINGS, **settings_of("scaffold"), "fraction": fraction}
        found, fed = run_local("distgat", world, **settings)
        share = torch.tensor(Plain(world).share)
        kept = found.state.values["clients"].parts[0]["control"]
        for k, c in found.state.values["server"].parts[0]["control"].items():
            own = kept[k]
            mean = (
                own.weighted_sum(share) if isinstance(own, SparseWeights) else torch.tensordot(share, own, 1)
            )
            assert torch.allclose(mean, c, rtol=0, atol=1e-12), k
        slow, oracle = run_local("distgat", world, "one at a time", **settings)
        assert torch.allclose(logits(found), logits(slow), rtol=0, atol=1e-9)
        assert fed.ledger.to_json() == oracle.ledger.to_json()


@pytest.mark.parametrize("rule", ["fedadam", "scaffold", "fedsgd", "admm"])
def test_a_run_that_breaks_goes_on_with_what_the_rule_keeps(
    rule: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To the same bits as one that did not: moments, the server's optimiser, control variates, duals."""
    world, settings = make_world(), settings_of(rule)
    settings |= {} if rule == "admm" else {"fraction": 1.0}
    with crash_at(-1, monkeypatch, TRANSFERS) as count:
        whole = run_with_checkpoints("distgat", world, None, **settings)
    for part in (1, 2):  # in the second round and in the third
        folder = tmp_path / str(part)
        with crash_at(2 * (part * count[0] // 3 + 1), monkeypatch, TRANSFERS), pytest.raises(Crash):
            run_with_checkpoints(
                "distgat", world, Checkpoints(folder, every=0, stop_request=StopRequest()), **settings
            )
        assert_same_bits(whole, resumed("distgat", world, folder, **settings))


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (
            {"rule": "fedsgd", "local_steps": 3},
            "local_steps=3 cannot be used with rule=fedsgd: local_steps is",
        ),
        (
            {"rule": "admm", "fraction": 0.5},
            "fraction=0.5 cannot be used with rule=admm: fraction is a setting of runs with rule other than",
        ),
        ({"rule": "scaffold", "optimizer": "adam"}, "optimizer=adam cannot be used with rule=scaffold"),
    ],
)
def test_what_a_rule_cannot_do_is_refused(settings: dict[str, object], words: str) -> None:
    with pytest.raises(InputError, match=words):
        config_of(METHOD, **settings)
