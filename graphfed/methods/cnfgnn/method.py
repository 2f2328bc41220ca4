"""CNFGNN: Meng, Rambhatla and Liu, "Cross-node federated graph neural network for spatio-temporal data
modeling", KDD 2021 (arXiv:2106.05223).

    paper                   here
    node i                  a client: one sensor with its series
    x_i [m, D], y_i         Batch.x, Batch.truth: the standardised reading and the time of day; readings
    theta_c, theta_c,i      weights (`nn.gru`): of all, or one set for each client
    h_c,i                   hidden [P, W, H]
    theta_GN                network (`nn.graph_network`), at the server only
    h_G,c,i                 embeddings [P, W, H]
    R_g, R_c, R_s           rounds, local_epochs, server_rounds
    eta_c, eta_s            lr, server_lr

Five ways to train the same networks (setting `strategy`; Section 3.2.3 and Table 10):

    at_fedavg       Alg. 1 and 2, the paper's method: alternating training, clients' weights averaged
    at              Alg. 1 without line 11: every client keeps weights of its own
    sl              split learning: in every batch encodings go up, embeddings come down, and gradients of
                    both go the other way
    sl_fedavg       the same, and clients' weights are averaged after every round
    centralised     every sensor sends its readings to the server, which trains by itself

A round of AT + FedAvg sends 2 N W + (2 + 2 R_s) N S H numbers (N clients, W weights, S windows), one of SL
4 N S H. Per server round AT sends (2 + 2 R_s) / R_s times N S H, which is less than SL's 4 from R_s = 2 on.

Differs from the paper: the graph network takes means where the paper's takes sums, which grow with the
number of sensors, so that a larger network has sums that training has not seen (the paper:
network=graph_network). It steps down the mean over nodes, not the sum (line 27), as the authors' program does
and Adam mostly hides. Weights of nodes are averaged alike, since all have as many
windows (N_i / N). A missing reading is left out of losses unless missing=as_read, as the paper trains. The
scale is a federated statistic. Every client draws the same order of windows."""

from dataclasses import dataclass

import torch
from torch import Tensor

from graphfed.data.sensors.windows import TimeSplit
from graphfed.errors import InputError
from graphfed.federation import Federation, Located, as_leaves
from graphfed.federation.functions import empty_state
from graphfed.federation.secure.aggregation import check_sums
from graphfed.federation.series import Network, SensorData, starts_of
from graphfed.federation.wrap import Chained, Quantised, Wrapper
from graphfed.methods.base import Method, Sent, State, StateValues, Task
from graphfed.methods.cnfgnn.config import ALTERNATING, CNFGNNConfig, epsilon_of
from graphfed.methods.cnfgnn.server_gnn import get_server_network
from graphfed.methods.common import averaging
from graphfed.methods.common.forecasting import (
    MESSAGES,
    PART,
    WINDOWS,
    Batch,
    Standardised,
    Weights,
    absent,
    batch_of,
    client_gradients,
    client_losses,
    common_split,
    decode,
    descend,
    encode,
    expanded,
    fit_scaler,
    gradients_of,
    joined,
    of_present,
    parts_of,
    pool,
    standardise,
    teaching,
)
from graphfed.methods.common.local_forecasters import (
    average,
)
from graphfed.methods.common.memory import NUMBER, SeriesExtent
from graphfed.methods.tasks import FORECASTING
from graphfed.nn import gru
from graphfed.nn.edges import Edges, induced
from graphfed.nn.gru import Forecaster
from graphfed.nn.optim import AdamState
from graphfed.nn.precision import product_dtype
from graphfed.privacy.clipped import ClippedNoise
from graphfed.random import fold, permutation

__all__ = ["METHOD"]


@dataclass(frozen=True)
class Prepared:
    """data: as it was given; training: every client's `Standardised` series, at the clients (of strategy
    centralised at the server); edges: of the sensors that take part, at the server; split: how the windows
    are divided."""

    data: SensorData
    training: Located
    edges: Located
    split: TimeSplit


# ---- networks ----------------------------------------------------------------------------------------------


def first_weights(config: CNFGNNConfig, device: str) -> dict[str, Tensor]:
    """The shared first weights, which everyone draws from the seed."""
    forecaster = Forecaster(encoder=config.hidden, decoder=2 * config.hidden)
    return {k: w.to(device) for k, w in gru.init(fold(config.seed, "weights"), forecaster).items()}


