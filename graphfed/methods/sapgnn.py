"""SAPGNN: Shan, Jiao and Song, "Towards representation identical privacy-preserving graph neural network via
split learning", 2021 (arXiv:2107.05917). Data holders that may share vertices and edges train one network
whose layers pool by maximum over the edges of all of them: the embeddings are those of the combined graph.

    paper                              here
    m_ij = M_l(h_i, h_j)         (4)   h_j W_message
    a_i^p = max_j m_ij           (5)   neighbour_max, over the holder's own edges
    z_i^p = U^loc(h_i, a_i^p)    (6)   UPDATES[update], of h_i W_self and a_i^p; -inf without neighbours
    z_i = max_p z_i^p            (7)   fed.max
    h_i' = U^glob(z_i)           (8)   linear, normalisation, ReLU and dropout, at the server
    w_M, w_U, predictor                State.values["local"], the same at every holder
    w_G                                State.values["global"], at the server only
    L_p                         (15)   mean over all training vertices, each counted at its owner only
    gradients of w_M, w_U       (20)   summed over the holders; every holder takes the same step

One round is one epoch: every holder's every vertex goes through every layer. A vertex without any neighbour
pools to 0, at whoever holds it. An edge whose ends are at two holders is known to neither and has no part:
deal the edges (partition edges_uniform), or let holders share vertices.

What it shows. The server reads every holder's vertex list, local embeddings, and (aggregation=clear) the
gradients of the local weights; it never gets features, edges or the local weights. The
gradients of the last layer's embeddings tell it which vertices are trained on and, with predictor=server,
their labels. With
maps=identity, the paper's messages, the first layer's embeddings are the features themselves and their
neighbours' maxima.

Differs from the paper: local maps before upload (the paper: identity, which shows raw features); holders'
losses weigh n_p / n (the paper adds means, which is not the pooled loss); the update family is the exact one
(the paper's "monotone" is too wide: a sigmoid of a mix of coordinates breaks the identity). The vertex lists
are plain ids and gradients are summed in the clear, both unlike the paper."""

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Literal

import torch
from pydantic import Field, field_validator
from pydantic.dataclasses import dataclass as config_dataclass
from torch import Tensor
from torch.nn.functional import cross_entropy

from graphfed.errors import InputError, shown
from graphfed.federation import Federation, Located
from graphfed.federation.cohort import Cohort
from graphfed.federation.core import as_leaves
from graphfed.federation.route import Route, RouteTable, RowIds
from graphfed.methods.base import Method, State, Task, TrainingConfig
from graphfed.nn.layers import Dropout
from graphfed.nn.maxpool import UPDATES, neighbour_max
from graphfed.nn.optim import AdamState, adam, adam_init, sgd
from graphfed.nn.sparse import SparseMatrix, spmm
from graphfed.random import fold, glorot

__all__ = ["METHOD", "SapgnnConfig"]

Weights = dict[str, Tensor]


@config_dataclass(frozen=True, config={"extra": "forbid"})
class SapgnnConfig(TrainingConfig):
    backbone: Literal["maxpool"] = Field(default="maxpool", description="graph network")  # type: ignore[assignment]
    local_steps: Literal[1] = Field(default=1, description="a round is one full-batch step")
    maps: Literal["linear", "identity"] = Field(
        default="linear", description="maps before upload: linear ones, or none (the paper's, shows features)"
    )
    update: Literal["concat", "sum", "product", "tropical"] = Field(
        default="concat", description="how a vertex's own part and its neighbours' maximum are joined"
    )
    pooling: Literal["max", "min"] = Field(default="max", description="pooling over neighbours and holders")
    norm: Literal["off", "batch"] = Field(default="off", description="normalisation at the server")
    predictor: Literal["server", "holders"] = Field(
        default="holders",
        description="who has the last linear layer: with server, its gradients tell it the training labels",
    )

    @field_validator("update", mode="before")
    @classmethod
    def _separable(cls, update: Any) -> Any:
        if not isinstance(update, str) or update not in UPDATES:
            raise InputError(
                f"update={shown(update)} cannot be used: pooling over holders is exact only for an update "
                "whose every output is a maximum of nondecreasing functions of one coordinate each; choose "
                f"one of: {', '.join(UPDATES)}"
            )
        return update


