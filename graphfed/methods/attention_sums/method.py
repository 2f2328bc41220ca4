"""FedGAT from sums (ours): graph attention over the edges of all clients, exact, without a polynomial, and
without features at the server.

FedGAT (Ambekar et al., arXiv:2412.16144) approximates the scores by a polynomial, so that one message before
training serves all weights; that message gives away every feature (docs/papers/fedgat.md). Here clients
exchange sums in every layer and round instead (`attention`, `neighbour_sums`):

    FedGAT's symbols                            here
    a_i = a_1 . W h_i, c_j = a_2 . W h_j        `transform`: target, source
    e_ij = exp(psi(a_i + c_j)), Eq. (3)         `neighbour_parts`; psi is LeakyReLU with its kink
    sum_j e_ij W h_j / sum_j e_ij, Eq. (1)      `add_up`

1. The client of node i sends a_i, one number for each head, to every client with a neighbour of i.
2. Each of them sends back the sum of e_ij [W h_j, 1] over its own neighbours j of i: H + 1 numbers for each
   head, however many neighbours there are.
3. The client of i adds up the sums, with its own and with i itself, and divides.

Gradients are sent over the same transfers in reverse and are those of the pooled graph, so a round is a step
of central GAT. The server sends the weights, adds up the gradients and takes the optimiser's step.

Because the client that sums knows a_i, it evaluates the score itself. The two sums on both sides of
LeakyReLU's kink, e^(c_j) [W h_j, 1] where c_j > -a_i and e^(0.2 c_j) [W h_j, 1] elsewhere, would do as well;
but they are twice as many numbers and show in addition which neighbours lie on which side. So any
function psi can be used.

**This method protects no features from other clients, whichever settings are used.** docs/papers/fedgat.md,
"What each participant learns from sums", has the argument; `audit/attacks/attention_rounds.py` is the attack.

- A client with a neighbour of i reads a_i in every round, under every setting. In the first layer a_i is
  linear in x_i, and the client knows W and a_1: d / heads rounds give all d features of i.
- The client of i, with exchange=plaintext, reads the sum of each other client; the sum over one neighbour
  gives W h_j of that neighbour. With exchange=secure it reads the total over the other clients. W differs in
  each round, so a sum or total over few neighbours gives the features of all of them after enough rounds.
- A client with a neighbour of i also reads the gradient of the loss with respect to the sum of i, which in
  the last layer shows the label of a training node i.
- The server reads gradients (with aggregation=secure their sum) and metrics, and no feature, embedding or
  edge.

`min_group` leaves sums over few neighbours out, and no scores of the nodes that keep a sum. It changes the
network.

Differs from the paper: nothing is sent before training but ids. Scores are exact, psi has its kink, and
dropout acts on the input and the attention of every layer. Edge weights are ignored, as by every GAT here.
"""

from collections.abc import Mapping
from functools import partial

from torch import Tensor

from graphfed.federation import Federation, Located
from graphfed.federation.cohort import Cohort
from graphfed.federation.secure.aggregation import check_sums
from graphfed.methods.attention_sums import neighbour_sums
from graphfed.methods.attention_sums.attention import add_up, neighbour_parts, transform
from graphfed.methods.attention_sums.config import AttentionSumsConfig
from graphfed.methods.attention_sums.neighbour_sums import NeighbourSums, Targets, connect
from graphfed.methods.base import Method, Requirements, Sent, State, StateValues, Task
from graphfed.methods.common import pooled_training
from graphfed.methods.common.local_training import batch_of_all, own_view
from graphfed.methods.parts import Network
from graphfed.nn.batch import Batch
from graphfed.nn.layers import Dropout

#: What the names of its transfers begin with.
NAME = "attention_sums"


# ---- at the clients ----------------------------------------------------------------------------------------


