"""Holders whose data does not go together are told so before anything is trained, and the server learns which
vertices are the same and no more."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from worlds import World, by_vertex, config_of, make_world, run_local

import graphfed
from graphfed.data.partition import from_assignment, partition
from graphfed.errors import InputError
from graphfed.experiment.train import train
from graphfed.federation import Federation, core
from graphfed.federation.cohort import Cohort, make_cohort
from graphfed.federation.link import SERVER_END
from graphfed.methods import alignment
from graphfed.methods.base import TrainingConfig
from graphfed.methods.registry import METHODS, get_method
from graphfed.methods.sapgnn import initial_local
from graphfed.nn.sparse import SparseMatrix
from graphfed.runtime.local import one_at_a_time, stacked
from graphfed.secure.keyed_ids import KEY

ALIGNED = [name for name in METHODS if "vertex_ids" in get_method(name).messages]
every_method = pytest.mark.parametrize("name", ALIGNED)


def shared_world(clients: int = 3) -> World:
    world = make_world()
    return World(world.graph, world.split, partition(world.graph, "edges_uniform", clients, 0))


def set_up(
    name: str, world: World, change: Any = None, place: Any = one_at_a_time, **settings: Any
) -> Federation:
    """Run set-up and a round; change(client, cohort): what a holder has in its cohort's place."""
    fed: Federation = place(world.clients, "cpu")
    cohorts = [make_cohort(world.graph, world.split, world.partition, h) for h in fed.hosts]
    if change is not None:
        cohorts = [change(k, cohort) for k, cohort in enumerate(cohorts)]
    config: TrainingConfig = config_of(get_method(name), rounds=1, **settings)
    train(fed, get_method(name), fed.locate("clients", "data", cohorts), world.task, config)
    return fed


def test_there_are_methods_to_test() -> None:
    assert "sapgnn" in ALIGNED


def dense(cohort: Cohort) -> torch.Tensor:
    assert cohort.x is not None
    return cohort.x.to_dense() if isinstance(cohort.x, SparseMatrix) else cohort.x


@every_method
def test_features_of_another_width_are_refused(name: str) -> None:
    def wider(client: int, cohort: Cohort) -> Cohort:
        x = dense(cohort)
        return replace(cohort, x=torch.cat([x, x[:, :1]], 1) if client == 1 else x)

    with pytest.raises(InputError, match="client 1 has 13 features where the holders agreed on 12"):
        set_up(name, shared_world(), wider)


@every_method
@pytest.mark.parametrize("sparse", [False, True])
def test_a_vertex_with_other_features_at_another_holder_is_refused(name: str, sparse: bool) -> None:
    world = shared_world()

    def stored(client: int, cohort: Cohort) -> Cohort:
        return cohort if sparse else replace(cohort, x=dense(cohort))

    def changed(client: int, cohort: Cohort) -> Cohort:
        if client != 2:
            return stored(client, cohort)
        x = dense(cohort).clone()
        x[4, 3] += 1
        return replace(cohort, x=SparseMatrix.from_dense(x) if sparse else x)

    with pytest.raises(InputError, match="clients 0 and 2 have different features for the vertex of name"):
        set_up(name, world, changed)
    set_up(name, world, stored)


@every_method
def test_an_empty_holder_is_refused_before_anything_is_written(name: str, tmp_path: Path) -> None:
    graph = make_world().graph
    site = np.arange(graph.num_nodes) % 2
    from_assignment(graph, 2 * site, num_sites=3).save(tmp_path / "sites.safetensors")
    with pytest.raises(InputError, match=r"needs a vertex at every client, but .* gives none to client 1"):
        graphfed.run(
            name, data=graph, partition=tmp_path / "sites.safetensors", split="random:0.5,0.25,0.25",
            out=tmp_path / "run",
        )  # fmt: skip
    assert not (tmp_path / "run").exists()