def wire_of(config: CNFGNNConfig) -> Wrapper | None:
    """What goes around encodings on their way to the server."""
    noise = None
    if config.clip is not None:
        protection = f"dp(eps={epsilon_of(config):.4g}, delta={config.delta:g})"
        noise = ClippedNoise(config.clip, config.noise_multiplier, protection)
    if config.hidden_bits == 32:
        return noise
    # An encoding's numbers are between -1 and 1.
    return Quantised() if noise is None else Chained(noise, Quantised(noise.reach))


def first_network(config: CNFGNNConfig, device: str) -> dict[str, Tensor]:
    drawn = get_server_network(config.network).init(fold(config.seed, "network"), config.hidden)
    return {k: w.to(device) for k, w in drawn.items()}


def embed(network: Weights, hidden: Tensor, edges: Edges, config: CNFGNNConfig) -> Tensor:
    """h_G [P, B, H] of h_c [P, B, H]."""
    products = product_dtype(config.precision, hidden.device)
    return get_server_network(config.network).forward(network, hidden, edges, products)


def forecast(
    weights: Weights, batch: Batch, hidden: Tensor, embeddings: Tensor, teach: Tensor | None = None
) -> Tensor:
    """Eq. (2): [P, B, n], from the last step and [h_c ; h_G]."""
    return decode(weights, batch, torch.cat([hidden, embeddings], -1), teach)


# ---- at the clients ----------------------------------------------------------------------------------------


def own_weights(data: Standardised, config: CNFGNNConfig) -> dict[str, Tensor]:
    """A set for each client, of strategies in which they keep their own; else one for all."""
    shared = first_weights(config, str(data.value.device))
    return (
        shared if config.averages else {k: w.clone() for k, w in expanded(shared, data.num_clients).items()}
    )


def no_embeddings(data: Standardised, config: CNFGNNConfig) -> Tensor:
    """Zeros [P, S, H], before the first round (Alg. 1, l. 4)."""
    return data.value.new_zeros(data.num_clients, len(data.starts("train")), config.hidden)


