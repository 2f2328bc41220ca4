"""The definition of a task: one object with everything that differs between tasks.

It states how data is loaded and split, what each participant of a deployment reads, how predictions are
scored and written, and the texts and default settings of the task. The rest of the program is the same for
all tasks and uses this object. `registry` lists the modules; each has one `TASK`.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeAlias, TypeVar

import numpy as np
import torch

from graphfed.federation import Federation
from graphfed.federation.series import TaskData
from graphfed.files import JsonObject
from graphfed.methods.base import Method, Task
from graphfed.methods.settings import only_those
from graphfed.tasks.evaluation import AnyEvaluation, Predicted
from graphfed.tasks.inputs import Inputs
from graphfed.tasks.run_config import RunConfig
from graphfed.tasks.source import LoadedData

if TYPE_CHECKING:
    import pyarrow as pa


class OwnData(Protocol):
    """The data that a participant of a deployment read from its own file."""

    @property
    def clients(self) -> Sequence[int]:
        """The numbers of the participant's clients."""

    @property
    def schema(self) -> "OwnSchema":
        """The description of the data that the participant may send to others."""


class OwnSchema(Protocol):
    """The form of a participant's data, without the data."""

    def to_json(self) -> JsonObject:
        """Convert to JSON."""


Own = TypeVar("Own", bound=OwnData)
Part = TypeVar("Part")
OwnServer = TypeVar("OwnServer")
ServerPart = TypeVar("ServerPart")

#: The values of `preset`: the default settings, or the settings of the papers' figures.
PRESETS = ("default", "paper")


@dataclass(frozen=True)
class ParticipantFiles(Generic[Own, Part, OwnServer, ServerPart]):
    """Functions that read the files of a deployment's participants and compare their data.

    Attributes:
        read: (arguments, path, site) -> the data of a site.
        agree: (schemas, server) -> the facts on which all participants agree, from the schemas of all sites.
        task: (agreed) -> the task, which all participants know before training.
        facts: (schema) -> facts on the data for the run's manifest.
        arrays: (own) -> the arrays of a site's data that are hashed.
        part: (own, clients, task, device) -> the data that the site trains on.
        table: (own, part, predicted) -> the content of predictions.parquet at the site.
        rows: (own, config) -> the rows of a site's data that a model computes at once, nodes or windows of
            sensors.
        summarise: (path, roster, name) -> one line on the content of a participant's file, for its operator;
            None if the file is of another kind of data. Raises InputError if the file cannot be used.
        declared: (own, method, config) -> the number of nodes in each part of the split at each of the site's
            K_h clients, [K_h] by part, for those parts whose numbers the run sends to the server anyway.
        read_server: (arguments, path) -> the server's data; None if the server has no data.
        server_part: (server, agreed) -> the data that the server trains with; None if the server has no data.
    """

    read: Callable[[JsonObject, Path, str], Own]
    agree: Callable[[Mapping[str, JsonObject], OwnServer], JsonObject]
    task: Callable[[JsonObject], Task]
    facts: Callable[[JsonObject], JsonObject]
    arrays: Callable[[Own], dict[str, np.ndarray]]
    part: Callable[[Own, Sequence[int], Task, torch.device], Part]
    table: "Callable[[Own, Part, Predicted], pa.Table]"
    rows: Callable[[Own, Any], int]
    summarise: Callable[[Path, Sequence[str], str], str | None]
    declared: Callable[[Own, Method, Any], dict[str, list[int]]] = lambda own, method, config: {}
    read_server: Callable[[JsonObject, Path], OwnServer] | None = None
    server_part: Callable[[OwnServer, JsonObject], ServerPart] | None = None


@dataclass(frozen=True)
class DataKind(Generic[Part, ServerPart]):
    """A kind of data, and how its parts get to the workers of a run.

    Attributes:
        name: "graph" or "sensors".
        default: The data set that is used if the user names none.
        save: Writes a worker's part to a file, for another process.
        load: Reads a worker's part from a file.
        located: (fed, parts, servers) -> the argument `data` of training, from the parts of the workers and
            of the server in this process.
        participants: Functions for the participants of a deployment.
        save_server: Writes the server's part to a file; None if the server has no data.
        load_server: Reads the server's part from a file; None if the server has no data.
    """

    name: str
    default: str
    save: Callable[[Part, Path], None]
    load: Callable[[Path], Part]
    located: Callable[[Federation, Sequence[Part], Sequence[ServerPart]], TaskData]
    participants: ParticipantFiles[Any, Part, Any, ServerPart]
    save_server: Callable[[ServerPart, Path], None] | None = None
    load_server: Callable[[Path], ServerPart] | None = None


#: A kind of data whose parts the caller only passes on.
AnyKind: TypeAlias = DataKind[Any, Any]


@dataclass(frozen=True)
class TaskDefinition:
    """One task.

    Attributes:
        name: The name of the task in a config file.
        predicted: A phrase for what is predicted.
        scored: The noun for the scored objects, such as "nodes".
        metric: The validation metric that selects rounds unless the settings choose another one.
        metric_name: The name of this metric in a text.
        needs: Phrases for what the data must have.
        load: (config, loaded, on_stage) -> the inputs of a run. `loaded` keeps data sets between runs, and
            on_stage(text) is called at the start of each stage.
        parts: The parts of settings that the methods of the task share.
        agree: (fed, data, task, config) -> the data with the values on which the clients agree before set-up;
            None if they agree on nothing.
        messages: The descriptions of the transfers of `agree` (see `Sent.messages`).
        error: Whether the metric is an error in the unit of the data, for which smaller is better. Otherwise
            it is a fraction, for which larger is better.
        targets: The noun for the measured values if the metric is an error, such as "readings".
        output: A phrase for the output of a model, for its card; "" if it is one of the data's classes.
        defaults: The settings whose defaults differ from those of the groups.
        paper_settings: The settings that preset=paper changes in every method that has them.
        headline: (details of a result, names of its metrics) -> the most important metrics, at least one.
        check_settings: Raises InputError for a setting that has no effect in this task.
        other_inputs: (config, the manifest's facts on the run's data) -> the inputs for predictions on other
            data than the run's; None if such predictions are not possible.
        own_data: Options of a run that refer to its data, with the values that replace them for other data.
        drop_elsewhere: The columns of predictions that have no meaning for other data.
        only_own: The reason why only the run's targets can be predicted, a phrase after "the run in FOLDER";
            "" if others can be predicted, too.
        clients_may_be_absent: Whether clients can predict while other clients send nothing.
        own_partition: The reason why a saved partition cannot be used, a phrase after the name of its file;
            "" if it can be used.
        only_simulated: The reason why the task cannot be deployed, a sentence; "" if it can be deployed.
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
    parts: tuple[type, ...]
    agree: Callable[[Federation, Any, Task, Any], TaskData] | None = None
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
        """Decide whether a value of the metric is better than the best value so far.

        Returns:
            True if it is better.
        """
        return value < best if self.error else value > best

    def settings_of(self, method: Method, preset: str = "default") -> JsonObject:
        """Collect the settings of a preset that differ from the defaults of the method's config.

        Args:
            preset: One of `PRESETS`.
        """
        of_task = self.defaults if preset == "default" else self.paper_settings
        known = only_those(method.tree.names, of_task)
        of_method = method.defaults if preset == "default" else {**method.defaults, **method.paper_settings}
        return {**known, **of_method}

    def requirements(self, method: Method) -> list[str]:
        """List what a run of this task with a method needs.

        Returns:
            Phrases such as "features".
        """
        return [*self.needs, *method.requirements()]
