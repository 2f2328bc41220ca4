"""What a rule is: how the clients' training in a round becomes the next model.

Its three functions are called in this order by `averaging.program.round`:

    local(prepared, model, kept, present, config, round_number) -> (values to average ..., kept)
        at the clients, stacked: what is averaged, [K, ...] each, and what a client keeps for its next round.
        If the rule `sends` a value of the server, it is the argument after `model`
    combine
        the mean of every averaged value over the clients that take part, weighted by their training nodes
    step(model, values, means ..., config) -> (model, values)
        at the server: the next model, and the values that the server keeps. None: the mean is the next model

`config` is an `AveragingSettings`; the settings of the rule are `config.of_rule`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from graphfed.methods.settings import settings

Tensors = dict[str, Tensor]
Values = dict[str, Any]


def no_values(model: Tensors, config: object) -> Values:
    """Return that the server keeps nothing but the model."""
    return {}


@settings
class NoSettings:
    """The settings of a rule that has none."""


def no_check(config: object) -> None:
    """Accept all settings."""


@dataclass(frozen=True)
class Average:
    """A value that is averaged in a round.

    Attributes:
        name: The name of the transfer.
        of_model: Whether the value has the model's size: if no client with a training node takes part, the
            mean is the model, and otherwise zero.
        share: Whether the mean is multiplied by the share that the clients of the round have of all training
            nodes, because absent clients count with a value of zero.
    """

    name: str
    of_model: bool = False
    share: bool = False


@dataclass(frozen=True)
class Rule:
    """A rule.

    Attributes:
        name: Its name, the value of the setting `rule`.
        local: See this module's docstring.
        step: See this module's docstring.
        first: (model, config) -> the server's values before the first round.
        averages: What `local` returns to be averaged.
        sends: A value of the server that clients receive with the model, and the name of its transfer.
        messages: Descriptions of the transfers that fedavg does not have.
        settings: The class of its settings.
        check: (config) raises InputError for settings that the rule cannot be used with.
        keeps_weights: Whether clients keep values of the form of weights from round to round, in addition to
            the states of their optimisers.
    """

    name: str
    local: Callable[..., tuple[Any, ...]]
    step: Callable[..., tuple[Tensors, Values]] | None = None
    first: Callable[[Tensors, Any], Values] = no_values
    averages: tuple[Average, ...] = (Average("update", of_model=True),)
    sends: tuple[str, str] | None = None
    messages: Mapping[str, str] = field(default_factory=dict)
    settings: type = NoSettings
    check: Callable[[Any], None] = no_check
    keeps_weights: bool = False
