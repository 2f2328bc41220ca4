"""CNFGNN: Meng, Rambhatla and Liu, "Cross-node federated graph neural network for spatio-temporal data
modeling", KDD 2021 (arXiv:2106.05223).

    paper                   here
    node i                  a client: one sensor with its series
    x_i [m, D], y_i         Batch.x, the standardised readings and the time of day; Batch.truth, readings
    theta_c, theta_c,i      weights (`nn.gru`): shared, or one set for each client
    h_c,i                   hidden [P, W, H]: the encodings of windows
    theta_GN                network (`graph_network.py`), at the server only
    h_G,c,i                 embeddings [P, W, H]
    R_g, R_c, R_s           rounds, local_epochs, server_rounds
    eta_c, eta_s            lr, server_lr

Five ways to train the same networks (setting `strategy`; Section 3.2.3 and Table 10):

    at_fedavg       Alg. 1 and 2, the paper's method: alternating training; clients' weights are averaged
    at              Alg. 1 without lines 11 to 14: every client keeps its own weights
    sl              split learning: for every batch clients send encodings and the server returns embeddings;
                    then the gradients of both are sent in the opposite directions
    sl_fedavg       split learning, and clients' weights are averaged after every round
    centralised     every sensor sends its readings to the server, which trains alone

What clients and server compute is in `steps.py`; what a round costs is in `costs.py`.

Differs from the paper (docs/papers/cnfgnn.md gives the reasons, by these numbers): the graph network takes
means where the paper's takes sums (1; the paper's is network=graph_network); line 27 of Alg. 1 is a mean over
nodes (2); batches with a step of Adam each (3); equal weights in line 11 (4); missing readings do not count
in losses (5; the paper's is missing=as_read); the scale is a federated statistic (6); scheduled sampling (7);
clients keep their optimisers (8; the authors' program: client_state=reset); all clients have the same random
order of windows (9).
"""

from dataclasses import dataclass

from torch import Tensor

from graphfed.data.sensors.windows import TimeSplit
from graphfed.errors import InputError
from graphfed.federation import Federation, Located, as_leaves
from graphfed.federation.functions import empty_state
from graphfed.federation.secure.aggregation import check_sums
from graphfed.federation.series import SensorData, starts_of
from graphfed.methods.averaging import program as averaging
from graphfed.methods.base import Method, Sent, State, StateValues, Task
from graphfed.methods.cnfgnn import steps
from graphfed.methods.cnfgnn.config import CNFGNNConfig, epsilon_of
from graphfed.methods.common import forecasting
from graphfed.methods.tasks import FORECASTING
from graphfed.random import fold, permutation


@dataclass(frozen=True)
class Prepared:
    """What set-up computes and every round reads.

    Attributes:
        data: The clients' series and the road graph, as given.
        training: Every client's `Standardised` series, at the clients; with strategy=centralised at the
            server.
        edges: The edges between the sensors that take part, at the server.
        split: Which windows are for training, validation and testing.
        senders: With missing_mask, at the server: in which training windows a sensor has a reading, [N, S].
    """

    data: SensorData
    training: Located
    edges: Located
    split: TimeSplit
    senders: Located | None = None


# ---- the method --------------------------------------------------------------------------------------------


def setup(fed: Federation, data: SensorData, task: Task, config: CNFGNNConfig) -> State:
    """Compute the common scale and draw the initial weights (Alg. 1, l. 1 to 5)."""
    schedule, encodings = config.schedule, config.encodings
    check_sums(fed, config.sums.aggregation, int(fed.roster.sum()))
    # The roster has the sensors that training sees; `predict` forecasts for others too.
    if schedule.strategy in ("at", "sl") and not fed.roster.all():
        raise InputError(
            f"strategy={schedule.strategy} gives every sensor its own weights, and sensors that training "
            "does not see have no weights to forecast with; use strategy=at_fedavg, or another split"
        )
    if encodings.clip is not None:
        fed.log(
            f"clients clip encodings and add noise: epsilon {epsilon_of(config):.4g} (delta "
            f"{encodings.delta:g}) for one reading over {config.run.rounds} rounds. Weights, statistics and "
            "gradients are sent without noise"
        )
    split = forecasting.common_split(fed, data.network)
    edges = fed.server.run(steps.graph_of, data.network, forecasting.absent(fed))
    scaler = forecasting.fit_scaler(fed, data.series, config)
    device = str(fed.device)
    values = {
        "scaler": scaler,
        "network": fed.server.run(steps.first_network, config, device),
        "network_optimizer": fed.server.run(empty_state),
        "facts": fed.server.run(steps.facts_of, config),
    }
    senders = None
    if schedule.strategy == "centralised":
        values["weights"] = fed.server.run(steps.first_weights, config, device)
        values["optimizer"] = fed.server.run(empty_state)
        training = forecasting.pool(fed, data, scaler, split, "train", config)
    else:
        received = fed.broadcast(scaler, name="scaler", grad=False, like=forecasting.scaler_form())
        training = fed.clients.run(forecasting.standardise, data.series, fed.present(), received, config)
        local = fed.clients.run(steps.local_weights, training, config)
        if schedule.averages:
            fed.expect("model", steps.first_weights, config, device)
            values["weights"], values["own"] = fed.server.run(steps.first_weights, config, device), local
        else:
            values["weights"] = local
        values["optimizer"] = fed.clients.run(empty_state)
        # Split learning computes embeddings in every batch and keeps none.
        if schedule.alternates:
            values["embeddings"] = fed.clients.run(
                steps.initial_embeddings, training, config.recurrent.hidden
            )
        senders = send_senders(fed, training, "train", slice(None), config)
    return State(values, Prepared(data, training, edges, split, senders))


