"""What the clients and the server of CNFGNN compute; `method.py` says in which order.

Shapes: P clients of a cohort or N of all, S training windows, B windows of a batch, W windows of a target, n
steps of a forecast, H hidden width. The algorithms' lines are those of docs/papers/cnfgnn.md.
"""

import torch
from torch import Tensor

from graphfed.federation.series import Network
from graphfed.federation.wrap import Chained, Quantised, Wrapper
from graphfed.methods.cnfgnn.config import CNFGNNConfig, Schedule, epsilon_of
from graphfed.methods.common import forecasting
from graphfed.methods.common.forecasting import Batch, Standardised, Weights
from graphfed.methods.parts import ClientOptimizer, Training
from graphfed.nn import gru
from graphfed.nn.edges import Edges, induce_subgraph
from graphfed.nn.gru import Forecaster
from graphfed.nn.optim import AdamState
from graphfed.nn.precision import product_dtype
from graphfed.privacy.clipped import ClippedNoise
from graphfed.random import fold, permutation

# ---- networks ----------------------------------------------------------------------------------------------


def first_weights(config: CNFGNNConfig, device: str) -> dict[str, Tensor]:
    """Draw the initial weights of encoder and decoder, the same at every participant."""
    hidden, mask = config.recurrent.hidden, config.recurrent.missing_mask
    # The decoder starts from [h_c ; h_G], so its state is twice as wide.
    forecaster = Forecaster(encoder=hidden, decoder=2 * hidden, encoder_only=int(mask))
    return {k: w.to(device) for k, w in gru.init(fold(config.run.seed, "weights"), forecaster).items()}


def wire_of(config: CNFGNNConfig) -> Wrapper | None:
    """Return what encodings are sent in: clipping with noise, quantisation to 8 bits, both, or None."""
    encodings, noise = config.encodings, None
    if encodings.clip is not None:
        protection = f"dp(eps={epsilon_of(config):.4g}, delta={encodings.delta:g})"
        noise = ClippedNoise(encodings.clip, encodings.noise_multiplier, protection)
    if encodings.hidden_bits == 32:
        return noise
    # The numbers of an encoding are between -1 and 1, so quantisation needs no scale.
    return Quantised() if noise is None else Chained(noise, Quantised(noise.reach))


def first_network(config: CNFGNNConfig, device: str) -> dict[str, Tensor]:
    """Draw the initial weights of the server's graph network."""
    drawn = config.server_network.functions.init(fold(config.run.seed, "network"), config.recurrent.hidden)
    return {k: w.to(device) for k, w in drawn.items()}


def embed(
    network: Weights, hidden: Tensor, edges: Edges, config: CNFGNNConfig, senders: Tensor | None = None
) -> Tensor:
    """Compute the embeddings h_G [N, B, H] from the encodings h_c `hidden` [N, B, H] of all clients (Eq.
    (3)).

    senders: [N, B] bool: where a client's encoding counts for others; None for everywhere.
    """
    products = product_dtype(config.sequences.precision, hidden.device)
    return config.server_network.functions.forward(network, hidden, edges, products, senders)


def forecast(
    weights: Weights, batch: Batch, hidden: Tensor, embeddings: Tensor, teach: Tensor | None = None
) -> Tensor:
    """Forecast from the last reading and [h_c ; h_G], [P, B, n]; hidden and embeddings are [P, B, H].

    teach: for which steps the decoder reads the true reading (scheduled sampling); None for none.
    """
    # Eq. (2)
    return forecasting.decode(weights, batch, torch.cat([hidden, embeddings], -1), teach)


# ---- at the clients ----------------------------------------------------------------------------------------


def local_weights(data: Standardised, config: CNFGNNConfig) -> dict[str, Tensor]:
    """Draw the clients' initial weights (Alg. 1, l. 3): one set if clients average them, else a set for each
    client, [P, ...].
    """
    shared = first_weights(config, str(data.value.device))
    if config.schedule.averages:
        return shared
    # Cloned: these are values of the state, and expanded views share one memory.
    return {k: w.clone() for k, w in forecasting.expanded(shared, data.num_clients).items()}


def initial_embeddings(data: Standardised, hidden: int) -> Tensor:
    """Return the embeddings before the first round: zeros, [P, S, H]."""
    # Alg. 1, l. 4
    return data.value.new_zeros(data.num_clients, len(data.starts("train")), hidden)


