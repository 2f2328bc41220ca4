"""A task: one class with everything that differs between tasks.

It states which kind of data it needs, how the data is loaded and split, how predictions are scored, and the
texts and default settings of the task. The rest of the program is the same for all tasks and uses this class.
`registry` lists the modules; each has one instance, `TASK`.

Scores are summed with the same protection as the weights of the method (`methods.parts.sum_protection`).
With aggregation=plaintext the server reads each client's scores; if a client has only one node or pair, they
reveal its label. With aggregation=secure the server learns only the sum over all clients.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import Any, Generic, TypeAlias, TypeVar

import numpy as np
from torch import Tensor

from graphfed.errors import InputError, shown
from graphfed.federation import Federation, Located
from graphfed.files import JsonObject
from graphfed.methods.base import Method, Task
from graphfed.methods.settings import only_those
from graphfed.tasks.evaluation import Predicted, Scored
from graphfed.tasks.inputs import Inputs, OnStage
from graphfed.tasks.kind import AnyKind
from graphfed.tasks.run_config import RunConfig
from graphfed.tasks.source import LoadedData

#: The values of `preset`: the default settings, or the settings of the papers' figures.
PRESETS = ("default", "paper")

Data = TypeVar("Data")
Prepared = TypeVar("Prepared")


class TaskDefinition(ABC, Generic[Data, Prepared]):
    """One task.

    `Data` is the argument `data` of training, and `Prepared` what `prepare` returns. The static methods run
    at clients; their `cohort` is the result of `at_clients`.

    Attributes:
        name: The name of the task in a config file.
        predicted: A phrase for what is predicted.
        scored: The noun for the scored objects, such as "nodes".
        metric: The validation metric that selects rounds unless the settings choose another one.
        metric_name: The name of this metric in a text.
        needs: Phrases for what the data must have.
        parts: The parts of settings that the methods of the task share.
        summed: The nouns for what the sums of training, validation and test add up.
        messages: The descriptions of the transfers of an evaluation in plaintext (see `Sent.messages`).
        agree_messages: The descriptions of the transfers of `agree`.
        error: Whether the metric is an error in the unit of the data, for which smaller is better. Otherwise
            it is a fraction, for which larger is better.
        targets: The noun for the measured values if the metric is an error, such as "readings".
        output: A phrase for the output of a model, for its card; "" if it is one of the data's classes.
        defaults: The settings whose defaults differ from those of the groups.
        paper_settings: The settings that preset=paper changes in every method that has them.
        chooses_headline: Whether a run chooses its most important metrics (see `headline`).
        unused_settings: The settings that have no effect in this task, with the reason why.
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
    parts: tuple[type, ...]
    summed: tuple[str, ...]
    messages: Mapping[str, str]
    agree_messages: Mapping[str, str] = {}
    error: bool = False
    targets: str = "targets"
    output: str = ""
    defaults: Mapping[str, Any] = {}
    paper_settings: Mapping[str, Any] = {}
    chooses_headline: bool = False
    unused_settings: Mapping[str, str] = {}
    own_data: Mapping[str, Any] = {}
    drop_elsewhere: tuple[str, ...] = ()
    only_own: str = ""
    clients_may_be_absent: bool = False
    own_partition: str = ""
    only_simulated: str = ""

    # ---- data ----------------------------------------------------------------------------------------------

    @abstractmethod
    def load(self, config: RunConfig, loaded: LoadedData, on_stage: OnStage) -> Inputs:
        """Load, split and partition the data of a run; InputError if the run asks for what is impossible.

        `loaded` keeps data sets between runs. `loading.load_inputs` then checks the inputs.
        """

    def other_inputs(self, config: RunConfig, known: JsonObject) -> Inputs:
        """Load other data than the run's for predictions, and check that the trained model can use it.

        `known` are the manifest's facts on the run's data. Not called if the task has `only_own`.
        """
        raise NotImplementedError

    def agree(self, fed: Federation, data: Data, task: Task, config: Any) -> Data:
        """Return the data with the values on which the clients agree before set-up."""
        return data

    # ---- evaluation ----------------------------------------------------------------------------------------

    def at_clients(self, data: Data) -> Located:
        """Return the clients' part of the data."""
        assert isinstance(data, Located)
        return data

    def enrolled(self, fed: Federation, data: Data) -> np.ndarray | None:
        """Determine the clients that take part in training and validation.

        The result is bool [K], equal at all places; None for all clients.
        """
        return None

    @abstractmethod
    def prepare(self, fed: Federation, data: Data, task: Task, config: Any) -> Prepared:
        """Prepare the values that every scoring needs; called once."""

    @abstractmethod
    def decides(self, config: Any, prepared: Prepared) -> str:
        """Return the name of the validation metric that selects rounds."""

    @abstractmethod
    def score(
        self,
        fed: Federation,
        data: Data,
        outputs: Located,
        target: str,
        name: str,
        prepared: Prepared,
        config: Any,
    ) -> tuple[Located | None, Located[Scored]]:
        """Score the outputs of a target.

        `name` starts the names of the plaintext transfers. The result is every client's own scores at the
        clients (None if clients cannot select rounds by them), and a `Scored` at the server.
        """

    @staticmethod
    @abstractmethod
    def has_parts(cohort: Any, present: Tensor, /) -> Tensor:
        """Return whether each client has any of `summed`, bool [K_h, len(summed)].

        `present` are the clients that take part in training and validation, bool [K_h].
        """

    @staticmethod
    @abstractmethod
    def keep(cohort: Any, outputs: Tensor) -> Predicted:
        """Return the outputs for the target "all" with the nodes, pairs or windows that they belong to."""

    @staticmethod
    @abstractmethod
    def of_target(cohort: Any, kept: Predicted, target: str) -> Tensor:
        """Select the outputs of one target from the result of `keep`."""

    @staticmethod
    def better_clients(scores: Any, best: Tensor | None) -> tuple[Tensor, Tensor]:
        """Decide which clients have a better score than their best one so far, bool [K], and update it, [K].

        Not called if the task's clients have no scores of their own.
        """
        raise NotImplementedError

    # ---- metrics and settings ------------------------------------------------------------------------------

    def better(self, value: float, best: float) -> bool:
        """Decide whether a value of the metric is better than the best value so far."""
        return value < best if self.error else value > best

    def headline(self, details: Mapping[str, object], known: Iterable[str]) -> list[str]:
        """List the most important metrics of a run, at least one, from the details of its result.

        `known` are the names of the metrics that the run has.
        """
        return [self.metric]

    def check_settings(self, settings: Mapping[str, object]) -> None:
        """Raise InputError for a setting that has no effect in this task."""
        for key, reason in self.unused_settings.items():
            # With these values the user has chosen nothing.
            if settings.get(key) not in ("auto", "none", None):
                raise InputError(f"{key}={shown(settings[key])} cannot be used: {reason}; omit this setting")

    def settings_of(self, method: Method, preset: str = "default") -> JsonObject:
        """Collect the settings of a preset (one of `PRESETS`) that differ from the method's defaults."""
        of_task = self.defaults if preset == "default" else self.paper_settings
        # Not every method has all settings for which the task has a value.
        known = only_those(method.tree.names, of_task)
        of_method = method.defaults if preset == "default" else {**method.defaults, **method.paper_settings}
        # The values of the method win over those of the task.
        return {**known, **of_method}

    def requirements(self, method: Method) -> list[str]:
        """List what a run of this task with a method needs, in phrases such as "features"."""
        return [*self.needs, *method.requirements()]


#: A task whose data and prepared values the caller only passes on.
AnyTask: TypeAlias = TaskDefinition[Any, Any]
