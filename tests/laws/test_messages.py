"""Every transfer is described for those who must answer for it, and no description is left over."""

import link_worlds
import pytest
from methods_under_law import METHODS
from worlds import ThreeWorkers, World, make_world, run_local, run_processes, weighted

from graphfed.crypto.keyed_ids import KEY
from graphfed.data.partitions.partition import partition
from graphfed.methods.registry import get_method
from graphfed.methods.tasks import CLASSIFICATION, LINK_PREDICTION
from graphfed.runs.train import CONTROL, MESSAGES
from graphfed.tasks.evaluation import SECURE_MESSAGES
from graphfed.tasks.registry import get_task

#: Where a setting decides which transfers there are: all of its values.
AVERAGES = [{}, {"aggregation": "secure", "protocols": "simulated"}]
#: With the optimiser at the server.
GRADIENTS = [{"optimizer_at": "server", "local_steps": 1, **average} for average in AVERAGES]
RULES = [
    {**rule, **average}
    for rule in (
        {"rule": "fedavg", "local_steps": 1},
        {"rule": "fedsgd"},
        {"rule": "scaffold", "optimizer": "sgd"},
    )
    for average in AVERAGES
]
VARIANTS = {
    "fedavg": [*AVERAGES, *GRADIENTS, *RULES],
    "fedprox": AVERAGES,
    "fedadam": AVERAGES,
    "fedavgm": AVERAGES,
    "scaffold": AVERAGES,
    "distgat": [*AVERAGES, *RULES],
    "fedgat": [
        {"layers": 3},
        {"later": "exchange"},
        {"exchange": "encrypted", "protocols": "simulated"},
        *AVERAGES,
        *RULES,
    ],
    "fedgat_ldp": [{"layers": 3}, {"later": "exchange"}, *AVERAGES, *RULES],
    "fedgcn": [
        {"hops": 1},
        {"hops": 2, "aggregation": "secure", "protocols": "simulated"},
        {"hops": 1, "exchange": "encrypted", "protocols": "simulated"},
        {"hops": 2, "exchange": "encrypted", "protocols": "simulated"},
        *RULES,
    ],
    "fedsage_plus": [*AVERAGES, *RULES],
    "fedgraph": [{"sent_embeddings": "all"}, *AVERAGES, *GRADIENTS],
    "sapgnn": [
        {"node_ids": "keyed", "pooling": "secure"},
        {"aggregation": "plaintext", "batch_size": 5},
        {"maps": "identity", "pooling": "secure"},
        {"maps": "identity"},
    ],
    "ppgnn": [{"node_ids": "keyed"}, {"aggregation": "plaintext"}],
    "prediction_release": AVERAGES,
    "halo": [*AVERAGES, {"backbone": "gat"}],
    "attention_sums": [*AVERAGES, {"exchange": "secure", "protocols": "simulated"}],
    # protocols=real sends what is simulated here (test_lumos.py).
    "lumos": [
        {"balancer": "local"},
        {"balancer": "local", "aggregation": "secure", "protocols": "simulated"},
        {"balancer": "local", "compare_again": "all", "fill_trees": True},
        {"balancer": "mcmc", "mcmc_steps": 4},
        {"balancer": "mcmc", "mcmc_steps": 4, "acceptance": "opened"},
        {"balancer": "oracle"},
        {"balancer": "greedy"},
        {"balancer": "none"},
    ],
}
#: Settings that need a process for each client.
APART = {"fedgraph": {"policy": "balanced", "clock": "wall"}}


def world_of(name: str) -> World:
    """Clients that share nodes, for the methods that are about them; edges with weights, for the one that
    sends them."""
    world = make_world()
    if name == "lpgnn":
        return weighted(world)
    if "node_ids" not in get_method(name).sends.messages:
        return world
    return World(world.graph, world.split, partition(world.graph, "edges_uniform", 3, 0))


#: A plug-in may leave the words out, as the skeleton does.
WITH_WORDS = [name for name in METHODS if name != "skeleton"]


@pytest.mark.parametrize("name", WITH_WORDS)
def test_the_words_of_a_method_are_those_of_its_transfers(
    name: str, monkeypatch: pytest.MonkeyPatch, three_clients: ThreeWorkers
) -> None:
    monkeypatch.setenv(KEY, "5f" * 32)
    names: set[str] = set()
    for settings in VARIANTS.get(name, [{}]):
        _, fed = run_local(name, world_of(name), rounds=1, **settings)
        names |= {entry.name for entry in fed.ledger.entries}
    if name in APART:
        _, ledger = run_processes(name, world_of(name), three_clients, **APART[name])
        names |= {entry.name for entry in ledger.entries}
    said = {*CONTROL, *get_task(CLASSIFICATION).messages}
    if "scores/masked" in names:
        said |= {*SECURE_MESSAGES}
    if LINK_PREDICTION in get_method(name).tasks:
        _, fed = link_worlds.run_local(name, link_worlds.link_world())
        names |= {entry.name for entry in fed.ledger.entries}
        said |= {*get_task(LINK_PREDICTION).messages}
    # Scores are counted again only if the first bins are too coarse for them.
    if_coarse = {name for name in said if name.endswith(("_refine", "_bins", "_finer_scores"))}
    assert names - if_coarse == {*get_method(name).sends.messages, *said} - if_coarse


@pytest.mark.parametrize("name", METHODS)
def test_no_method_takes_the_name_of_a_transfer_that_every_run_has(name: str) -> None:
    """The ledger and the report could not distinguish the two."""
    scores = [get_task(task).messages for task in get_method(name).tasks]
    assert not {*get_method(name).sends.messages} & {*CONTROL, *SECURE_MESSAGES}.union(*scores)


@pytest.mark.parametrize("settings", AVERAGES, ids=["plaintext", "secure"])
@pytest.mark.parametrize("name", WITH_WORDS)
def test_every_transfer_of_a_run_with_the_defaults_has_words(name: str, settings: dict[str, str]) -> None:
    method = get_method(name)
    if settings and settings["aggregation"] not in method.protections.get("aggregation", ()):
        pytest.skip(f"{name} has no aggregation={settings['aggregation']}")
    _, fed = run_local(name, world_of(name), preset="default", **settings)
    assert {entry.name for entry in fed.ledger.entries} <= {*method.sends.messages, *MESSAGES}