def train_locally(
    data: Standardised,
    weights: Weights,
    embeddings: Tensor,
    optimizer: AdamState,
    config: CNFGNNConfig,
    round_number: int,
) -> tuple[dict[str, Tensor], AdamState]:
    """Train the clients' weights on the embeddings [P, S, H] of the round before (Alg. 2, ClientUpdate).

    weights: shared, or a set for each client, [P, ...]. optimizer: empty for a new one. Returns a set of
    weights for each client, and the optimiser for the next round.
    """
    # Alg. 2 takes the embeddings as inputs: no gradient passes through them.
    starts = data.starts("train")
    local, training = start_of_round(data, weights, config.schedule), config.training
    before = local, optimizer
    epochs, size = config.schedule.local_epochs, config.sequences.batch
    steps = epochs * -(-len(starts) // size)
    # Scheduled sampling counts steps over all rounds.
    step = (round_number - 1) * steps
    for epoch in range(epochs):  # Alg. 2, ClientUpdate, l. 1
        key = fold(config.run.seed, "windows", round_number, epoch)
        order = permutation(key, len(starts)).to(starts.device)
        for part in forecasting.parts_of(len(order), size):
            batch, received = forecasting.batch_of(data, starts[order[part]]), embeddings[:, order[part]]
            teach = forecasting.teaching(config, "clients", step, steps)

            # The batch is bound as defaults: the function runs later, when the loop has gone on.
            def outputs(
                w: Weights,
                some: slice,
                batch: Batch = batch,
                received: Tensor = received,
                teach: Tensor | None = teach,
            ) -> Tensor:
                of_some = batch.of(some)
                # Alg. 2, ClientUpdate, l. 2 and 3
                return forecast(w, of_some, forecasting.encode(w, of_some), received[some], teach)

            # Alg. 2, ClientUpdate, l. 4 to 6
            gradients = forecasting.client_gradients(local, batch, outputs)
            local, optimizer = forecasting.descend(local, gradients, optimizer, training, training.lr)
            step += 1
    local, optimizer = forecasting.keep_idle(data, before, (local, optimizer), training)
    return local, kept_optimizer(optimizer, config.client_optimizer)


def encode_windows(data: Standardised, weights: Weights, target: str, part: slice | None) -> Tensor:
    """Encode the windows of a target, or a part of them, without a gradient, [P, W, H] (Eq. (1); Alg. 2,
    ClientEncode).
    """
    starts = data.starts(target)
    chosen = starts if part is None else starts[part]
    with torch.no_grad():
        # In parts, because the encoder keeps the states of every step of its windows.
        encoded = [
            forecasting.encode(weights, forecasting.batch_of(data, chosen[some]))
            for some in forecasting.parts_of(len(chosen), forecasting.PART)
        ]
    return torch.cat(encoded, 1)


def encode_batch(data: Standardised, weights: Weights, order: Tensor, part: slice) -> Tensor:
    """Encode a batch of training windows, with a gradient, [P, B, H] (Eq. (1)). part: the batch's places in
    the order [S] of the training windows in this pass.
    """
    return forecasting.encode(weights, forecasting.batch_of(data, data.starts("train")[order[part]]))


def windows_with_readings(data: Standardised, target: str, part: slice) -> Tensor:
    """Return in which windows of a target a sensor has a reading among its inputs, [P, W] bool."""
    return forecasting.with_readings(data, data.starts(target)[part])


def batch_in_order(hidden: Tensor, order: Tensor, part: slice) -> Tensor:
    """Select a batch [P, B, H] of the encodings [P, S, H] of all training windows, or of other values of
    them.
    """
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
    steps: int,
) -> Tensor:
    """Compute the sum over the cohort's clients of l_i on a batch (Alg. 2, ClientBackward, l. 1 and 2).

    hidden, embeddings: [P, B, H] of the batch. part: the batch's places in the order [S] of the training
    windows. step: its number of all, and steps: number in a round, for scheduled sampling.
    """
    batch = forecasting.batch_of(data, data.starts("train")[order[part]])
    teach = forecasting.teaching(config, "server", step, steps)
    return forecasting.client_losses(forecast(weights, batch, hidden, embeddings, teach), batch).sum()


def forecast_part(
    data: Standardised, weights: Weights, hidden: Tensor, embeddings: Tensor, target: str, part: slice
) -> Tensor:
    """Forecast some windows of a target from their encodings and embeddings [P, B, H], in the unit of the
    readings, [P, B, n].
    """
    batch = forecasting.batch_of(data, data.starts(target)[part])
    with torch.no_grad():
        return data.restored(forecast(weights, batch, hidden, embeddings))


def step_locally(
    weights: Weights, gradients: Weights, optimizer: AdamState, training: Training
) -> tuple[dict[str, Tensor], AdamState]:
    """Take one step of the clients' optimiser, on a set of weights for each client. optimizer: empty for a
    new one.
    """
    return forecasting.descend(
        {k: w.detach() for k, w in weights.items()}, gradients, optimizer, training, training.lr
    )


def start_of_round(data: Standardised, weights: Weights, schedule: Schedule) -> dict[str, Tensor]:
    """Return a set of weights for each client [P, ...], with which it starts a round."""
    return forecasting.expanded(weights, data.num_clients) if schedule.averages else dict(weights)


def kept_optimizer(optimizer: AdamState, client_optimizer: ClientOptimizer) -> AdamState:
    """Return the optimiser's state that a client starts the next round with."""
    return optimizer if client_optimizer.client_state == "keep" else {}


