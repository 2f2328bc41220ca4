"""The settings of methods that average weights at the server (`federation.secure.aggregation`)."""

from typing import Literal, Self

from pydantic import Field, model_validator
from pydantic.dataclasses import dataclass

from graphfed.errors import InputError
from graphfed.federation.secure.aggregation import SumProtection, messages
from graphfed.methods.base import TrainingConfig

__all__ = ["MESSAGES", "PROTECTION", "AveragingConfig", "LocalAveragingConfig"]


@dataclass(frozen=True, config={"extra": "forbid"})
class AveragingConfig(TrainingConfig):
    """The settings of methods that average weights at the server."""

    aggregation: SumProtection = Field(  # type: ignore[assignment]
        default="plaintext",
        description="how weights are averaged at the server: it reads each site's, or by secure aggregation "
        "their sum only",
    )
    optimizer_at: Literal["auto", "server", "clients"] = Field(
        default="auto",
        description="server: clients send the gradient of one step, and the optimiser steps on the mean, as "
        "in central training; clients: every client runs the optimiser, and weights are averaged; auto: "
        "server with local_steps=1, else clients",
    )

    @property
    def asks_for_server(self) -> bool:
        """Whether the settings ask for the optimiser to run at the server."""
        return self.optimizer_at == "server" or (self.optimizer_at == "auto" and self.local_steps == 1)

    @property
    def at_server(self) -> bool:
        """Whether the optimiser runs at the server."""
        return self.asks_for_server

    @model_validator(mode="after")
    def _one_gradient_a_round(self) -> Self:
        if self.optimizer_at == "server" and self.local_steps != 1:
            raise InputError(
                f"local_steps={self.local_steps} cannot be used with optimizer_at=server: expected 1, since "
                "a client sends one gradient in a round; leave optimizer_at out, or set it to clients"
            )
        return self


@dataclass(frozen=True, config={"extra": "forbid"})
class LocalAveragingConfig(AveragingConfig):
    """The settings of methods whose clients always run the optimiser, with any number of local steps."""

    @property
    def at_server(self) -> bool:
        """Whether the optimiser runs at the server: never."""
        return False


#: The transfers of a secure average of `update`, in words.
MESSAGES = messages(
    "update",
    "With aggregation=secure, in every round",
    "a site's weights, times its number of training vertices",
)
#: For the table of methods.
PROTECTION = (
    "none: in clear; with aggregation=secure the server reads the sum of the weights, not each site's"
)
