"""The settings of learning a sampling policy: of the reward (`reward.target`), and of what learns (`ddpg.lr`,
`bandit.shares`). The paper does not give those marked "ours".

Nothing here needs the extra `rl`: help and refusals know the settings where Gymnasium is missing."""

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
#: Episodes in the mean of returns that says how good the actor is after the last of them.
WINDOW = 10
#: The largest hidden width of an actor and a critic.
MAX_WIDTH = 2**16


def numbers_in(text: Any, kind: type) -> list[Any]:
    """``"512,256"`` -> ``[512, 256]``; ValueError for other text."""
    try:
        return [kind(part) for part in str(text).split(",")]
    except ValueError:
        whole = "whole numbers" if kind is int else "numbers"
        raise ValueError(f"expected {whole} with commas between") from None


@config_dataclass(frozen=True, config={"extra": "forbid"})
class RewardConfig:
    """The settings of the reward, `reward.target` and so on."""

    target: float | None = Field(
        default=None,
        gt=0,
        le=1,
        description="Lambda, the accuracy to reach, as a share; none: what `central` reaches on the same "
        "data, split and seed",
    )
    omega: float = Field(default=128.0, gt=1, allow_inf_nan=False, description="Omega, as in the paper")
    alpha: float | None = Field(
        default=None,
        ge=0,
        allow_inf_nan=False,
        description="alpha, what a second costs; none: 1 over the seconds of a round with full batches "
        "(ours)",
    )
    beta: float = Field(
        default=0.0, allow_inf_nan=False, description="beta, seconds of a round that cost nothing (ours)"
    )
    on: Part = Field(
        default="val",
        description="the nodes that accuracy is of: val, or test, as in the paper, and then the policy "
        "has seen them",
    )
    clock: Clock = Field(
        default="modelled",
        description="the seconds of a round: by fedgraph's time model (ours), or measured, wall",
    )


@config_dataclass(frozen=True, config={"extra": "forbid"})
class LearningConfig:
    """The settings that all kinds have."""

    gamma: float = Field(
        default=0.99, ge=0, lt=1, description="discount of later rewards in a return, Eq. (10) (ours)"
    )


@config_dataclass(frozen=True, config={"extra": "forbid"})
class DDPGConfig(LearningConfig):
    """The settings of DDPG."""

    widths: str = Field(default="512,256", description="hidden widths of both networks, as in the paper")
    components: int = Field(
        default=20, ge=1, description="principal components of the weights, at most, as in the paper"
    )
    lr: float = Field(
        default=1e-4,
        gt=0,
        allow_inf_nan=False,
        description="learning rate of actor and critic, Adam's (ours)",
    )
    phi: float = Field(
        default=0.005, ge=0, le=1, description="share of the networks in their targets' next values (ours)"
    )
    batch: int = Field(default=64, ge=1, description="transitions of an update (ours)")
    buffer: int = Field(default=100_000, ge=1, description="transitions that are kept, the newest (ours)")
    noise: float = Field(
        default=0.1, ge=0, allow_inf_nan=False, description="spread of the Gaussian noise on actions (ours)"
    )
    updates: int = Field(default=1, ge=1, description="updates after every round (ours)")

    @field_validator("widths", mode="before")
    @classmethod
    def _positive(cls, text: Any) -> str:
        if not all(1 <= width <= MAX_WIDTH for width in numbers_in(text, int)):
            raise ValueError(f"expected widths from 1 to {MAX_WIDTH}, with commas between")
        return str(text)


@config_dataclass(frozen=True, config={"extra": "forbid"})
class BanditConfig(LearningConfig):
    """The settings of the search for a constant policy: every share with every chance is an arm."""

    shares: str = Field(
        default="0.02,0.05,0.1,0.25,0.5,1",
        description="kappa as a share of a client's training nodes, of each arm",
    )
    chances: str = Field(
        default="0.1,0.25,0.5,0.75,1", description="chance of a neighbour in every layer, of each arm"
    )

    @field_validator("shares", "chances", mode="before")
    @classmethod
    def _in_range(cls, text: Any, about: ValidationInfo) -> str:
        least = MIN_PROBABILITY if about.field_name == "chances" else 0.0
        values = numbers_in(text, float)
        if not all(least <= value <= 1 and value > 0 for value in values) or len({*values}) < len(values):
            low = f"from {least}" if least else "above 0 and"
            raise ValueError(f"expected different numbers {low} up to 1, with commas between")
        return str(text)


#: The settings of what learns, by the name of the policy.
KINDS: dict[str, type[LearningConfig]] = {"ddpg": DDPGConfig, "bandit": BanditConfig}