def batch_of(cohort: Cohort, network: Network, per_client: bool) -> Batch:
    """Prepare all rows of a cohort, with the edges inside clients.

    Every layer computes all rows, because other clients use rows that the cohort's own targets do not.
    """
    return batch_of_all(own_view(cohort), network, per_client=per_client)


def parts_of(
    targets: Targets,
    z: Tensor,
    source: Tensor,
    target: Tensor,
    dropout: Dropout | None,
    layer: int,
) -> Tensor:
    """Compute the parts [M, heads * (H + 1)] of the targets at other clients."""
    return neighbour_parts(targets.patterns[layer], z, source, target, dropout, layer)


# ---- the program over places -------------------------------------------------------------------------------


def setup(fed: Federation, data: Located, task: Task, config: AttentionSumsConfig) -> State:
    """Agree on who sums for which nodes, and draw the first weights.

    Raises InputError for fewer than three clients, if a protection hides sums.
    """
    check_sums(fed, config.sums.aggregation, fed.num_clients)
    network, exchange = config.network, config.exchange
    sums = connect(fed, data, exchange, network.attention_heads)
    make_batch = partial(fed.clients.run, batch_of, data, network)
    return pooled_training.start(fed, data, sums, make_batch, task, config, NAME)


def logits(
    fed: Federation,
    batch: Located,
    sums: NeighbourSums,
    weights: Located,
    network: Network,
    dropout: Dropout | None,
    grad: bool,
) -> Located:
    """Compute the logits [N, C] of all nodes (`pooled_training.Run`); `dropout` acts on inputs and attention.

    Reference:
        FedGAT, Eqs. (1) to (3), without approximation.
    """
    h: Located | None = None
    for layer in range(network.layers):
        # a_i and c_j of Eq. (4)
        z, source, target = fed.clients.run(transform, batch, weights, h, dropout, layer, outputs=3)
        scores = sums.send_scores(fed, target, grad=grad)
        parts = fed.clients.run(parts_of, sums.targets, z, source, scores, dropout, layer)
        remote = sums.add_parts(fed, parts, grad=grad)
        # Eqs. (1) and (2)
        h = fed.clients.run(add_up, batch, weights, z, source, target, remote, dropout, layer)
    assert h is not None
    return h


def round(fed: Federation, state: State, config: AttentionSumsConfig, round_number: int) -> State:
    """Take one step on the gradient of the loss over all clients."""
    return pooled_training.step(fed, state, config, round_number, logits, NAME)


def predict(fed: Federation, state: State, config: AttentionSumsConfig, target: str) -> Located:
    """Compute the logits [n, C] of the target's nodes, with sums of the neighbours at all clients."""
    return pooled_training.predict(fed, state, config, target, logits)


MESSAGES: Mapping[str, str] = {
    **neighbour_sums.MESSAGES,
    **pooled_training.messages(NAME),
}

METHOD = Method(
    name="attention_sums",
    summary="exact GAT over cross-client edges from sums over each client's neighbours, in every layer",
    paper="ours, on FedGAT: docs/papers/fedgat.md",
    config=AttentionSumsConfig,
    setup=setup,
    round=round,
    predict=predict,
    requires=Requirements(
        disjoint=True,
    ),
    state=StateValues(
        shared_model=True,
    ),
    sends=Sent(
        summary="scores of nodes and sums over their neighbours, for every layer (clients compute features "
        "from them); gradients, every round",
        protection="none for features: from scores, and from sums of many rounds, clients compute the "
        "features of their nodes' neighbours under every setting, and a gradient of the last layer shows a "
        "label; with exchange=secure a client reads totals over the other clients, with aggregation=secure "
        "the server reads the sum of the gradients",
        messages=MESSAGES,
    ),
    offers={"backbone": ("gat",)},
    defaults={
        "hidden": 8,
        "features": "unit",
        "lr": 0.02,
        "weight_decay": 5e-3,
        "dropout": 0.0,
    },
    paper_settings={"optimizer": "adam"},
)
