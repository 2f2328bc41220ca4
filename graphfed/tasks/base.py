"""What a task is: one object that says how to load and split its data, what each participant reads, how
predictions are scored and written down, and which words and default settings go with it.

Everything else in the program is the same for all tasks and asks this object. `registry` names the modules;
each has one `TASK`.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeAlias, TypeVar

import numpy as np
import torch

from graphfed.federation import Federation
from graphfed.federation.series import TaskData
from graphfed.files import JsonObject
from graphfed.methods.base import Method, Task
from graphfed.methods.config import CommonSettings
from graphfed.tasks.evaluation import AnyEvaluation, Predicted
from graphfed.tasks.inputs import Inputs
from graphfed.tasks.run_config import RunConfig
from graphfed.tasks.source import LoadedData

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["PRESETS", "AnyKind", "DataKind", "OwnData", "ParticipantFiles", "TaskDefinition"]


class OwnData(Protocol):
    """What a participant has read from its own file. `schema` is what it may say of it."""

    @property
    def clients(self) -> Sequence[int]: ...
    @property
    def schema(self) -> "OwnSchema": ...


class OwnSchema(Protocol):
    """The form of a participant's data."""

    def to_json(self) -> JsonObject: ...


Own = TypeVar("Own", bound=OwnData)
Part = TypeVar("Part")
OwnServer = TypeVar("OwnServer")
ServerPart = TypeVar("ServerPart")

#: Choices of `preset`: the defaults, or what the papers' figures were made with.
PRESETS = ("default", "paper")


@dataclass(frozen=True)
class ParticipantFiles(Generic[Own, Part, OwnServer, ServerPart]):
    """What the participants of a deployment read from their own files, and what they must agree on.

    Attributes:
        read: (arguments, path, client) -> a client's own data.
        agree: (schemas, server) -> what all participants agree on, from what each client says of its data.
        task: (agreed) -> what everyone knows beforehand.
        facts: (schema) -> facts of the data, for the run's manifest.
        arrays: (own) -> what a digest of a client's data is made of.
        part: (own, clients, task, device) -> what its host trains on.
        table: (own, part, predicted) -> predictions.parquet at the client.
        declared: (own, method, config) -> how many nodes of each part of the split each of the client's
        clients
            has, [K_h] by part, as far as the run shows them to the server anyway.
        read_server: (arguments, path) -> the server's own data; None where it has none.
        server_part: (server, agreed) -> what the server trains with; None where it has no data.
        summarise: (path, roster, name) -> what is in a participant's file, in a few words for its operator;
            None where the file is of another kind. Raises InputError for a file that cannot be used.
    """

    read: Callable[[JsonObject, Path, str], Own]
    agree: Callable[[Mapping[str, JsonObject], OwnServer], JsonObject]
    task: Callable[[JsonObject], Task]
    facts: Callable[[JsonObject], JsonObject]
    arrays: Callable[[Own], dict[str, np.ndarray]]
    part: Callable[[Own, Sequence[int], Task, torch.device], Part]
    table: "Callable[[Own, Part, Predicted], pa.Table]"
    summarise: Callable[[Path, Sequence[str], str], str | None]
    declared: Callable[[Own, Method, CommonSettings], dict[str, list[int]]] = lambda own, method, config: {}
    read_server: Callable[[JsonObject, Path], OwnServer] | None = None
    server_part: Callable[[OwnServer, JsonObject], ServerPart] | None = None


@dataclass(frozen=True)
class DataKind(Generic[Part, ServerPart]):
    """A kind of data, and how its parts reach the hosts of a run.

    Attributes:
        name: "graph" or "sensors".
        default: The data set where nobody names one.
        save: Writes a host's part to a file, for a process of its own.
        load: Reads it there.
        located: (fed, parts, servers) -> the `data` of training, from the parts in this process:
            of hosts, and of the server.
        participants: What a deployment's participants read.
        save_server: As `save`, of the server's part; None where it has none.
        load_server: As `load`.
    """

    name: str
    default: str
    save: Callable[[Part, Path], None]
    load: Callable[[Path], Part]
    located: Callable[[Federation, Sequence[Part], Sequence[ServerPart]], TaskData]
    participants: ParticipantFiles[Any, Part, Any, ServerPart]
    save_server: Callable[[ServerPart, Path], None] | None = None
    load_server: Callable[[Path], ServerPart] | None = None