def send_senders(
    fed: Federation, series: Located, target: str, part: slice, config: CNFGNNConfig
) -> Located | None:
    """With missing_mask, send the server in which windows of a target each sensor has a reading."""
    if not config.recurrent.missing_mask:
        return None
    # Those of training windows are sent once, in set-up, since readings do not change.
    found = fed.clients.run(steps.windows_with_readings, series, target, part)
    return fed.collect(found, name="with_readings", grad=False)


def senders_of(fed: Federation, prepared: Prepared, order: Located, part: slice) -> Located | None:
    """Return which sensors have a reading in the training windows of a batch, at the server."""
    if prepared.senders is None:
        return None
    return fed.server.run(steps.batch_in_order, prepared.senders, order, part)


def in_order(fed: Federation, key: int, count: int) -> tuple[Located, Located]:
    """Draw an order of the training windows, [S] int64, the same at the clients and at the server."""
    device = str(fed.device)
    return fed.clients.run(draw_order, key, count, device), fed.server.run(draw_order, key, count, device)


def draw_order(key: int, count: int, device: str) -> Tensor:
    return permutation(key, count).to(device)


def round(fed: Federation, state: State, config: CNFGNNConfig, round_number: int) -> State:
    """Train one round by the strategy of the run."""
    if config.schedule.strategy == "centralised":
        return train_round_centrally(fed, state, config, round_number)
    train = train_alternating if config.schedule.alternates else train_split
    return train(fed, state, config, round_number)