@every_method
@pytest.mark.parametrize("place", [stacked, one_at_a_time])
def test_a_missing_key_is_refused(name: str, place: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(KEY, raising=False)
    with pytest.raises(InputError, match=f"vertex_ids=keyed needs the holders' key, and {KEY} is not set"):
        set_up(name, shared_world(), place=place, vertex_ids="keyed")


@every_method
def test_holders_of_different_keys_are_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else no vertex would be shared, and nobody would notice."""
    keys = {0: b"\1" * 32, 1: b"\1" * 32, 2: b"\2" * 32}
    asking = {"client": 0}
    whole = alignment.key_check

    def key_check(holders: alignment.Holders, config: alignment.AlignedConfig) -> torch.Tensor:
        asking["client"] = holders.cohort.clients[0]
        return whole(holders, config)

    monkeypatch.setattr(alignment, "holders_key", lambda: keys[asking["client"]])
    monkeypatch.setattr(alignment, "key_check", key_check)
    with pytest.raises(InputError, match="clients 0 and 2 have different holders' keys"):
        set_up(name, shared_world(), vertex_ids="keyed")


@every_method
def test_names_decide_nothing_but_dropout(name: str) -> None:
    world = shared_world()
    plain, named = (
        by_vertex(run_local(name, world, vertex_ids=ids, dropout=0.0)[0], world)
        for ids in ("plain", "simulated")
    )
    # The rows that the server adds up come in another order.
    assert torch.allclose(named, plain, rtol=0, atol=1e-6)


def test_the_first_weights_that_holders_have_in_common_follow_from_their_key(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A server that could draw them could undo the maps. Seeds still differ."""
    drawn = []
    for key, seed in (("5f", 0), ("5f", 0), ("5e", 0), ("5f", 1)):
        monkeypatch.setenv(KEY, key * 32)
        config = config_of(get_method("sapgnn"), vertex_ids="keyed", seed=seed)
        drawn.append(initial_local("cpu", shared_world().task, config)["layers.0.self"])
    assert torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[0], drawn[2])
    assert not torch.equal(drawn[0], drawn[3])


def arriving_at_the_server(
    name: str, world: World, monkeypatch: pytest.MonkeyPatch, **settings: Any
) -> dict[str, list[torch.Tensor]]:
    """The tensors that reach the server in set-up and training, by transfer."""
    seen: dict[str, list[torch.Tensor]] = {}
    whole = core.deliver

    def watched(messages: Any, pairs: Any, key: str, **more: Any) -> Any:
        for (_, to), message in messages.items():
            if to == SERVER_END:
                payload = message.payload
                tensors = payload if isinstance(payload, tuple) else (payload,)
                seen.setdefault(key.split("/", 2)[2], []).extend(
                    t for t in tensors if isinstance(t, torch.Tensor)
                )
        return whole(messages, pairs, key, **more)

    monkeypatch.setattr(core, "deliver", watched)
    set_up(name, world, **settings)
    return seen


@every_method
def test_the_server_gets_neither_ids_nor_edges_nor_labels_nor_features(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With local maps and shared gradients, the defaults. What it gets in whole numbers are names and hashes
    (64 pseudorandom bits, which no id below a million is but by a chance of 1e-9), rows per client and, to
    choose the best round, tables of predictions and counts of classes."""
    monkeypatch.setenv(KEY, "5f" * 32)
    world = shared_world()
    seen = arriving_at_the_server(name, world, monkeypatch, vertex_ids="keyed", dropout=0.0)
    assert not any("gradient" in transfer or transfer == "features" for transfer in seen)
    x = torch.from_numpy(world.graph.x.toarray()).double()
    y = torch.from_numpy(world.graph.y).double()
    for transfer, tensors in seen.items():
        for t in tensors:
            if transfer in ("vertex_ids", "training_ids", "feature_digests", "key_check"):
                assert t.dtype == torch.int64
                assert len(t) <= world.clients or bool((t.abs() > 1_000_000).all())
            elif "scores" not in transfer and transfer != "val_classes":
                assert t.is_floating_point()
                for known in (*x.T, y):
                    assert not any(torch.allclose(column, known) for column in t.T if len(column) == len(y))
    # Each holder has every vertex, so what it sends of all of them was compared.
    assert any(len(t) == len(y) for t in seen[f"{name}/local_embedding"])
