"""attention_sums: what a client computes of features from the scores and sums of all rounds."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from audited_runs import finished

import graphfed
from graphfed.audit.attacks import attention_rounds, attention_sums
from graphfed.audit.attacks.attention_rounds import (
    Layer,
    Received,
    attack_scores,
    group_means,
    receive,
    solve_group,
)
from graphfed.audit.base import AuditedRun
from graphfed.audit.run import audit
from graphfed.data.graphs.graph import Graph, Split, make_graph
from graphfed.data.partitions.tables import from_assignment

STRICTEST = {"exchange": "secure", "aggregation": "secure", "min_group": 3}


def graph_of(d: int, *, sparse: bool = False, edges: int = 300) -> Graph:
    """80 nodes with random features, which no guess finds."""
    draw, i = np.random.default_rng(0), np.arange(80)
    x = (
        draw.random(size=(80, d)) * (draw.random(size=(80, d)) < 5 / d)
        if sparse
        else draw.normal(size=(80, d))
    )
    split = Split("own", i < 40, (i >= 40) & (i < 60), i >= 60)
    return make_graph("g", x.astype(np.float32), i % 3, draw.integers(0, 80, (2, edges)), split=split)


def trained(folder: Path, graph: Graph, rounds: int, **settings: Any) -> AuditedRun:
    from_assignment(graph, np.arange(80) % 4).save(folder / "parts.safetensors")
    graphfed.run(
        "attention_sums", data=graph, partition=str(folder / "parts.safetensors"), split="public",
        rounds=rounds, threads=1, out=folder / "run", settings={"patience": None, "hidden": 4, **settings},
    )  # fmt: skip
    return finished(folder / "run", graph)


# ---- from scores -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("settings", [{}, STRICTEST, {"dropout": 0.3}], ids=["defaults", "secure", "dropout"])
def test_scores_of_many_rounds_give_every_feature_away_under_every_setting(
    settings: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attention_rounds, "MEMBERS", 1)
    graph = graph_of(40)
    run = trained(tmp_path, graph, 12, **settings)
    finding = audit(run.folder, data=graph).findings["neighbour_scores"]
    assert finding.leaks
    assert finding.value == 1
    assert finding.no_signal == 0
    assert finding.verdict.startswith("leaks exactly: clients compute these features")
    assert finding.details["rank"] == finding.details["features"] == 40
    assert finding.details["recovered"] == finding.details["scored"] > 150
    assert finding.details["largest_error"] < 1e-4


def test_one_round_gives_linear_functions_and_no_features(tmp_path: Path) -> None:
    """Two passes of eight heads for 40 features."""
    finding = attention_sums.run_scores(trained(tmp_path, graph_of(40), 1))
    assert finding.value == 0
    assert finding.details["rank"] == finding.details["equations"] == 16
    assert finding.leaks
    assert "16 linear functions of the 40 features" in finding.verdict


def test_sparse_features_are_found_from_fewer_equations(tmp_path: Path) -> None:
    finding = attention_sums.run_scores(trained(tmp_path, graph_of(150, sparse=True), 9))
    assert finding.details["rank"] < 150
    assert finding.details["sparse"]
    assert finding.value == 1


def test_what_is_counted_agrees_with_the_features_of_the_nodes(tmp_path: Path) -> None:
    received = receive(trained(tmp_path, graph_of(10), 4))
    assert attack_scores(received).recovered == len(received.nodes)
    draw = torch.Generator().manual_seed(0)
    noise = torch.randn(received.scores.shape, generator=draw, dtype=torch.float64)
    assert attack_scores(replace(received, scores=received.scores + noise)).recovered == 0


def test_without_a_node_that_has_enough_neighbours_no_score_is_sent(tmp_path: Path) -> None:
    run = trained(tmp_path, graph_of(5), 1, exchange="secure", min_group=1000)
    finding = attention_sums.run_scores(run)
    assert finding.leaks is False
    assert finding.verdict == "no leak: no score is sent"


# ---- from sums ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("settings", [{}, {"exchange": "secure"}], ids=["one client", "total of clients"])
def test_sums_over_several_nodes_are_solved_over_rounds(
    settings: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not one is computed from one round, because min_group leaves smaller sums out."""
    monkeypatch.setattr(attention_rounds, "GROUPS", 4)
    monkeypatch.setattr(attention_rounds, "PASSES", 12)
    finding = attention_sums.run(trained(tmp_path, graph_of(6, edges=200), 15, min_group=2, **settings))
    assert finding.details["recovered"] == 0
    by_size = {each["members"]: each for each in finding.details["rounds"]}
    assert by_size.keys() == {2, 3, 4}
    for m, each in by_size.items():
        assert each["attacked"] == min(4, each["sums"])
        assert each["unknowns"] == 6 * m
    assert sum(each["recovered"] for each in by_size.values()) > 0
    assert finding.leaks
    assert finding.verdict.startswith("leaks exactly: clients compute features from the sums of many rounds")


def test_sums_over_one_node_give_its_features_over_rounds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One round has 16 columns for 40 features."""
    monkeypatch.setattr(attention_rounds, "MEMBERS", 1)
    run = trained(tmp_path, graph_of(40), 6, hidden=2)
    finding = attention_sums.run(run)
    (alone,) = finding.details["rounds"]
    assert finding.details["features"] == 0
    assert alone["recovered"] == alone["attacked"] == alone["sums"] > 50
    assert "from the sums of many rounds over 1 node" in finding.verdict
    (tmp_path / "few").mkdir()
    few = attention_sums.run(trained(tmp_path / "few", graph_of(40), 1, hidden=2))
    assert few.details["rounds"][0]["attacked"] == 0
    assert "not attacked (32 equations, 40 unknowns)" in few.result


@pytest.mark.parametrize("members", [1, 2, 3])
def test_members_are_found_from_their_sums_with_weights_that_differ(members: int) -> None:
    """Against sums that are computed here, member by member."""
    draw = torch.Generator().manual_seed(members)
    w, att, x, own = (
        torch.randn(*shape, generator=draw, dtype=torch.float64) * 0.5
        for shape in ((60, 3, 4), (2, 60, 3), (members, 4), (4,))
    )
    layer = Layer(w, (w * att[0, ..., None]).sum(1), (w * att[1, ..., None]).sum(1), heads=2)
    target = layer.target @ own
    sums = torch.zeros(60, 4, dtype=torch.float64)
    for j in range(members):
        for p in range(60):
            leaky = torch.nn.functional.leaky_relu
            e = (leaky(target[p] + layer.source[p] @ x[j], 0.2) - leaky(target[p], 0.2)).exp()
            sums[p] += e * torch.cat([w[p] @ x[j], torch.ones(1, dtype=torch.float64)])
    mean = group_means(sums[..., None], layer)[0]
    found = mean[None] if members == 1 else solve_group(sums, layer, target, mean, members)
    distance = torch.cdist(found, x)
    assert distance.min(1).values.max() < 1e-6
    assert distance.min(0).values.max() < 1e-6


def test_both_checks_repeat_the_run_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention_rounds, "MEMBERS", 1)
    run = trained(tmp_path, graph_of(5), 1)
    received: list[Received] = [receive(run)]
    monkeypatch.setattr(attention_rounds, "_receive", lambda _: pytest.fail("repeated"))
    assert receive(run) is received[0]