# ---- shapes ------------------------------------------------------------------------------------------------


def output_widths(task: Task, config: SapgnnConfig) -> list[int]:
    """The width of h entering every layer, and of the last one's output."""
    last = task.num_classes if config.predictor == "server" else config.hidden
    return [task.num_features, *[config.hidden] * (config.layers - 1), last]


def uploaded_width(width: int, config: SapgnnConfig) -> int:
    """u_l: what a vertex uploads to a layer whose input has `width`."""
    return UPDATES[config.update].width * (config.hidden if config.maps == "linear" else width)


def has_local_weights(config: SapgnnConfig) -> bool:
    return config.maps == "linear" or UPDATES[config.update].weighted or config.predictor == "holders"


def initial_local(prepared: "Holders", task: Task, config: SapgnnConfig) -> Weights:
    """layers.l.self and .message [d_l, H] (maps=linear), .tropical [H, H], predictor.weight [H, C] and .bias
    [C] (predictor=holders). Every holder draws the same from the seed: nothing crosses."""
    key, weights = fold(config.seed, "sapgnn"), {}
    for layer, width in enumerate(output_widths(task, config)[:-1]):
        mapped = config.hidden if config.maps == "linear" else width
        if config.maps == "linear":
            for name in ("self", "message"):
                weights[f"layers.{layer}.{name}"] = glorot(fold(key, layer, name), width, mapped)
        if UPDATES[config.update].weighted:
            weights[f"layers.{layer}.tropical"] = glorot(fold(key, layer, "tropical"), mapped, mapped)
    if config.predictor == "holders":
        weights["predictor.weight"] = glorot(fold(key, "predictor"), config.hidden, task.num_classes)
        weights["predictor.bias"] = torch.zeros(task.num_classes)
    return {name: w.to(prepared.device) for name, w in weights.items()}


def initial_global(task: Task, config: SapgnnConfig, device: str) -> Weights:
    """layers.l.weight [u_l, d_{l+1}] and .bias; .gain where normalised."""
    key, weights = fold(config.seed, "sapgnn"), {}
    for layer, (width, out) in enumerate(pairwise(output_widths(task, config))):
        weights[f"layers.{layer}.weight"] = glorot(fold(key, layer), uploaded_width(width, config), out)
        weights[f"layers.{layer}.bias"] = torch.zeros(out)
        if config.norm == "batch" and layer < config.layers - 1:
            weights[f"layers.{layer}.gain"] = torch.ones(out)
    return {name: w.to(device) for name, w in weights.items()}


# ---- at the holders ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Holders:
    """What a cohort of holders works out once. pattern [N, N]: its edges; x [N, F]; train [n]: rows it owns
    and trains on."""

    cohort: Cohort
    pattern: SparseMatrix
    x: Tensor | SparseMatrix
    train: Tensor

    @property
    def device(self) -> torch.device:
        return self.cohort.id.device


def prepare(cohort: Cohort, config: SapgnnConfig) -> Holders:
    assert cohort.x is not None
    source, target = cohort.edge_index
    ones = torch.ones(len(source), device=source.device)
    pattern = SparseMatrix.from_coo(target, source, ones, (cohort.num_rows, cohort.num_rows))
    x = cohort.x
    if config.maps == "identity" and isinstance(x, SparseMatrix):
        x = x.to_dense()
    return Holders(cohort, pattern, x, cohort.rows("train"))


def vertex_ids(prepared: Holders) -> RowIds:
    return RowIds(prepared.cohort.id, prepared.cohort.client)


def count_training(prepared: Holders) -> Tensor:
    return torch.tensor(len(prepared.train), device=prepared.device)


def features(prepared: Holders) -> Tensor | SparseMatrix:
    return prepared.x


