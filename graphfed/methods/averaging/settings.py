"""The settings of rules, and of the methods that are FedAvg with one of them."""

from typing import Literal, Self

from pydantic import Field, model_validator
from pydantic.dataclasses import dataclass

from graphfed.errors import InputError, shown
from graphfed.methods import config as groups
from graphfed.nn.optim import Optimizer


def check_optimizer(config: groups.TrainingSettings, name: str) -> None:
    """Check that clients take steps of gradient descent.

    Args:
        name: What asks for it, as in "scaffold".

    Raises:
        InputError: If the optimiser is another one. Control variates are mean gradients, which are computed
            from the distance that gradient descent covers.
    """
    if config.optimizer != "sgd":
        raise InputError(
            f"optimizer={config.optimizer} cannot be used with {name}, which computes each client's mean "
            "gradient from the steps of gradient descent; set optimizer=sgd"
        )


# ---- what a rule reads -------------------------------------------------------------------------------------


@dataclass(frozen=True, config={"extra": "forbid"})
class ProximalSettings:
    """The proximal term of FedProx."""

    mu: float = Field(default=0.01, ge=0, allow_inf_nan=False, description="strength of the proximal term")


@dataclass(frozen=True, config={"extra": "forbid"})
class ServerAdamSettings:
    """Adam at the server."""

    server_lr: float = Field(
        default=0.01, gt=0, allow_inf_nan=False, description="learning rate of the server"
    )
    beta1: float = Field(default=0.9, ge=0, lt=1, description="decay of the first moment")
    beta2: float = Field(default=0.99, ge=0, lt=1, description="decay of the second moment")
    tau: float = Field(
        default=1e-3,
        gt=0,
        allow_inf_nan=False,
        description="adaptivity: added to the root of the second moment",
    )


@dataclass(frozen=True, config={"extra": "forbid"})
class RuleSettings(groups.ControlVariates):
    """The choice of the rule. It is used together with the settings of all rules and
    `ServerOptimizerSettings`.
    """

    rule: Literal["fedavg", "fedprox", "fedadam", "scaffold", "fedsgd", "admm"] = Field(
        default="fedavg",
        description="how the clients' training becomes the next model; fedsgd: gradients are averaged, and "
        "optimizer, lr and weight_decay belong to the server",
    )
    rho: float = Field(
        default=0.1,
        gt=0,
        allow_inf_nan=False,
        description="with rule=admm: weight of the distance to the model",
    )

    @property
    def at_server(self) -> bool:
        """Whether the optimiser runs at the server."""
        assert isinstance(self, groups.ServerOptimizerSettings)
        return self.rule == "fedsgd" or (self.rule == "fedavg" and self.asks_for_server)

    @property
    def keeps_controls(self) -> bool:
        """Whether clients keep control variates."""
        return self.rule == "scaffold"

    @model_validator(mode="after")
    def _rule_can_do_it(self) -> Self:
        config: object = self
        assert isinstance(config, groups.LocalStepsSettings)
        assert isinstance(config, groups.SamplingSettings)
        if self.rule == "fedsgd" and config.local_steps != 1:
            raise InputError(
                f"local_steps={config.local_steps} cannot be used with rule=fedsgd: expected 1, since a "
                "client sends one gradient in a round; leave it out, or set rule=fedavg"
            )
        if self.rule == "admm" and config.fraction < 1:
            raise InputError(
                f"fraction={shown(config.fraction)} cannot be used with rule=admm, which needs every client "
                "in every round; leave it at 1"
            )
        if self.rule == "scaffold":
            assert isinstance(config, groups.TrainingSettings)
            check_optimizer(config, "rule=scaffold")
        return self


# ---- methods -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, config={"extra": "forbid"})
class AveragingSettings(
    groups.SamplingSettings,
    groups.AggregationSettings,
    groups.ProtocolSettings,
    groups.ClientStateSettings,
    groups.LocalStepsSettings,
    groups.ClassWeightSettings,
    groups.AttentionSettings,
    groups.BackboneSettings,
    groups.GraphSettings,
    groups.TrainingSettings,
    groups.CommonSettings,
):
    """The settings of a method that averages training; a subclass adds its own."""


@dataclass(frozen=True, config={"extra": "forbid"})
class RuledSettings(
    RuleSettings,
    ProximalSettings,
    ServerAdamSettings,
    groups.ServerOptimizerSettings,
    groups.SamplingSettings,
    groups.AggregationSettings,
    groups.ProtocolSettings,
    groups.ClientStateSettings,
    groups.LocalStepsSettings,
    groups.ClassWeightSettings,
    groups.GraphSettings,
    groups.TrainingSettings,
    groups.CommonSettings,
):
    """The settings of a method that averages training by a rule of choice."""


@dataclass(frozen=True, config={"extra": "forbid"})
class FedAvgConfig(groups.ServerOptimizerSettings, AveragingSettings):
    """The settings of FedAvg."""


@dataclass(frozen=True, config={"extra": "forbid"})
class FedProxConfig(ProximalSettings, AveragingSettings):
    """The settings of FedProx."""

    @property
    def rule(self) -> str:
        """The rule."""
        return "fedprox"


@dataclass(frozen=True, config={"extra": "forbid"})
class FedAdamConfig(ServerAdamSettings, AveragingSettings):
    """The settings of FedAdam."""

    @property
    def rule(self) -> str:
        """The rule."""
        return "fedadam"


@dataclass(frozen=True, config={"extra": "forbid"})
class ScaffoldConfig(
    groups.ControlVariates,
    groups.SamplingSettings,
    groups.AggregationSettings,
    groups.ProtocolSettings,
    groups.LocalStepsSettings,
    groups.ClassWeightSettings,
    groups.AttentionSettings,
    groups.BackboneSettings,
    groups.GraphSettings,
    groups.TrainingSettings,
    groups.CommonSettings,
):
    """The settings of SCAFFOLD."""

    optimizer: Optimizer = Field(default="sgd", description="optimiser of the clients; only sgd")

    @model_validator(mode="after")
    def _gradient_descent(self) -> Self:
        check_optimizer(self, "scaffold")
        return self

    @property
    def rule(self) -> str:
        """The rule."""
        return "scaffold"


@dataclass(frozen=True, config={"extra": "forbid"})
class DistGATConfig(groups.AttentionSettings, RuledSettings):
    """The settings of DistGAT."""

    @property
    def architecture(self) -> str:
        """Name of the network."""
        return "gat"