#: Whichever kind a task is done on: the program asks it for parts and hands these back to it.
AnyKind: TypeAlias = DataKind[Any, Any]


@dataclass(frozen=True)
class TaskDefinition:
    """One task.

    Attributes:
        name: As in a config file.
        predicted: What is predicted, in words.
        scored: What the metrics are over, in words.
        metric: The validation metric that decides unless the settings say otherwise.
        metric_name: Its name in a text.
        targets: What is measured at each of them, where the metric is an error: "readings".
        error: Whether the metric is an error, the smaller the better and in the unit of the data, and not a
            share.
        needs: What the data must have, in a few words each.
        output: What a model gives, for its card; "": one of the classes of the data.
        data: The kind of data it is done on.
        load: (config, loaded, on_stage) -> the inputs of a run; `loaded` keeps data sets between runs and
            on_stage(text) is called with what begins.
        evaluation: How predictions are scored.
        agree: (fed, data, task, config) -> the data with what clients agree on before set-up; None: nothing.
        messages: The transfers of `agree`, in words (see `Sent.messages`).
        groups: The groups of settings that its methods share, as far as they have them: what these settings
            mean is the same for all.
        defaults: Settings in which its defaults differ from those of the groups.
        paper_settings: What preset=paper changes in every method that has the setting.
        headline: (details of a result, names of its metrics) -> the metrics that come first, at least one.
        check_settings: Raises InputError for a setting that means nothing in this task.
        other_inputs: (config, what the manifest says of the run's data) -> the inputs of predicting on other
            data than the run's; None: nothing else can be predicted.
        own_data: Choices of a run that are of its own data and mean nothing on another one's.
        drop_elsewhere: Columns of the predictions that say nothing of other data.
        only_own: Why only the run's own targets can be predicted, after "the run in FOLDER"; "": others can.
        clients_may_be_absent: Whether clients can predict while others send nothing.
        own_partition: Why a saved partition cannot be used, after its file's name; "": it can.
        only_simulated: Why the task cannot be deployed, a sentence; "": it can.
    """

    name: str
    predicted: str
    scored: str
    metric: str
    metric_name: str
    needs: tuple[str, ...]
    data: AnyKind
    load: Callable[[RunConfig, LoadedData | None, Callable[[str], None]], Inputs]
    evaluation: AnyEvaluation
    groups: tuple[type, ...]
    agree: Callable[[Federation, Any, Task, CommonSettings], TaskData] | None = None
    messages: Mapping[str, str] = field(default_factory=dict)
    error: bool = False
    targets: str = "targets"
    output: str = ""
    defaults: JsonObject = field(default_factory=dict)
    paper_settings: JsonObject = field(default_factory=dict)
    headline: Callable[[Mapping[str, object], Iterable[str]], list[str]] | None = None
    check_settings: Callable[[Mapping[str, object]], None] | None = None
    other_inputs: Callable[[RunConfig, JsonObject], Inputs] | None = None
    own_data: JsonObject = field(default_factory=dict)
    drop_elsewhere: tuple[str, ...] = ()
    only_own: str = ""
    clients_may_be_absent: bool = False
    own_partition: str = ""
    only_simulated: str = ""

    def better(self, value: float, best: float) -> bool:
        """Return whether a value of the metric is better than another one."""
        return value < best if self.error else value > best

    def settings_of(self, method: Method, preset: str = "default") -> JsonObject:
        """Return the settings in which a run differs from its config's defaults where the user chooses none.

        Args:
            method: One that can do this task.
            preset: One of `PRESETS`.
        """
        names = {f.name for f in fields(method.config)}
        of_task = self.defaults if preset == "default" else self.paper_settings
        known = {name: value for name, value in of_task.items() if name in names}
        of_method = method.defaults if preset == "default" else {**method.defaults, **method.paper_settings}
        return {**known, **of_method}

    def requirements(self, method: Method) -> list[str]:
        """Return everything a run of this task by `method` asks for, in a few words each."""
        return [*self.needs, *method.requirements()]
