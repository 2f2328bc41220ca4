"""FedSage+: Zhang, Yang, Li, Sun and Yiu, "Subgraph federated learning with missing neighbor generation",
NeurIPS 2021 (arXiv:2106.13430).

    paper                        here
    FedSage                      fedavg with backbone=sage
    NeighGen: H^e, dGen, fGen    `generator`
    h, the hidden portion        hidden_fraction
    lambda^f, alpha              feature_weight, cross_weight; lambda^d is 1
    G'_i, the mended graph       `generator.mend`
    D_i                          client i

No client knows its cross-client edges, not even which of its nodes have one.

1. Every client hides some of its nodes and trains a generator on the others: how many neighbours a node has
   lost, and their features (`generator.train_alone`). Nothing is sent.
2. The generators of features continue with gradients from the features of the other clients
   (`cross_client`). **These gradients do not hide the features** (docs/security.md). cross_steps=0 leaves
   this step out, and before training nothing is sent.
3. Every client adds generated neighbours to its subgraph, and the network is trained on these subgraphs by
   FedAvg or another rule. Predictions at a client use its generated neighbours; the score on the pooled graph
   does not.

Differs from the paper:

- The generator of features is a linear map of the noised embedding, without activation: features of any range
  can be generated, and training needs no generated features (`generator`).
- In L^d a negative score of a node with missing neighbours has the error of the score, not of the predicted
  number, 0. That number has no gradient: a generator whose scores have all become negative would generate
  nothing, whatever it is trained on (`generator.count_loss`).
- In L^f the number of neighbours of a node is the true one, not the predicted one, which may be 0 for every
  node of a client. L^f is a mean over features.
- In step 2 encoders do not change, as in the authors' program; so embeddings are sent once,
  with one draw of noise.
- The others' terms of the loss are minima over all of their nodes, as in the paper; the authors' program
  draws nodes. Their gradients go through the server, which adds them up.
- Full-batch steps without sampled neighbours. Clients without training nodes have weight 0.
"""

from dataclasses import dataclass, fields

from torch import Tensor

from graphfed.federation import Federation, Located
from graphfed.federation.secure.aggregation import check_sums
from graphfed.methods.averaging import program
from graphfed.methods.averaging.program import Clients
from graphfed.methods.averaging.rules import RULE_SETTINGS
from graphfed.methods.averaging.settings import AveragingSettings
from graphfed.methods.base import Method, Sent, State, StateValues, Task
from graphfed.methods.baselines.isolated import NETWORKS
from graphfed.methods.fedsage.config import NeighGen
from graphfed.methods.fedsage.cross_client import MESSAGES, train_across
from graphfed.methods.fedsage.generator import first_generator, impair, mend, train_alone
from graphfed.methods.parts import clients_in_round


@dataclass(frozen=True)
class Mended(Clients):
    """What set-up prepares, with the number of generated neighbours of each client, [K_h] at the clients."""

    generated: Located | None = None


def setup(fed: Federation, data: Located, task: Task, config: AveragingSettings) -> State:
    """Train the generators, mend the subgraphs, and prepare the training of the network."""
    check_sums(fed, config.sums.aggregation, clients_in_round(config, fed.num_clients))
    fed.begin("training generators of missing neighbours")
    impaired = fed.clients.run(impair, data, config)
    generator = fed.clients.run(first_generator, impaired, task, config)
    generator = fed.clients.run(train_alone, impaired, generator, config)
    # A single client has no other features to learn from.
    if config.exchange.cross_steps and fed.num_clients > 1:
        fed.begin("training generators with gradients from the features of other clients")
        generator = train_across(fed, data, impaired, generator, task, config)
    view, place, generated = fed.clients.run(mend, data, generator, config, outputs=3)
    prepared = fed.clients.run(program.prepare_view, data, view, place, config)
    state = program.start(fed, prepared, task, config)
    clients: Clients = state.prepared
    # `start` makes `Clients`; the count of generated neighbours is added for the statistics.
    known = {f.name: getattr(clients, f.name) for f in fields(Clients)}
    return State(state.values, Mended(**known, generated=generated))


def with_name(generated: Tensor) -> dict[str, Tensor]:
    """Name the column of the numbers of generated neighbours."""
    return {"generated_neighbours": generated}


def client_statistics(fed: Federation, state: State, config: AveragingSettings) -> Located:
    """Return {"generated_neighbours": [K_h]} at the clients; nothing is sent."""
    mended: Mended = state.prepared
    return fed.clients.run(with_name, mended.generated)


METHOD = Method(
    name="fedsage_plus",
    summary="every client generates its missing neighbours, then FedAvg on the mended subgraphs",
    paper="Zhang, Yang, Li, Sun, Yiu: Subgraph federated learning with missing neighbor generation. "
    "NeurIPS 2021, arXiv:2106.13430",
    config=AveragingSettings,
    parts={"of_rule": RULE_SETTINGS, "exchange": NeighGen},
    offers={"backbone": NETWORKS},
    check_settings=program.check_settings,
    setup=setup,
    round=program.round,
    predict=program.predict,
    client_statistics=client_statistics,
    state=StateValues(
        shared_model=True,
    ),
    sends=Sent(
        summary="embeddings, once; generators and gradients of features, in some steps before training; "
        "weights, every round",
        protection="none: the server reads embeddings, generators and gradients, which show features; with "
        "aggregation=secure only the sums of gradients and of weights; cross_steps=0 sends weights only",
        messages={**program.RULE_MESSAGES, **MESSAGES},
    ),
    defaults={"backbone": "sage"},
    # From the authors' program, where a round is an epoch of mini-batches.
    paper_settings={
        "hidden_fraction": 0.5,
        "generated": 5,
        "cross_steps": 20,
        "generator_lr": 1e-3,
        "optimizer": "adam",
        "lr": 1e-3,
        "weight_decay": 1e-4,
        "dropout": 0.5,
        "hidden": 64,
        "local_steps": 10,
        "rounds": 20,
    },
)
