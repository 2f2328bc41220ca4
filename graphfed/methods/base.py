"""What a method is: a frozen config, and three functions that are one program over places.

    setup(fed, data, task, config) -> State
        one-off exchanges and the first weights
    round(fed, state, config, number) -> State
        one communication round, counted from 1
    predict(fed, state, config, target) -> Located
        at the clients, with only what the method's protocol lets it see at prediction time: to classify
        vertices logits [n, C] of cohort.rows(target); to predict links scores [n] of cohort.pairs(target),
        any real numbers, the larger the likelier (h_u . h_v); to forecast [P, W, n], of the P sensors that
        take part, of series.starts(target), in the unit of the readings; target is "val", "test" or "all"
        (both)

`data` is a `Cohort` located at the clients, in forecasting a `SensorData`; `task` what everyone knows
beforehand.

`State.values` are what training changes (flat, savable); `State.prepared` is what setup worked out and rounds
only read."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, get_args

from graphfed.federation import Federation, Located
from graphfed.federation.secure.protection import PLAINTEXT
from graphfed.methods.config import CommonSettings, SamplingSettings, TrainingSettings
from graphfed.methods.tasks import CLASSIFICATION

__all__ = ["Method", "State", "Task"]


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
    them are the model is `Method.model`."""

    values: Mapping[str, Located]
    prepared: Any = None

    @property
    def weights(self) -> Located:
        return self.values["weights"]


@dataclass(frozen=True)
class Method:
    """One row of the registry, as the method's own file declares it."""

    name: str
    summary: str
    config: type[CommonSettings]
    setup: Callable[[Federation, Any, Task, Any], State]
    round: Callable[[Federation, State, Any, int], State]
    predict: Callable[[Federation, State, Any, str], Located]
    #: The state of a run whose set-up released what must not be drawn again (noise, say), from its values:
    #: restore(fed, data, task, config, values) runs in the place of setup. None: setup runs again.
    restore: Callable[[Federation, Any, Task, Any, Mapping[str, Located]], State] | None = None
    #: At the clients, after training: what each client can say of its own part, a dictionary of [K] tensors,
    #: for a table (clients.parquet). account(fed, state, config); nothing crosses.
    account: Callable[[Federation, State, Any], Located] | None = None
    #: Of transfers between clients: the column of `account` that counts those to whom one client sends.
    recipients: Mapping[str, str] = field(default_factory=dict)
    #: The value at the server, a dictionary of single numbers, that goes into the details of the result.
    facts: str = ""
    #: The partition where the user names none, and the data names no sites.
    partition: str = "label_dirichlet"
    #: The tasks it can do (names in `tasks.registry.TASKS`); the first is the one it does unless it is asked.
    tasks: tuple[str, ...] = (CLASSIFICATION,)
    #: Trains on the pooled graph as one client: the reference that no federation sees.
    pooled: bool = False
    #: Every client keeps a model of its own and selects it on its own validation vertices.
    personal: bool = False
    #: Every vertex must be held by one client only.
    disjoint: bool = False
    #: Every client must hold one vertex, and no more.
    one_vertex: bool = False
    #: Vertices must be numbered 0, 1, ... over all clients, which only one party that has all data can do.
    numbered: bool = False
    #: Goes on with clients that hold no vertex.
    empty_clients: bool = True
    #: Ends with one backbone's weights at the server, which can be scored on the pooled graph too.
    shared_model: bool = False
    #: Every named transfer of the method, in words for those who must answer for it: what it is, and what the
    #: receiver can read from it. Those of every run are in `runs.train.MESSAGES`.
    messages: Mapping[str, str] = field(default_factory=dict)
    #: The paper: authors, title, venue, and where it can be read.
    paper: str = ""
    #: The values of a state that are the model, in the order of its file.
    model: tuple[str, ...] = ("weights",)
    #: Of these, the ones at the clients that are the same at all of them.
    replicated: tuple[str, ...] = ()
    #: The values of a state that only the next round needs: no model of an earlier round is chosen with them.
    scratch: tuple[str, ...] = ()
    #: What it asks of data and settings beyond features and classes, and beyond what the flags above say.
    needs: tuple[str, ...] = ()
    #: check(data, config): raises InputError for a graph, or sensors, that the method cannot use, beyond what
    #: the flags say. Called where one party has all data; elsewhere the method's own functions refuse.
    check: Callable[[Any, Any], None] | None = None
    #: What leaves a client, in a few words, for a table.
    crosses: str = ""
    #: What keeps the receiver from reading it, in a few words.
    protection: str = "none: in clear"
    #: memory(extent, config): about how many bytes the method takes beyond training its backbone, from the
    #: counts of a partitioned graph or of readings (`methods.memory_need`). None: nothing large.
    memory: Callable[[Any, Any], float] | None = None
    #: Settings in which the method differs from the defaults of its task.
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
        asked = ["all data at one party"] if self.pooled else []
        asked += ["each vertex at one client"] if self.disjoint else []
        asked += ["one vertex at every client"] if self.one_vertex else []
        asked += ["vertices numbered from 0"] if self.numbered else []
        asked += [] if self.empty_clients or self.one_vertex else ["a vertex at every client"]
        asked += [] if self.dropouts or self.pooled else ["every client in every round"]
        return [*asked, *self.needs]
