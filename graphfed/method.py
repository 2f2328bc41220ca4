"""What the author of a method imports: ``import graphfed.method as gm``.

A method is a `Method`: settings (a class marked `settings`, made of the groups below and fields of its own)
and three functions that are one program over places. A method that averages training differently is FedAvg
with another `Rule`; `FEDAVG`, `setup`, `round` and `predict` are that program, and the functions before them
its parts. CONTRIBUTING.md has a complete example, docs/plugins.md one with a rule.
"""

from typing import TypeVar, cast, dataclass_transform

from pydantic import Field
from pydantic.dataclasses import dataclass

from graphfed.errors import InputError
from graphfed.federation import Federation, Located
from graphfed.federation.cohort import Cohort
from graphfed.methods.averaging.methods import FEDAVG, WEIGHTS_SENT
from graphfed.methods.averaging.program import count_training, predict, prepare_own, round, setup, start
from graphfed.methods.averaging.rules import RULES
from graphfed.methods.averaging.rules.base import Average, Rule
from graphfed.methods.averaging.settings import AveragingSettings
from graphfed.methods.base import Method, Requirements, Sent, State, StateValues, Task
from graphfed.methods.common.local_training import (
    Prepared,
    gradient_from_shared,
    initial_weights,
    own_view,
    predict_shared,
    prepare,
    train_from_shared,
)
from graphfed.methods.config import (
    AggregationSettings,
    AttentionSettings,
    BackboneSettings,
    ClassWeightSettings,
    ClientStateSettings,
    CommonSettings,
    GraphSettings,
    LocalStepsSettings,
    ProtocolSettings,
    SamplingSettings,
    TrainingSettings,
)

__all__ = [
    "FEDAVG",
    "RULES",
    "WEIGHTS_SENT",
    "AggregationSettings",
    "AttentionSettings",
    "Average",
    "AveragingSettings",
    "BackboneSettings",
    "ClassWeightSettings",
    "ClientStateSettings",
    "Cohort",
    "CommonSettings",
    "Federation",
    "Field",
    "GraphSettings",
    "InputError",
    "LocalStepsSettings",
    "Located",
    "Method",
    "Prepared",
    "ProtocolSettings",
    "Requirements",
    "Rule",
    "SamplingSettings",
    "Sent",
    "State",
    "StateValues",
    "Task",
    "TrainingSettings",
    "count_training",
    "gradient_from_shared",
    "initial_weights",
    "own_view",
    "predict",
    "predict_shared",
    "prepare",
    "prepare_own",
    "round",
    "settings",
    "setup",
    "start",
    "train_from_shared",
]

C = TypeVar("C")


@dataclass_transform(frozen_default=True, field_specifiers=(Field,))
def settings(cls: type[C]) -> type[C]:
    """Mark a class as the settings of a method: values are checked, and unknown names are refused.

    Args:
        cls: The class. A field is ``name: type = Field(default=..., description="...")``, with bounds such as
            ``gt=0``.

    Returns:
        The class, as a frozen dataclass of pydantic.
    """
    return cast("type[C]", dataclass(frozen=True, config={"extra": "forbid"})(cls))
