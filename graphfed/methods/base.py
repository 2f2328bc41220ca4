"""What a method is: a frozen config, and three functions that are one program over places.

    setup(fed, data, task, config) -> State
        transfers that are made once, and the first weights
    round(fed, state, config, round_number) -> State
        one communication round, counted from 1
    predict(fed, state, config, target) -> Located
        predictions at the clients, from what the protocol shows them at prediction time. Node
        classification: logits [n, C] of cohort.rows(target). Link prediction: scores [n] of
        cohort.pairs(target), any real numbers, larger for likelier edges (h_u . h_v). Forecasting:
        [P, W, n] for the P sensors that take part and the windows series.starts(target), in the unit of
        the readings. target is "val", "test" or "all" (both)

`data` is a `Cohort` at the clients, in forecasting a `SensorData`; `task` is what everyone knows beforehand.
`State.values` are what training changes (flat, can be saved); `State.prepared` is what set-up computes and
rounds only read.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, get_args

from graphfed.errors import InputError
from graphfed.federation import Federation, Located
from graphfed.federation.secure.protection import PLAINTEXT
from graphfed.methods.settings import Tree, value
from graphfed.methods.tasks import CLASSIFICATION


@dataclass(frozen=True)
class Task:
    """What all participants agree on before a run.

    Attributes:
        name: The name of the task in `tasks.registry.TASKS`.
        filled: The numbers of the features in which NaN is a gap.
        edge_features: The number of attributes of an edge.
        directed: Whether edges have a direction.
    """

    num_features: int
    num_classes: int
    name: str = CLASSIFICATION
    filled: tuple[int, ...] = ()
    edge_features: int = 0
    directed: bool = False


@dataclass(frozen=True)
class State:
    """What passes from round to round.

    Attributes:
        values: Located trees of tensors under fixed names; `StateValues.model` says which of them are the
            model.
        prepared: What set-up has computed and rounds only read.
    """

    values: Mapping[str, Located]
    prepared: Any = None

    @property
    def weights(self) -> Located:
        """The value "weights"."""
        return self.values["weights"]


@dataclass(frozen=True)
class Requirements:
    """What a method requires of data and its partition, in addition to what its task requires."""

    #: Whether every node must be at one client only.
    disjoint: bool = False
    #: How many nodes every client must have.
    nodes_per_client: Literal["any number", "at least one", "one"] = "any number"
    #: Whether nodes must be numbered 0, 1, ... over all clients, which takes a participant with all data.
    numbered: bool = False
    #: Other requirements, a short phrase each.
    other: tuple[str, ...] = ()
    #: check(data, config) raises InputError for a graph, or sensors, that the method cannot use although the
    #: other fields are fulfilled. It is called in processes that have all data; in other processes the
    #: method's own functions raise it.
    check: Callable[[Any, Any], None] | None = None

    @property
    def empty_clients(self) -> bool:
        """Whether clients may have no node."""
        return self.nodes_per_client == "any number"


@dataclass(frozen=True)
class StateValues:
    """The purposes of the values of a method's state."""

    #: The values that are the model, in the order of its file. Empty if the method trains nothing.
    model: tuple[str, ...] = ("weights",)
    #: The values of the model that are at the clients and equal at all of them.
    replicated: tuple[str, ...] = ()
    #: The values that only the next round needs; the model of an earlier round is selected without them.
    scratch: tuple[str, ...] = ()
    #: The value at the server, a dictionary of single numbers, that the details of the result contain.
    facts: str = ""
    #: Whether the model is one network at the server, so that it can be scored on the pooled graph too.
    shared_model: bool = False


@dataclass(frozen=True)
class Sent:
    """Descriptions of what a method sends."""

    #: What clients send, as a short phrase for a table.
    summary: str = ""
    #: What prevents the receiver from reading it, as a short phrase.
    protection: str = "none: in plaintext"
    #: A description of every named transfer: who sends what to whom, and what the receiver can read.
    #: `runs.train.MESSAGES` describes the transfers that every run has.
    messages: Mapping[str, str] = field(default_factory=dict)
    #: For transfers between clients: the column of `Method.client_statistics` that counts the recipients of
    #: each client.
    recipients: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class PlaintextOnly:
    """A setting whose value allows no other protection than plaintext.

    Attributes:
        protection: The setting that names the protection.
        reason: A clause that says why the two cannot be used together.
    """

    protection: str
    setting: str
    value: Any
    reason: str


