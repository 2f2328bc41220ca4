"""Isolated training: every client trains its own network on its own subgraph, and nothing is sent. It is the
lower reference.

Every client starts from the same weights, selects its best round by its own validation nodes (the last round
if it has none) and is scored on its own test nodes; the accuracy in a table is over the test nodes of all
clients.

Differs from the paper: there is no paper; papers call this baseline local, separate or self training.
"""

from graphfed.federation import Federation, Located
from graphfed.federation.cohort import Cohort
from graphfed.federation.functions import empty_state
from graphfed.methods.base import Method, Sent, State, Task
from graphfed.methods.common.local_training import (
    Prepared,
    initial_weights,
    own_view,
    personal_weights,
    predict_personal,
    prepare,
    train_personal,
)
from graphfed.methods.parts import GraphTraining, Inputs, Loss, Network, Run, Selection, Steps, Training
from graphfed.methods.settings import settings
from graphfed.nn.backbones import Weights


@settings
class AloneConfig:
    """The settings of training in which nothing is sent."""

    run: Run = Run()
    training: Training = Training()
    network: Network = Network()
    inputs: Inputs = Inputs()
    selection: Selection = Selection()
    loss: Loss = Loss()
    steps: Steps = Steps()


#: The networks that use edges, and those of them that also read their directions and attributes.
NETWORKS = ("gcn", "gat", "sage", "maxpool")
EDGE_NETWORKS = ("gine", "pna")


def prepare_personal(cohort: Cohort, config: GraphTraining) -> Prepared:
    """Prepare the batches of every client's own subgraph, with weights of its own."""
    return prepare(cohort, own_view(cohort), None, config, personal=True)


def first_weights(prepared: Prepared, task: Task, config: GraphTraining, device: str) -> Weights:
    """Copy the first weights for every client."""
    shared = initial_weights(task, config.network, config.run.seed, device)
    return personal_weights(shared, prepared.train, config.network.kernel)


def setup(fed: Federation, data: Located, task: Task, config: GraphTraining) -> State:
    """Set up training at every client alone."""
    prepared = fed.clients.run(prepare_personal, data, config)
    weights = fed.clients.run(first_weights, prepared, task, config, str(fed.device))
    # Every client draws the same first weights from the seed, so nothing has to be sent.
    return State({"weights": weights, "optimizer": fed.clients.run(empty_state)}, prepared)


def round(fed: Federation, state: State, config: GraphTraining, number: int) -> State:
    """Run a round at every client; nothing is sent."""
    weights, optimizer = fed.clients.run(
        train_personal, state.prepared, state.weights, state.values["optimizer"], config, number, outputs=2
    )
    return State({"weights": weights, "optimizer": optimizer}, state.prepared)


def predict(fed: Federation, state: State, config: GraphTraining, target: str) -> Located:
    """Predict at every client with its own weights: logits [n, C]."""
    return fed.clients.run(predict_personal, state.prepared, state.weights, config.network, target)


METHOD = Method(
    name="isolated",
    summary="every client alone on its own subgraph; nothing is sent",
    paper="no paper: the lower reference, called local, separate or self training",
    config=AloneConfig,
    offers={"backbone": (*NETWORKS, *EDGE_NETWORKS)},
    setup=setup,
    round=round,
    predict=predict,
    personal=True,
    sends=Sent(
        summary="nothing",
        protection="nothing is sent",
    ),
)
