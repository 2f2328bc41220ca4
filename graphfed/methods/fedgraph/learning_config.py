"""The settings of learning a sampling policy: of the reward (`reward.target`) and of the learner (`ddpg.lr`,
`bandit.shares`). "(ours)" marks defaults that the paper does not give.

This module works without the extra `rl`, so that help and messages list the settings if Gymnasium is missing.
"""

from typing import Any, Literal

from pydantic import Field, ValidationInfo, field_validator
from pydantic.dataclasses import dataclass as config_dataclass

from graphfed.methods.fedgraph.sampling_policies import MIN_PROBABILITY

__all__ = [
    "KINDS",
    "WINDOW",
    "BanditConfig",
    "Clock",
    "DDPGConfig",
    "LearningConfig",
    "Part",
    "RewardConfig",
    "numbers_in",
]

Part = Literal["val", "test"]
Clock = Literal["modelled", "wall"]
#: The number of episodes whose mean return rates the actor after the last of them.
WINDOW = 10
#: The largest hidden width of an actor and a critic.
MAX_WIDTH = 2**16


def numbers_in(text: Any, kind: type) -> list[Any]:
    """Parse numbers with commas between, as in ``512,256``.

    Args:
        text: The text.
        kind: int or float.

    Returns:
        The numbers.

    Raises:
        ValueError: The text is something else.
    """
    try:
        return [kind(part) for part in str(text).split(",")]
    except ValueError:
        noun = "whole numbers" if kind is int else "numbers"
        raise ValueError(f"expected {noun} with commas between") from None


@config_dataclass(frozen=True, config={"extra": "forbid"})
class RewardConfig:
    """The settings of the reward (`reward.target`)."""

    target: float | None = Field(
        default=None,
        gt=0,
        le=1,
        description="target accuracy Lambda, as a fraction; none: the accuracy of `central` with the same "
        "data, split and seed",
    )
    omega: float = Field(default=128.0, gt=1, allow_inf_nan=False, description="base Omega, as in the paper")
    alpha: float | None = Field(
        default=None,
        ge=0,
        allow_inf_nan=False,
        description="cost alpha of a second; none: 1 over the seconds of a round with full batches (ours)",
    )
    beta: float = Field(
        default=0.0, allow_inf_nan=False, description="seconds beta of a round without cost (ours)"
    )
    on: Part = Field(
        default="val",
        description="nodes whose accuracy is used: val, or test as in the paper, which a policy then depends "
        "on",
    )
    clock: Clock = Field(
        default="modelled",
        description="seconds of a round: from fedgraph's time model (modelled, ours), or measured (wall)",
    )


@config_dataclass(frozen=True, config={"extra": "forbid"})
class LearningConfig:
    """The settings of every learner."""

    gamma: float = Field(
        default=0.99, ge=0, lt=1, description="discount of later rewards in a return, Eq. (10) (ours)"
    )


@config_dataclass(frozen=True, config={"extra": "forbid"})
class DDPGConfig(LearningConfig):
    """The settings of DDPG."""

    widths: str = Field(default="512,256", description="hidden widths of both networks, as in the paper")
    components: int = Field(
        default=20, ge=1, description="largest number of principal components of the weights, as in the paper"
    )
    lr: float = Field(
        default=1e-4,
        gt=0,
        allow_inf_nan=False,
        description="learning rate of Adam, for actor and critic (ours)",
    )
    phi: float = Field(default=0.005, ge=0, le=1, description="rate phi of the target networks (ours)")
    batch: int = Field(default=64, ge=1, description="number of transitions in an update (ours)")
    buffer: int = Field(default=100_000, ge=1, description="size of the replay buffer in transitions (ours)")
    noise: float = Field(
        default=0.1,
        ge=0,
        allow_inf_nan=False,
        description="standard deviation of the Gaussian noise on actions (ours)",
    )
    updates: int = Field(default=1, ge=1, description="number of updates after every round (ours)")

    @field_validator("widths", mode="before")
    @classmethod
    def _positive(cls, text: Any) -> str:
        if not all(1 <= width <= MAX_WIDTH for width in numbers_in(text, int)):
            raise ValueError(f"expected widths from 1 to {MAX_WIDTH}, with commas between")
        return str(text)


@config_dataclass(frozen=True, config={"extra": "forbid"})
class BanditConfig(LearningConfig):
    """The settings of the bandit. Each pair of a fraction and a probability is an arm."""

    shares: str = Field(
        default="0.02,0.05,0.1,0.25,0.5,1",
        description="kappa of the arms, as fractions of a client's training nodes",
    )
    chances: str = Field(
        default="0.1,0.25,0.5,0.75,1",
        description="sampling probabilities of the arms, for a neighbour in every layer",
    )

    @field_validator("shares", "chances", mode="before")
    @classmethod
    def _in_range(cls, text: Any, info: ValidationInfo) -> str:
        least = MIN_PROBABILITY if info.field_name == "chances" else 0.0
        values = numbers_in(text, float)
        if not all(least <= value <= 1 and value > 0 for value in values) or len({*values}) < len(values):
            low = f"from {least}" if least else "above 0 and"
            raise ValueError(f"expected different numbers {low} up to 1, with commas between")
        return str(text)


#: The settings of the learner, by the name of the policy.
KINDS: dict[str, type[LearningConfig]] = {"ddpg": DDPGConfig, "bandit": BanditConfig}