def train_locally(
    data: Standardised,
    weights: Weights,
    embeddings: Tensor,
    optimizer: AdamState,
    config: CNFGNNConfig,
    number: int,
) -> tuple[dict[str, Tensor], AdamState]:
    """ClientUpdate (Alg. 2): R_c passes with the embeddings h_G as they are, and no gradient through them;
    one set of weights for each client comes out, [P, ...]."""
    starts = data.starts("train")
    own = expanded(weights, data.num_clients) if config.averages else dict(weights)
    step = (number - 1) * config.local_epochs * -(-len(starts) // config.batch)
    for epoch in range(config.local_epochs):
        order = permutation(fold(config.seed, "windows", number, epoch), len(starts)).to(starts.device)
        for part in parts_of(len(order), config.batch):
            batch, received = batch_of(data, starts[order[part]]), embeddings[:, order[part]]
            teach = teaching(config, "clients", step)

            def outputs(
                w: Weights,
                few: slice,
                batch: Batch = batch,
                received: Tensor = received,
                teach: Tensor | None = teach,
            ) -> Tensor:
                mine = batch.of(few)
                return forecast(w, mine, encode(w, mine), received[few], teach)

            own, optimizer = descend(own, client_gradients(own, batch, outputs), optimizer, config, config.lr)
            step += 1
    return own, optimizer if config.client_state == "keep" else {}


def encode_windows(data: Standardised, weights: Weights, target: str, part: slice | None) -> Tensor:
    """ClientEncode (Alg. 2): h_c of a target's windows, [P, W, H]."""
    starts = data.starts(target)
    chosen = starts if part is None else starts[part]
    with torch.no_grad():
        encoded = [encode(weights, batch_of(data, chosen[some])) for some in parts_of(len(chosen), PART)]
    return torch.cat(encoded, 1)


def encode_batch(data: Standardised, weights: Weights, order: Tensor, part: slice) -> Tensor:
    """h_c of a part of the training windows in their order [S], with a gradient: [P, B, H]."""
    return encode(weights, batch_of(data, data.starts("train")[order[part]]))


def batch_in_order(hidden: Tensor, order: Tensor, part: slice) -> Tensor:
    """A part of the training windows [P, S, H] in their order [S]: [P, B, H]."""
    return hidden[:, order[part]]


def loss_of_batch(
    data: Standardised,
    weights: Weights,
    hidden: Tensor,
    embeddings: Tensor,
    order: Tensor,
    part: slice,
    config: CNFGNNConfig,
    step: int,
) -> Tensor:
    """The sum over the cohort's clients of l_i, of a part of the training windows in their order [S] (Alg. 2,
    ClientBackward)."""
    batch = batch_of(data, data.starts("train")[order[part]])
    teach = teaching(config, "server", step)
    return client_losses(forecast(weights, batch, hidden, embeddings, teach), batch).sum()


def forecast_part(
    data: Standardised, weights: Weights, hidden: Tensor, embeddings: Tensor, target: str, part: slice
) -> Tensor:
    """[P, B, n], in the unit of the readings."""
    batch = batch_of(data, data.starts(target)[part])
    with torch.no_grad():
        return data.restored(forecast(weights, batch, hidden, embeddings))


def own_step(
    weights: Weights, gradients: Weights, optimizer: AdamState, config: CNFGNNConfig
) -> tuple[dict[str, Tensor], AdamState]:
    return descend({k: w.detach() for k, w in weights.items()}, gradients, optimizer, config, config.lr)


def start_of_round(data: Standardised, weights: Weights, config: CNFGNNConfig) -> dict[str, Tensor]:
    """A set of weights for each client."""
    return expanded(weights, data.num_clients) if config.averages else dict(weights)


def ended(optimizer: AdamState, config: CNFGNNConfig) -> AdamState:
    """What a client keeps of its optimiser after a round."""
    return optimizer if config.client_state == "keep" else {}


# ---- at the server -----------------------------------------------------------------------------------------


def graph_of(network: Network, absent: tuple[int, ...]) -> Edges:
    """The edges among the sensors that take part."""
    if not absent:
        return network.edges
    keep = torch.ones(network.edges.num_nodes, dtype=torch.bool, device=network.edges.sender.device)
    keep[list(absent)] = False
    return induced(network.edges, keep)


def facts_of(config: CNFGNNConfig) -> dict[str, Tensor]:
    """For the result: how many weights a client and the server have, and epsilon of noised encodings."""
    facts = {
        "client_weights": torch.tensor(sum(w.numel() for w in first_weights(config, "cpu").values())),
        "network_weights": torch.tensor(sum(w.numel() for w in first_network(config, "cpu").values())),
    }
    if config.clip is not None:
        facts["epsilon_of_encodings"] = torch.tensor(epsilon_of(config), dtype=torch.float64)
    return facts


def embed_part(network: Weights, hidden: Tensor, part: slice, edges: Edges, config: CNFGNNConfig) -> Tensor:
    with torch.no_grad():
        return embed(network, hidden[:, part], edges, config)


def network_step(
    network: Weights, gradients: Weights, optimizer: AdamState, edges: Edges, config: CNFGNNConfig
) -> tuple[dict[str, Tensor], AdamState]:
    """Down the mean over the P nodes of their losses' gradients (Alg. 1, l. 27 and 28)."""
    mean = {k: g / edges.num_nodes for k, g in gradients.items()}
    return descend({k: w.detach() for k, w in network.items()}, mean, optimizer, config, config.server_lr)


# ---- centralised training: at the server, which gets the readings ------------------------------------------


def train_centrally(
    data: Standardised,
    weights: Weights,
    network: Weights,
    optimizer: AdamState,
    network_optimizer: AdamState,
    edges: Edges,
    config: CNFGNNConfig,
    number: int,
) -> tuple[Weights, Weights, AdamState, AdamState]:
    """One pass over the training windows: both networks step down the mean loss over nodes."""
    starts = data.starts("train")
    count = -(-len(starts) // config.batch)
    order = permutation(fold(config.seed, "windows", number, 0), len(starts)).to(starts.device)
    for i, part in enumerate(parts_of(len(order), config.batch)):
        batch = batch_of(data, starts[order[part]])
        teach = teaching(config, "clients", (number - 1) * count + i)
        mine, theirs = (
            {k: w.detach().requires_grad_() for k, w in each.items()} for each in (weights, network)
        )
        hidden = encode(mine, batch)
        embeddings = embed(theirs, hidden, edges, config)
        outputs = forecast(mine, batch, hidden, embeddings, teach)
        torch.autograd.backward(client_losses(outputs, batch).mean())
        weights, optimizer = descend(weights, gradients_of(mine), optimizer, config, config.lr)
        network, network_optimizer = descend(
            network, gradients_of(theirs), network_optimizer, config, config.server_lr
        )
    return weights, network, optimizer, network_optimizer


def forecast_centrally(
    data: Standardised, weights: Weights, network: Weights, edges: Edges, count: int, config: CNFGNNConfig
) -> Tensor:
    """The forecasts of `count` windows that follow each other, from the first step on: [P, W, n], in the unit
    of the readings."""
    forecasts = []
    with torch.no_grad():
        for part in parts_of(count, PART):
            batch = batch_of(data, torch.arange(part.start, part.stop, device=data.value.device))
            hidden = encode(weights, batch)
            embeddings = embed(network, hidden, edges, config)
            forecasts.append(data.restored(forecast(weights, batch, hidden, embeddings)))
    return torch.cat(forecasts, 1)


# ---- the method --------------------------------------------------------------------------------------------


def memory(extent: SeriesExtent, config: CNFGNNConfig) -> float:
    """Forecasts of the scored windows, with the embeddings that they are made from."""
    steps = config.lags + config.horizon
    return 1.5 * NUMBER * extent.sensors * extent.scored * steps * config.hidden


def setup(fed: Federation, data: SensorData, task: Task, config: CNFGNNConfig) -> State:
    """The common scale, and first weights everywhere."""
    check_sums(fed, config.aggregation, int(fed.roster.sum()))
    if not config.averages and config.strategy != "centralised" and not fed.roster.all():
        raise InputError(
            f"strategy={config.strategy} gives every sensor weights of its own, and sensors that training "
            "does not see have none to forecast with; use strategy=at_fedavg, or another split"
        )
    if config.clip is not None:
        fed.log(
            f"encodings cross clipped and noised: epsilon {epsilon_of(config):.4g} (delta {config.delta:g}) "
            f"for one reading over {config.rounds} rounds; weights, statistics and gradients cross beside "
            "them without noise"
        )
    split = common_split(fed, data.network)
    edges = fed.server.run(graph_of, data.network, absent(fed))
    scaler = fit_scaler(fed, data.series, config)
    device = str(fed.device)
    values = {
        "scaler": scaler,
        "network": fed.server.run(first_network, config, device),
        "network_optimizer": fed.server.run(empty_state),
        "facts": fed.server.run(facts_of, config),
    }
    if config.strategy == "centralised":
        values["weights"] = fed.server.run(first_weights, config, device)
        values["optimizer"] = fed.server.run(empty_state)
        training = pool(fed, data, scaler, split, "train", config)
    else:
        told = fed.broadcast(scaler, name="scaler", grad=False)
        training = fed.clients.run(standardise, data.series, fed.present(), told, config)
        own = fed.clients.run(own_weights, training, config)
        if config.averages:
            values["weights"], values["own"] = fed.server.run(first_weights, config, device), own
        else:
            values["weights"] = own
        values["optimizer"] = fed.clients.run(empty_state)
        if config.strategy in ALTERNATING:
            values["embeddings"] = fed.clients.run(no_embeddings, training, config)
    return State(values, Prepared(data, training, edges, split))


def in_order(fed: Federation, key: int, count: int) -> tuple[Located, Located]:
    """The numbers of training windows in an order that the key draws, alike at the clients and at the server:
    [S] int64."""
    device = str(fed.device)
    return fed.clients.run(draw_order, key, count, device), fed.server.run(draw_order, key, count, device)


def draw_order(key: int, count: int, device: str) -> Tensor:
    return permutation(key, count).to(device)


def round(fed: Federation, state: State, config: CNFGNNConfig, number: int) -> State:
    if config.strategy == "centralised":
        return central_round(fed, state, config, number)
    return (alternate if config.strategy in ALTERNATING else split_learning)(fed, state, config, number)


def alternate(fed: Federation, state: State, config: CNFGNNConfig, number: int) -> State:
    """Alg. 1: clients train on embeddings that stand still, then the graph network on clients that do."""
    prepared: Prepared = state.prepared
    data, edges, count = prepared.training, prepared.edges, len(starts_of(prepared.split, "train"))
    values = dict(state.values)
    # (1) lines 7 to 14
    start = values["own"] if config.averages else values["weights"]
    own, values["optimizer"] = fed.clients.run(
        train_locally, data, start, values["embeddings"], values["optimizer"], config, number, outputs=2
    )
    own = average_own(fed, prepared, own, values, config)
    # (2) lines 15 to 18
    hidden = fed.clients.run(encode_windows, data, own, "train", None)
    encoded = fed.collect(hidden, name="hidden", grad=False, wrap=wire_of(config))
    # (3) lines 19 to 30
    steps = -(-count // config.server_batch)
    for epoch in range(config.server_rounds):
        order = in_order(fed, fold(config.seed, "server windows", number, epoch), count)
        for i, part in enumerate(parts_of(count, config.server_batch)):
            step = ((number - 1) * config.server_rounds + epoch) * steps + i
            mine = fed.clients.run(batch_in_order, hidden, order[0], part)
            theirs = fed.server.run(batch_in_order, encoded, order[1], part)
            with fed.tape():
                leaves = fed.server.run(as_leaves, values["network"])
                received = fed.scatter(
                    fed.server.run(embed, leaves, theirs, edges, config), name="embeddings"
                )
                loss = fed.clients.run(loss_of_batch, data, own, mine, received, order[0], part, config, step)
                fed.backward(loss)
            step_network(fed, leaves, values, edges, config)
    # (4) lines 31 to 35
    parts = []
    for part in parts_of(count, PART):
        embedded = fed.server.run(embed_part, values["network"], encoded, part, edges, config)
        parts.append(fed.scatter(embedded, name="final_embeddings", grad=False))
    values["embeddings"] = fed.clients.run(joined, *parts)
    return State(values, prepared)


def split_learning(fed: Federation, state: State, config: CNFGNNConfig, number: int) -> State:
    """SL: everyone steps after every batch, on gradients that have gone through all of it."""
    prepared: Prepared = state.prepared
    data, edges, count = prepared.training, prepared.edges, len(starts_of(prepared.split, "train"))
    values = dict(state.values)
    own = fed.clients.run(start_of_round, data, values["own" if config.averages else "weights"], config)
    optimizer = values["optimizer"]
    steps = -(-count // config.batch)
    order, _ = in_order(fed, fold(config.seed, "windows", number, 0), count)
    for i, part in enumerate(parts_of(count, config.batch)):
        with fed.tape():
            mine = fed.clients.run(as_leaves, own)
            leaves = fed.server.run(as_leaves, values["network"])
            hidden = fed.clients.run(encode_batch, data, mine, order, part)
            encoded = fed.collect(hidden, name="hidden", wrap=wire_of(config))
            received = fed.scatter(fed.server.run(embed, leaves, encoded, edges, config), name="embeddings")
            step = (number - 1) * steps + i
            loss = fed.clients.run(loss_of_batch, data, mine, hidden, received, order, part, config, step)
            fed.backward(loss)
        own, optimizer = fed.clients.run(own_step, own, fed.gradients(mine), optimizer, config, outputs=2)
        step_network(fed, leaves, values, edges, config)
    values["optimizer"] = fed.clients.run(ended, optimizer, config)
    average_own(fed, prepared, own, values, config)
    return State(values, prepared)


def average_own(
    fed: Federation, prepared: Prepared, own: Located, values: dict[str, Located], config: CNFGNNConfig
) -> Located:
    """What the clients go on with: the mean of all weights (Alg. 1, l. 11), which the server keeps too, or
    their own."""
    if not config.averages:
        values["weights"] = own
        return own
    values["weights"], values["own"] = average(fed, prepared.data, own, values["weights"], config)
    return values["own"]


def step_network(
    fed: Federation, leaves: Located, values: dict[str, Located], edges: Located, config: CNFGNNConfig
) -> None:
    """Put the graph network after a step into `values`."""
    values["network"], values["network_optimizer"] = fed.server.run(
        network_step,
        values["network"],
        fed.gradients(leaves),
        values["network_optimizer"],
        edges,
        config,
        outputs=2,
    )


def central_round(fed: Federation, state: State, config: CNFGNNConfig, number: int) -> State:
    prepared: Prepared = state.prepared
    values = dict(state.values)
    names = ("weights", "network", "optimizer", "network_optimizer")
    trained = fed.server.run(
        train_centrally,
        prepared.training,
        *(values[name] for name in names),
        prepared.edges,
        config,
        number,
        outputs=4,
    )
    return State(values | dict(zip(names, trained, strict=True)), prepared)


def predict(fed: Federation, state: State, config: CNFGNNConfig, target: str) -> Located:
    """Every sensor's own inputs, and the embeddings that the server makes of all sensors' encodings."""
    prepared: Prepared = state.prepared
    data, starts = prepared.data, starts_of(prepared.split, target)
    edges = fed.server.run(graph_of, data.network, absent(fed))
    if config.strategy == "centralised":
        sent = pool(fed, data, state.values["scaler"], prepared.split, target, config)
        forecasts = fed.server.run(
            forecast_centrally,
            sent,
            state.weights,
            state.values["network"],
            edges,
            len(starts),
            config,
        )
        return fed.scatter(forecasts, name="forecasts", grad=False)
    scaler = fed.broadcast(state.values["scaler"], name="scaler", grad=False)
    series = fed.clients.run(standardise, data.series, fed.present(), scaler, config)
    if config.averages:
        weights = fed.broadcast(state.weights, name="model", grad=False)
    else:
        weights = fed.clients.run(of_present, state.weights, fed.present())
    parts = []
    for part in parts_of(len(starts), PART):
        hidden = fed.clients.run(encode_windows, series, weights, target, part)
        encoded = fed.collect(hidden, name="hidden", grad=False, wrap=wire_of(config))
        embedded = fed.server.run(embed_part, state.values["network"], encoded, slice(None), edges, config)
        embeddings = fed.scatter(embedded, name="embeddings", grad=False)
        parts.append(fed.clients.run(forecast_part, series, weights, hidden, embeddings, target, part))
    return fed.clients.run(joined, *parts)


ALL_MESSAGES = {
    **MESSAGES,
    **WINDOWS,
    **averaging.MESSAGES,
    "model": "The shared weights of encoder and decoder, from the server to every client (strategies "
    "at_fedavg and sl_fedavg).",
    "update": "Only with aggregation=plaintext, of strategies at_fedavg and sl_fedavg: each client's "
    "weights after its training, which the server averages. The server reads each client's; from weights, "
    "readings can in part be inferred.",
    "hidden": "The encoding of each window of a client: as many numbers as the network is wide, from which "
    "the readings of the window can largely be reconstructed (`graphfed audit`). The server reads each "
    "client's.",
    "hidden/grad": "Only in split learning: how the loss of all clients changes with a client's encodings, "
    "from the server to that client.",
    "embeddings": "What the server's graph network makes of the encodings, each client's own, in training "
    "and to forecast.",
    "embeddings/grad": "How the loss of a client changes with its embeddings: as many numbers a window. It "
    "depends on the readings that are forecast. The server reads each client's.",
    "final_embeddings": "What embeddings are at the end of a round, each client's own (alternating "
    "training).",
    "readings": "Only with strategy=centralised: a client's readings, in clear. The server reads them all.",
    "forecasts": "Only with strategy=centralised: each client's forecasts, from the server.",
}

METHOD = Method(
    name="cnfgnn",
    summary="every sensor encodes and forecasts its own series, a graph network at the server relates them",
    paper="Meng, Rambhatla, Liu: Cross-node federated graph neural network for spatio-temporal data "
    "modeling. KDD 2021, arXiv:2106.05223",
    config=CNFGNNConfig,
    tasks=(FORECASTING,),
    partition="sensors",
    setup=setup,
    round=round,
    predict=predict,
    memory=memory,
    state=StateValues(
        model=("weights", "network", "scaler"),
        facts="facts",
        scratch=("own", "embeddings", "optimizer", "network_optimizer"),
    ),
    sends=Sent(
        summary="encodings, embeddings and their gradients, and weights, every round",
        protection=averaging.PROTECTION,
        messages=ALL_MESSAGES,
    ),
    paper_settings={"network": "graph_network"},
)