def local_embedding(
    h: Tensor | SparseMatrix, prepared: Holders, local: Weights, layer: int, config: SapgnnConfig
) -> Tensor:
    """Eqs. (4)-(6): z^p [N, u_l], -inf where a vertex has no neighbour here. With pooling=min it is what the
    server turns around: min = -max(-.)."""
    update, weight = UPDATES[config.update], local.get(f"layers.{layer}.tropical")
    if config.maps == "linear":
        own, message = (_times(h, local[f"layers.{layer}.{name}"]) for name in ("self", "message"))
    else:
        assert isinstance(h, Tensor)
        own = message = h
    if config.pooling == "min":
        message, weight = -message, None if weight is None else -weight
        own = -own if update.odd else own
    return update.apply(own, neighbour_max(prepared.pattern, message), weight)


def _times(h: Tensor | SparseMatrix, weight: Tensor) -> Tensor:
    return spmm(h, weight) if isinstance(h, SparseMatrix) else h @ weight


def predict_rows(h: Tensor, local: Weights) -> Tensor:
    """Logits [N, C] of every vertex held."""
    if "predictor.weight" not in local:
        return h
    return h @ local["predictor.weight"] + local["predictor.bias"]


def loss_share(prepared: Holders, logits: Tensor, total: Tensor) -> Tensor:
    """(n_p / n) L_p: the summed loss of the training vertices owned here, over the number of all."""
    rows = prepared.train
    return cross_entropy(logits[rows], prepared.cohort.y[rows], reduction="sum") / total


def rows_of(prepared: Holders, logits: Tensor, target: str) -> Tensor:
    return logits[prepared.cohort.rows(target)].detach()


# ---- at the server -----------------------------------------------------------------------------------------


def check_count(total: Tensor) -> Tensor:
    if not bool(total):
        raise InputError("no client has a training vertex; use another split or partition")
    return total


def global_embedding(
    z: Tensor, table: RouteTable, global_: Weights, layer: int, config: SapgnnConfig, key: int | None
) -> Tensor:
    """Eq. (8): h' [U, d_{l+1}] of the pooled z [U, u_l]. key: of the dropout's draws, None for none."""
    z = z.masked_fill(z.isneginf(), 0)
    z = -z if config.pooling == "min" else z
    h = z @ global_[f"layers.{layer}.weight"] + global_[f"layers.{layer}.bias"]
    if layer == config.layers - 1:
        return h
    gain = global_.get(f"layers.{layer}.gain")
    if gain is not None:
        h = (h - h.mean(0)) / (h.var(0, unbiased=False) + 1e-5).sqrt() * gain
    h = h.relu()
    return h if key is None else Dropout(config.dropout, key).rows(h, table.ids, layer)


# ---- the program over places -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Prepared:
    """`Holders` at the clients, the route of all their vertices, and how many training vertices there are."""

    holders: Located
    route: Route
    total: Located


def setup(fed: Federation, data: Located, task: Task, config: SapgnnConfig) -> State:
    holders = fed.clients.run(prepare, data, config)
    route = fed.route(fed.clients.run(vertex_ids, holders), name="sapgnn/vertex_ids")
    total = fed.sum(fed.clients.run(count_training, holders), name="sapgnn/training_count", grad=False)
    total = fed.broadcast(fed.server.run(check_count, total), name="sapgnn/training_total", grad=False)
    local = fed.clients.run(initial_local, holders, task, config)
    global_ = fed.server.run(initial_global, task, config, str(fed.device))
    values = {
        "local": local,
        "global": global_,
        "local_optimizer": fed.clients.run(fresh, local, config),
        "global_optimizer": fed.server.run(fresh, global_, config),
    }
    return State(values, Prepared(holders, route, total))


def fresh(weights: Weights, config: SapgnnConfig) -> AdamState:
    return adam_init(weights) if config.optimizer == "adam" else {}


def forward(
    fed: Federation,
    prepared: Prepared,
    local: Located,
    global_: Located,
    config: SapgnnConfig,
    *,
    key: int | None,
    grad: bool,
) -> Located:
    """Algorithm 1: logits of every vertex, at its holders."""
    h = fed.clients.run(features, prepared.holders)
    table = fed.table(prepared.route)
    for layer in range(config.layers):
        z = fed.clients.run(local_embedding, h, prepared.holders, local, layer, config)
        z = fed.max(z, prepared.route, name="sapgnn/local_embedding", grad=grad)
        h = fed.server.run(global_embedding, z, table, global_, layer, config, key)
        h = fed.download(h, prepared.route, name="sapgnn/global_embedding", grad=grad)
    logits: Located = fed.clients.run(predict_rows, h, local)
    return logits