# ---- at the server -----------------------------------------------------------------------------------------


def graph_of(network: Network, absent: tuple[int, ...]) -> Edges:
    """Return the edges between the sensors that take part."""
    if not absent:
        return network.edges
    # Absent sensors send no encoding, so they are no nodes of the graph either.
    keep = torch.ones(network.edges.num_nodes, dtype=torch.bool, device=network.edges.sender.device)
    keep[list(absent)] = False
    return induce_subgraph(network.edges, keep)


def facts_of(config: CNFGNNConfig) -> dict[str, Tensor]:
    """Return facts for the result: the numbers of weights, and the epsilon of noised encodings."""
    facts = {
        "client_weights": torch.tensor(sum(w.numel() for w in first_weights(config, "cpu").values())),
        "network_weights": torch.tensor(sum(w.numel() for w in first_network(config, "cpu").values())),
    }
    if config.encodings.clip is not None:
        facts["epsilon_of_encodings"] = torch.tensor(epsilon_of(config), dtype=torch.float64)
    return facts


def embed_part(
    network: Weights,
    hidden: Tensor,
    part: slice,
    edges: Edges,
    config: CNFGNNConfig,
    senders: Tensor | None = None,
) -> Tensor:
    """Compute the embeddings [N, B, H] of some windows from the encodings [N, W, H] of all clients, without a
    gradient; senders as for `embed`.
    """
    with torch.no_grad():
        return embed(network, hidden[:, part], edges, config, None if senders is None else senders[:, part])


def step_server_network(
    network: Weights, gradients: Weights, optimizer: AdamState, edges: Edges, config: CNFGNNConfig
) -> tuple[dict[str, Tensor], AdamState]:
    """Take one step of the graph network (Alg. 1, l. 27 to 29). gradients: the sum over clients of their
    losses' gradients.
    """
    # Alg. 1, l. 27, as a mean over nodes (docs/papers/cnfgnn.md, difference 2)
    mean = {k: g / edges.num_nodes for k, g in gradients.items()}
    # Alg. 1, l. 28
    leaves = {k: w.detach() for k, w in network.items()}
    return forecasting.descend(leaves, mean, optimizer, config.training, config.server_network.server_lr)


# ---- centralised training: at the server, which has the readings -------------------------------------------


def train_centrally(
    data: Standardised,
    weights: Weights,
    network: Weights,
    optimizer: AdamState,
    network_optimizer: AdamState,
    edges: Edges,
    config: CNFGNNConfig,
    round_number: int,
) -> tuple[Weights, Weights, AdamState, AdamState]:
    """Train both networks at the server for one pass over the training windows."""
    starts, size, training = data.starts("train"), config.sequences.batch, config.training
    count = -(-len(starts) // size)
    order = permutation(fold(config.run.seed, "windows", round_number, 0), len(starts)).to(starts.device)
    for i, part in enumerate(forecasting.parts_of(len(order), size)):
        batch = forecasting.batch_of(data, starts[order[part]])
        teach = forecasting.teaching(config, "clients", (round_number - 1) * count + i, count)
        # Alg. 1, l. 27 is a mean over nodes, and so is this loss.
        weight_leaves, network_leaves = (
            {k: w.detach().requires_grad_() for k, w in each.items()} for each in (weights, network)
        )
        hidden = forecasting.encode(weight_leaves, batch)
        senders = (
            forecasting.with_readings(data, starts[order[part]]) if config.recurrent.missing_mask else None
        )
        embeddings = embed(network_leaves, hidden, edges, config, senders)
        outputs = forecast(weight_leaves, batch, hidden, embeddings, teach)
        torch.autograd.backward(forecasting.client_losses(outputs, batch).mean())
        weights, optimizer = forecasting.descend(
            weights, forecasting.gradients_of(weight_leaves), optimizer, training, training.lr
        )
        network, network_optimizer = forecasting.descend(
            network,
            forecasting.gradients_of(network_leaves),
            network_optimizer,
            training,
            config.server_network.server_lr,
        )
    return weights, network, optimizer, network_optimizer


def forecast_centrally(
    data: Standardised, weights: Weights, network: Weights, edges: Edges, count: int, config: CNFGNNConfig
) -> Tensor:
    """Forecast `count` consecutive windows from the first time step on, in the unit of the readings, [N, W,
    n].
    """
    forecasts = []
    with torch.no_grad():
        for part in forecasting.parts_of(count, forecasting.PART):
            # The server has the readings from the first window's start, and windows follow one another.
            starts = torch.arange(part.start, part.stop, device=data.value.device)
            batch = forecasting.batch_of(data, starts)
            hidden = forecasting.encode(weights, batch)
            senders = forecasting.with_readings(data, starts) if config.recurrent.missing_mask else None
            embeddings = embed(network, hidden, edges, config, senders)
            forecasts.append(data.restored(forecast(weights, batch, hidden, embeddings)))
    return torch.cat(forecasts, 1)