@dataclass(frozen=True)
class Method:
    """One row of the registry, declared in the method's own file."""

    #: The name in the registry and on the command line.
    name: str
    #: What it does, as a short phrase.
    summary: str
    #: Its settings: a class of parts (`methods.settings`).
    config: type
    #: setup(fed, data, task, config): makes the transfers that happen once, and returns the first state.
    setup: Callable[[Federation, Any, Task, Any], State]
    #: round(fed, state, config, round_number): runs one communication round, counted from 1.
    round: Callable[[Federation, State, Any, int], State]
    #: predict(fed, state, config, target): returns the predictions, at the clients.
    predict: Callable[[Federation, State, Any, str], Located]
    #: restore(fed, data, task, config, values): returns the state of a run that is resumed, if set-up must
    #: not run again (because it would draw privacy noise again). None: set-up runs again.
    restore: Callable[[Federation, Any, Task, Any, Mapping[str, Located]], State] | None = None
    #: client_statistics(fed, state, config): returns per-client statistics after training, at the clients: a
    #: dictionary of [K] tensors for clients.parquet. Nothing is sent.
    client_statistics: Callable[[Federation, State, Any], Located] | None = None
    #: checkpoint(extent, config): estimates how many numbers a checkpoint has, from the counts of a
    #: partitioned graph or of readings (`methods.common.sizes`). None: latest weights, best weights and the
    #: optimiser's state of one network, or of one at every client if `personal`.
    checkpoint: Callable[[Any, Any], int] | None = None
    #: plans_rounds(config): returns how training depends on the planned number of rounds, a clause, so that a
    #: finished run cannot be extended; "" if it does not. None: it never does.
    plans_rounds: Callable[[Any], str] | None = None
    #: The paper: authors, title, venue and address.
    paper: str = ""
    #: The tasks it can do (names in `tasks.registry.TASKS`); the first is the default.
    tasks: tuple[str, ...] = (CLASSIFICATION,)
    #: The partition if neither the user nor the data names one.
    partition: str = "label_dirichlet"
    #: Whether it trains on the pooled data as one client: a reference that no federation has.
    pooled: bool = False
    #: Whether every client has a model of its own and selects it by its own validation nodes.
    personal: bool = False
    #: What it requires of data and its partition.
    requires: Requirements = Requirements()
    #: The purposes of the values of its state.
    state: StateValues = StateValues()
    #: Descriptions of what it sends.
    sends: Sent = field(default_factory=Sent)
    #: What fills the fields that the settings leave open (`settings.Tree.parts`).
    parts: Mapping[str, Any] = field(default_factory=dict)
    #: The values that it offers of a setting, if not all (`settings.Tree.offers`).
    offers: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    #: Protections that cannot be used together with some value of another setting.
    plaintext_only: tuple[PlaintextOnly, ...] = ()
    #: check_settings(config) raises InputError for settings that cannot be used together.
    check_settings: Callable[[Any], None] | None = None
    #: Settings whose default differs from that of its task.
    defaults: Mapping[str, Any] = field(default_factory=dict)
    #: Settings that preset=paper changes, in addition to the task's paper settings and `defaults`.
    paper_settings: Mapping[str, Any] = field(default_factory=dict)

    @cached_property
    def tree(self) -> Tree:
        """The settings it has."""
        return Tree(self.config, self.parts, self.offers)

    def configure(self, given: Mapping[str, Any], defaults: Mapping[str, Any] | None = None) -> Any:
        """Make the settings of a run from flat names.

        Args:
            given: Values that the user gave, by flat name; any of them may be wrong.
            defaults: Values in the place of the defaults; `defaults` of the method if None. Those of settings
                that do not exist with the others are ignored.

        Returns:
            The settings, of class `config`.

        Raises:
            InputError: A setting does not exist, alone or with the others, or cannot be protected.
            pydantic.ValidationError: A value is of the wrong kind or out of range.
        """
        config = self.tree.make(given, self.defaults if defaults is None else defaults)
        # Here and not in a validator of the settings: a part does not know which methods forbid what.
        for only in self.plaintext_only:
            protection = value(config, only.protection, PLAINTEXT)
            if protection != PLAINTEXT and value(config, only.setting) == only.value:
                others = " or ".join(str(each) for each in self._values(only.setting) if each != only.value)
                raise InputError(
                    f"{only.protection}={protection} cannot be used with {only.setting}={only.value}: "
                    f"{only.reason}; use {only.setting}={others}, or {only.protection}={PLAINTEXT}"
                )
        if self.check_settings is not None:
            self.check_settings(config)
        return config

    def _values(self, name: str) -> tuple[Any, ...]:
        """Return the values that a setting chooses among; empty if it is not a choice."""
        leaf = next(leaf for leaf in self.tree.leaves if leaf.name == name)
        # A setting that the method does not restrict has its choices in its type, a Literal.
        return self.tree.choices(leaf) or get_args(leaf.field.annotation)

    @property
    def dropouts(self) -> bool:
        """Whether training continues with fewer clients if some are absent."""
        # Only methods that sample clients have this setting, and these can do with fewer.
        return "fraction" in self.tree.names

    @property
    def trains(self) -> bool:
        """Whether it trains anything."""
        # The part `Training` has it, which methods without training leave out.
        return "lr" in self.tree.names

    @cached_property
    def protections(self) -> dict[str, tuple[str, ...]]:
        """The protections it offers, by the setting that names them."""
        # A setting names a protection if plaintext is one of its values.
        found = {name: self._values(name) for name in self.tree.names}
        return {name: choices for name, choices in found.items() if PLAINTEXT in choices}

    def requirements(self) -> list[str]:
        """List what a run of this method requires in addition to what its task requires.

        Returns:
            A short phrase for each requirement.
        """
        requires = self.requires
        asked = ["all data at one participant"] if self.pooled else []
        asked += ["each node at one client"] if requires.disjoint else []
        asked += ["one node at every client"] if requires.nodes_per_client == "one" else []
        asked += ["nodes numbered from 0"] if requires.numbered else []
        asked += ["a node at every client"] if requires.nodes_per_client == "at least one" else []
        asked += [] if self.dropouts or self.pooled else ["every client in every round"]
        return [*asked, *requires.other]
