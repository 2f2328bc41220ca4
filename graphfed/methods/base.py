"""What a method is: a frozen config, and three functions that are one program over places.

    setup(fed, data, task, config) -> State
        one-off exchanges and the first weights
    round(fed, state, config, number) -> State
        one communication round, counted from 1
    predict(fed, state, config, target) -> Located
        at the clients, with only what the method's protocol lets it see at prediction time: to classify
        nodes logits [n, C] of cohort.rows(target); to predict links scores [n] of cohort.pairs(target),
        any real numbers, the larger the likelier (h_u . h_v); to forecast [P, W, n], of the P sensors that
        take part, of series.starts(target), in the unit of the readings; target is "val", "test" or "all"
        (both)

`data` is a `Cohort` located at the clients, in forecasting a `SensorData`; `task` what everyone knows
beforehand.

`State.values` are what training changes (flat, savable); `State.prepared` is what setup worked out and rounds
only read."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal, get_args

from graphfed.federation import Federation, Located
from graphfed.federation.secure.protection import PLAINTEXT
from graphfed.methods.config import CommonSettings, SamplingSettings, TrainingSettings
from graphfed.methods.tasks import CLASSIFICATION

__all__ = ["Method", "Requirements", "Sent", "State", "StateValues", "Task"]


@dataclass(frozen=True)
class Task:
    """What all parties agreed on before they met: the width of the features, the classes, and which task it
    is (a name in `tasks.registry.TASKS`)."""

    num_features: int
    num_classes: int
    name: str = CLASSIFICATION


@dataclass(frozen=True)
class State:
    """What passes from round to round. `values`: located trees of tensors, under names that stay; which of
    them are the model is `StateValues.model`."""

    values: Mapping[str, Located]
    prepared: Any = None

    @property
    def weights(self) -> Located:
        return self.values["weights"]


@dataclass(frozen=True)
class Requirements:
    """What a method asks of data and its partition, beyond what its task asks."""

    #: Every node is at one client only.
    disjoint: bool = False
    #: How many nodes every client has.
    nodes_per_client: Literal["any number", "at least one", "one"] = "any number"
    #: Nodes are numbered 0, 1, ... over all clients, which only one party that has all data can do.
    numbered: bool = False
    #: What else, in a few words each.
    other: tuple[str, ...] = ()
    #: check(data, config) raises InputError for a graph, or sensors, that the method cannot use, beyond what
    #: the other fields say. Called where one party has all data; elsewhere the method's own functions refuse.
    check: Callable[[Any, Any], None] | None = None

    @property
    def empty_clients(self) -> bool:
        """Whether clients may have no node."""
        return self.nodes_per_client == "any number"


@dataclass(frozen=True)
class StateValues:
    """What the values of a method's state are for."""

    #: Those that are the model, in the order of its file. Empty: the method trains nothing.
    model: tuple[str, ...] = ("weights",)
    #: Of these, the ones at the clients that are the same at all of them.
    replicated: tuple[str, ...] = ()
    #: Those that only the next round needs: no model of an earlier round is chosen with them.
    scratch: tuple[str, ...] = ()
    #: The one at the server, a dictionary of single numbers, that goes into the details of the result.
    facts: str = ""
    #: Whether the model is one network at the server, which can be scored on the pooled graph too.
    shared_model: bool = False


@dataclass(frozen=True)
class Sent:
    """What a method sends, in words."""

    #: What leaves a client, in a few words, for a table.
    summary: str = ""
    #: What keeps the receiver from reading it, in a few words.
    protection: str = "none: in clear"
    #: Every named transfer, for those who must answer for it: what it is, and what the receiver can read from
    #: it. Those of every run are in `runs.train.MESSAGES`.
    messages: Mapping[str, str] = field(default_factory=dict)
    #: Of transfers between clients: the column of `Method.client_statistics` that counts those to whom one
    #: client sends.
    recipients: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Method:
    """One row of the registry, as the method's own file declares it."""

    #: The name in the registry and on the command line.
    name: str
    #: What it does, in a few words.
    summary: str
    #: Its settings: a dataclass of groups (`methods.config`) and its own fields.
    config: type[CommonSettings]
    #: setup(fed, data, task, config): the one-off exchanges and the first state.
    setup: Callable[[Federation, Any, Task, Any], State]
    #: round(fed, state, config, number): one communication round, counted from 1.
    round: Callable[[Federation, State, Any, int], State]
    #: predict(fed, state, config, target): the predictions, at the clients.
    predict: Callable[[Federation, State, Any, str], Located]
    #: restore(fed, data, task, config, values): the state of a run that goes on, in the place of setup, where
    #: setup released what must not be drawn again (noise, say). None: setup runs again.
    restore: Callable[[Federation, Any, Task, Any, Mapping[str, Located]], State] | None = None
    #: client_statistics(fed, state, config): at the clients, after training, what each of them can say of its
    #: own part, a dictionary of [K] tensors, for a table (clients.parquet). Nothing is sent.
    client_statistics: Callable[[Federation, State, Any], Located] | None = None
    #: memory(extent, config): about how many bytes it takes beyond training its network, from the counts of a
    #: partitioned graph or of readings (`methods.common.memory`). None: nothing large.
    memory: Callable[[Any, Any], float] | None = None
    #: The paper: authors, title, venue, and where it can be read.
    paper: str = ""
    #: The tasks it can do (names in `tasks.registry.TASKS`); the first is the one it does unless it is asked.
    tasks: tuple[str, ...] = (CLASSIFICATION,)
    #: The partition where the user names none, and the data names no clients.
    partition: str = "label_dirichlet"
    #: Whether it trains on the pooled graph as one client: the reference that no federation sees.
    pooled: bool = False
    #: Whether every client keeps a model of its own and selects it on its own validation nodes.
    personal: bool = False
    #: What it asks of data and its partition.
    requires: Requirements = Requirements()
    #: What the values of its state are for.
    state: StateValues = StateValues()
    #: What it sends, in words.
    sends: Sent = field(default_factory=Sent)
    #: Settings in which it differs from the defaults of its task.
    defaults: Mapping[str, Any] = field(default_factory=dict)
    #: What preset=paper changes, beyond the task's paper settings and `defaults`.
    paper_settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def dropouts(self) -> bool:
        """Whether it goes on with fewer clients when some are absent."""
        return issubclass(self.config, SamplingSettings)

    @property
    def trains(self) -> bool:
        """Whether it trains anything."""
        return issubclass(self.config, TrainingSettings)

    @property
    def protections(self) -> dict[str, tuple[str, ...]]:
        """The protections that it can have, by the setting that names them."""
        found = {f.name: get_args(f.type) for f in fields(self.config)}
        return {name: values for name, values in found.items() if PLAINTEXT in values}

    def requirements(self) -> list[str]:
        """What a run of this method asks for beyond what its task needs, in a few words each."""
        requires = self.requires
        asked = ["all data at one party"] if self.pooled else []
        asked += ["each node at one client"] if requires.disjoint else []
        asked += ["one node at every client"] if requires.nodes_per_client == "one" else []
        asked += ["nodes numbered from 0"] if requires.numbered else []
        asked += ["a node at every client"] if requires.nodes_per_client == "at least one" else []
        asked += [] if self.dropouts or self.pooled else ["every client in every round"]
        return [*asked, *requires.other]