def round(fed: Federation, state: State, config: SapgnnConfig, number: int) -> State:
    prepared: Prepared = state.prepared
    key = fold(config.seed, "dropout", number) if config.dropout else None
    with fed.tape():  # Algorithm 2
        local = fed.clients.run(as_leaves, state.values["local"])
        global_ = fed.server.run(as_leaves, state.values["global"])
        logits = forward(fed, prepared, local, global_, config, key=key, grad=True)
        fed.backward(fed.clients.run(loss_share, prepared.holders, logits, prepared.total))
    new_local, local_optimizer = state.values["local"], state.values["local_optimizer"]
    if has_local_weights(config):
        gradient = fed.sum(fed.gradients(local), name="sapgnn/local_gradient", grad=False)
        gradient = fed.broadcast(gradient, name="sapgnn/summed_gradient", grad=False)
        new_local, local_optimizer = fed.clients.run(
            step, local, gradient, local_optimizer, config, outputs=2
        )
    new_global, global_optimizer = fed.server.run(
        step, global_, fed.gradients(global_), state.values["global_optimizer"], config, outputs=2
    )
    return replace(
        state,
        values={
            "local": new_local,
            "global": new_global,
            "local_optimizer": local_optimizer,
            "global_optimizer": global_optimizer,
        },
    )


def step(
    weights: Weights, gradients: Weights, optimizer: AdamState, config: SapgnnConfig
) -> tuple[Weights, AdamState]:
    weights = {name: w.detach() for name, w in weights.items()}
    if config.optimizer == "sgd":
        return sgd(weights, gradients, config.lr, config.weight_decay), optimizer
    return adam(weights, gradients, optimizer, config.lr, config.weight_decay)


def predict(fed: Federation, state: State, config: SapgnnConfig, target: str) -> Located:
    """All holders and the server together: nobody has the whole model."""
    values, prepared = state.values, state.prepared
    logits = forward(fed, prepared, values["local"], values["global"], config, key=None, grad=False)
    rows: Located = fed.clients.run(rows_of, prepared.holders, logits, target)
    return rows


MESSAGES = {
    "sapgnn/vertex_ids": "The ids of a holder's vertices: the server learns who holds which vertex.",
    "sapgnn/training_count": "How many training vertices each holder owns: one number, which the server "
    "reads.",
    "sapgnn/training_total": "From the server: how many training vertices there are in all.",
    "sapgnn/local_embedding": "For every vertex a holder has, in every layer, numbers worked out of the "
    "vertex's own embedding and the maximum over its neighbours there. The server reads them. With "
    "maps=identity those of the first layer are the features themselves.",
    "sapgnn/global_embedding": "From the server: the embedding of each of a holder's vertices, pooled "
    "over all holders' edges, in every layer.",
    "sapgnn/global_embedding/grad": "The gradient of the loss for each of those embeddings. The server "
    "reads it; of the last layer it tells which vertices are trained on, and with predictor=server their "
    "labels.",
    "sapgnn/local_embedding/grad": "From the server: the gradient for each number that a holder sent, "
    "zero where another holder's was larger.",
    "sapgnn/local_gradient": "The gradient of each holder's maps before upload, which the server adds up. "
    "The server reads each one; from it, features can in part be inferred.",
    "sapgnn/summed_gradient": "From the server: the sum of these gradients, so that all holders take the "
    "same step.",
}

METHOD = Method(
    name="sapgnn",
    summary="split learning: every layer pooled by maximum over all holders' edges, at the server",
    paper="Shan, Jiao, Song: Towards representation identical privacy-preserving graph neural network via "
    "split learning. 2021, arXiv:2107.05917",
    needs=("both ends of an edge at one site", "no edge weights"),
    crosses="local embeddings and their gradients, every layer and round",
    config=SapgnnConfig,
    setup=setup,
    round=round,
    predict=predict,
    messages=MESSAGES,
    model=("local", "global"),
    replicated=("local",),
    defaults={"hidden": 64, "optimizer": "adam", "lr": 0.01, "rounds": 300},
)