def train_alternating(fed: Federation, state: State, config: CNFGNNConfig, round_number: int) -> State:
    """Run one round of Alg. 1.

    The clients train while the embeddings are constant; then the graph network trains while the clients'
    weights are constant.
    """
    prepared: Prepared = state.prepared
    data, edges, count = prepared.training, prepared.edges, len(starts_of(prepared.split, "train"))
    values = dict(state.values)
    # (1) Alg. 1, l. 7 to 10: ClientUpdate
    # "own" is the clients' copy of the mean of the last round, so nothing is sent to begin with.
    start = values["own"] if config.schedule.averages else values["weights"]
    local, values["optimizer"] = fed.clients.run(
        steps.train_locally,
        data,
        start,
        values["embeddings"],
        values["optimizer"],
        config,
        round_number,
        outputs=2,
    )
    # Alg. 1, l. 11 to 14
    local = average_local(fed, prepared, local, values, config)
    # (2) Alg. 1, l. 15 to 18: ClientEncode
    hidden = fed.clients.run(steps.encode_windows, data, local, "train", None)
    encoded = fed.collect(hidden, name="hidden", grad=False, wrap=steps.wire_of(config))
    # (3) Alg. 1, l. 19 to 30
    epochs, size = config.schedule.server_rounds, config.server_network.server_batch
    steps_of_pass = -(-count // size)
    num_steps = epochs * steps_of_pass
    for epoch in range(epochs):  # Alg. 1, l. 21
        client_order, server_order = in_order(
            fed, fold(config.run.seed, "server windows", round_number, epoch), count
        )
        for i, part in enumerate(forecasting.parts_of(count, size)):
            step = (round_number - 1) * num_steps + epoch * steps_of_pass + i
            # Encodings of the round are kept at both places, and a batch is sent in one direction only.
            client_batch = fed.clients.run(steps.batch_in_order, hidden, client_order, part)
            server_batch = fed.server.run(steps.batch_in_order, encoded, server_order, part)
            senders = senders_of(fed, prepared, server_order, part)
            # The tape covers graph network and decoders; encodings and clients' weights are constant here.
            with fed.tape():
                leaves = fed.server.run(as_leaves, values["network"])
                # Alg. 1, l. 22
                embedded = fed.server.run(steps.embed, leaves, server_batch, edges, config, senders)
                received = fed.scatter(
                    embedded, name="embeddings", like=forecasting.windows_form(config.recurrent.hidden)
                )
                # Alg. 1, l. 23 to 26: ClientBackward
                loss = fed.clients.run(
                    steps.loss_of_batch,
                    data,
                    local,
                    client_batch,
                    received,
                    client_order,
                    part,
                    config,
                    step,
                    num_steps,
                )
                fed.backward(loss)
            step_network(fed, leaves, values, edges, config)  # Alg. 1, l. 27 to 29
    # (4) Alg. 1, l. 31 to 35
    parts = []
    for part in forecasting.parts_of(count, forecasting.PART):
        embedded = fed.server.run(
            steps.embed_part, values["network"], encoded, part, edges, config, prepared.senders
        )
        parts.append(
            fed.scatter(
                embedded,
                name="final_embeddings",
                grad=False,
                like=forecasting.windows_form(config.recurrent.hidden),
            )
        )
    values["embeddings"] = fed.clients.run(forecasting.joined, *parts)
    return State(values, prepared)


def train_split(fed: Federation, state: State, config: CNFGNNConfig, round_number: int) -> State:
    """Run one round of split learning.

    After every batch clients and server take a step, on gradients through encoders, graph network and
    decoders.
    """
    prepared: Prepared = state.prepared
    data, edges, count = prepared.training, prepared.edges, len(starts_of(prepared.split, "train"))
    values = dict(state.values)
    start = values["own" if config.schedule.averages else "weights"]
    local = fed.clients.run(steps.start_of_round, data, start, config.schedule)
    optimizer, size = values["optimizer"], config.sequences.batch
    num_steps = -(-count // size)
    order, server_order = in_order(fed, fold(config.run.seed, "windows", round_number, 0), count)
    for i, part in enumerate(forecasting.parts_of(count, size)):
        senders = senders_of(fed, prepared, server_order, part)
        with fed.tape():
            client_leaves = fed.clients.run(as_leaves, local)
            leaves = fed.server.run(as_leaves, values["network"])
            hidden = fed.clients.run(steps.encode_batch, data, client_leaves, order, part)
            encoded = fed.collect(hidden, name="hidden", wrap=steps.wire_of(config))
            embedded = fed.server.run(steps.embed, leaves, encoded, edges, config, senders)
            received = fed.scatter(
                embedded, name="embeddings", like=forecasting.windows_form(config.recurrent.hidden)
            )
            step = (round_number - 1) * num_steps + i
            loss = fed.clients.run(
                steps.loss_of_batch,
                data,
                client_leaves,
                hidden,
                received,
                order,
                part,
                config,
                step,
                num_steps,
            )
            fed.backward(loss)
        gradients = fed.gradients(client_leaves)
        local, optimizer = fed.clients.run(
            steps.step_locally, local, gradients, optimizer, config.training, outputs=2
        )
        step_network(fed, leaves, values, edges, config)
    # Within a round the state is always kept; client_state decides what remains for the next one.
    values["optimizer"] = fed.clients.run(steps.kept_optimizer, optimizer, config.client_optimizer)
    average_local(fed, prepared, local, values, config)
    return State(values, prepared)


def average_local(
    fed: Federation, prepared: Prepared, local: Located, values: dict[str, Located], config: CNFGNNConfig
) -> Located:
    """Return the weights that clients continue with, and store them in `values`.

    They are the mean of all clients' weights, which the server has too, or each client's own weights.
    """
    if not config.schedule.averages:
        values["weights"] = local
        return local
    # Alg. 1, l. 11
    values["weights"], values["own"] = forecasting.average(
        fed, prepared.data, local, values["weights"], config
    )
    return values["own"]


def step_network(
    fed: Federation, leaves: Located, values: dict[str, Located], edges: Located, config: CNFGNNConfig
) -> None:
    """Take one step of the graph network, and store it in `values`."""
    values["network"], values["network_optimizer"] = fed.server.run(
        steps.step_server_network,
        values["network"],
        fed.gradients(leaves),
        values["network_optimizer"],
        edges,
        config,
        outputs=2,
    )


def train_round_centrally(fed: Federation, state: State, config: CNFGNNConfig, round_number: int) -> State:
    """Run one round of centralised training."""
    prepared: Prepared = state.prepared
    values = dict(state.values)
    names = ("weights", "network", "optimizer", "network_optimizer")
    trained = fed.server.run(
        steps.train_centrally,
        prepared.training,
        *(values[name] for name in names),
        prepared.edges,
        config,
        round_number,
        outputs=4,
    )
    return State(values | dict(zip(names, trained, strict=True)), prepared)


def predict(fed: Federation, state: State, config: CNFGNNConfig, target: str) -> Located:
    """Forecast a target's windows, from each sensor's readings and its embeddings."""
    prepared: Prepared = state.prepared
    data, starts = prepared.data, starts_of(prepared.split, target)
    edges = fed.server.run(steps.graph_of, data.network, forecasting.absent(fed))
    if config.schedule.strategy == "centralised":
        sent = forecasting.pool(fed, data, state.values["scaler"], prepared.split, target, config)
        forecasts = fed.server.run(
            steps.forecast_centrally, sent, state.weights, state.values["network"], edges, len(starts), config
        )
        return fed.scatter(
            forecasts, name="forecasts", grad=False, like=forecasting.windows_form(config.windows.horizon)
        )
    scaler = fed.broadcast(state.values["scaler"], name="scaler", grad=False, like=forecasting.scaler_form())
    series = fed.clients.run(forecasting.standardise, data.series, fed.present(), scaler, config)
    if config.schedule.averages:
        weights = fed.broadcast(state.weights, name="model", grad=False)
    else:
        weights = fed.clients.run(forecasting.of_present, state.weights, fed.present())
    parts = []
    for part in forecasting.parts_of(len(starts), forecasting.PART):
        hidden = fed.clients.run(steps.encode_windows, series, weights, target, part)
        encoded = fed.collect(hidden, name="hidden", grad=False, wrap=steps.wire_of(config))
        senders = send_senders(fed, series, target, part, config)
        embedded = fed.server.run(
            steps.embed_part, state.values["network"], encoded, slice(None), edges, config, senders
        )
        embeddings = fed.scatter(
            embedded, name="embeddings", grad=False, like=forecasting.windows_form(config.recurrent.hidden)
        )
        parts.append(fed.clients.run(steps.forecast_part, series, weights, hidden, embeddings, target, part))
    return fed.clients.run(forecasting.joined, *parts)


ALL_MESSAGES = {
    **forecasting.MESSAGES,
    **forecasting.WINDOWS,
    **averaging.SECURE_UPDATE,
    "model": "With strategies at_fedavg and sl_fedavg, the server sends every client the shared weights of "
    "encoder and decoder.",
    "update": "Only with aggregation=plaintext and strategies at_fedavg and sl_fedavg: each client sends the "
    "server its weights after local training, and the server averages them. The server reads each client's; "
    "readings can in part be inferred from weights.",
    "hidden": "Each client sends the server the encoding of each of its windows, `hidden` numbers. The "
    "server reads each client's. It can reconstruct most of the window's readings from them (`graphfed "
    "audit`).",
    "hidden/grad": "Only in split learning: the server sends each client the gradient of the loss of all "
    "clients for this client's encodings.",
    "with_readings": "Only with missing_mask=true: each client sends the server, for each of its windows, "
    "whether it has a reading in it. The server reads when a sensor was silent for a whole window.",
    "embeddings": "In training and for forecasts, the server sends each client the embeddings of its "
    "windows, which the graph network computes from the encodings of all clients.",
    "embeddings/grad": "Each client sends the server the gradient of its loss for its embeddings, `hidden` "
    "numbers for each window. The server reads each client's; they depend on the readings that are forecast.",
    "final_embeddings": "Only in alternating training: at the end of a round, the server sends each client "
    "the embeddings of its training windows.",
    "readings": "Only with strategy=centralised: each client sends the server its readings in plaintext. The "
    "server reads them.",
    "forecasts": "Only with strategy=centralised: the server sends each client its forecasts.",
}


def plans_rounds(config: CNFGNNConfig) -> str:
    """Say how training depends on the number of rounds; see `Method.plans_rounds`."""
    noisy = config.encodings.clip is not None
    return (
        "epsilon counts the noisy encodings of the planned rounds"
        if noisy
        else forecasting.plans_rounds(config)
    )


METHOD = Method(
    name="cnfgnn",
    summary="every sensor encodes and forecasts its series; the server's graph network relates the sensors",
    paper="Meng, Rambhatla, Liu: Cross-node federated graph neural network for spatio-temporal data "
    "modeling. KDD 2021, arXiv:2106.05223",
    config=CNFGNNConfig,
    tasks=(FORECASTING,),
    partition="sensors",
    setup=setup,
    round=round,
    predict=predict,
    plans_rounds=plans_rounds,
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
    offers={"layers": (1,)},
    paper_settings={"network": "graph_network"},
)
