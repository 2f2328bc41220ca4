"""Attention dropout acts on the coefficients, one draw for every edge."""

import torch
from worlds import make_world

from graphfed.federation.cohort import make_cohort
from graphfed.methods.base import Task
from graphfed.methods.baselines import isolated
from graphfed.methods.common.local_training import initial_weights, own_view, prepare
from graphfed.nn.backbones import BACKBONES
from graphfed.nn.layers import Dropout


def test_gat_drops_attention_edge_by_edge(monkeypatch):
    world = make_world()
    cohort = make_cohort(world.graph, world.split, world.partition, [0])
    config = isolated.METHOD.configure({"backbone": "gat", "layers": 1, "heads": 1})
    batch = prepare(cohort, own_view(cohort), None, config, personal=False).train
    words = batch.blocks[0].words
    assert len(words.unique()) == len(words) == len(batch.blocks[0].adjacency.indices), "one draw an edge"
    monkeypatch.setattr(Dropout, "edges", lambda self, alpha, words, layer: torch.zeros_like(alpha))
    weights = initial_weights(Task(12, 3), config.network, config.run.seed, "cpu")
    logits = BACKBONES["gat"].forward(weights | {"layers.0.bias": torch.ones(3)}, batch, Dropout(0.5, 1))
    assert torch.equal(logits, torch.ones_like(logits)), "without any coefficient only the bias is left"
