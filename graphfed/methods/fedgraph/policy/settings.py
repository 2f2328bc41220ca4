"""The settings of learning a sampling policy: of the reward (`reward.target`) and of DDPG (`ddpg.lr`).
"(ours)" marks defaults that the paper does not give.

This module works without the extra `rl` and without torch, so that help, completion and messages list the
settings.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, Literal, TypeVar

from pydantic import Field, ValidationError, field_validator
from pydantic.dataclasses import dataclass as config_dataclass

from graphfed.errors import InputError, did_you_mean, shown

T = TypeVar("T")

Part = Literal["val", "test"]
Clock = Literal["modelled", "wall"]
#: Episodes, as in the paper.
EPISODES = 300
#: The number of episodes whose mean return rates the actor after the last of them.
WINDOW = 10
#: The largest hidden width of an actor and a critic.
MAX_WIDTH = 2**16


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
class DDPGConfig:
    """The settings of DDPG (`ddpg.lr`)."""

    gamma: float = Field(
        default=0.99, ge=0, lt=1, description="discount of later rewards in a return, Eq. (10) (ours)"
    )
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
    buffer: int = Field(
        default=100_000,
        ge=1,
        description="size of the replay buffer in transitions, at least the rounds of an episode (ours)",
    )
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
        if not all(1 <= width <= MAX_WIDTH for width in widths_in(text)):
            raise ValueError(f"expected widths from 1 to {MAX_WIDTH}, with commas between")
        return str(text)


def widths_in(text: Any) -> list[int]:
    """Parse widths with commas between, as in ``512,256``.

    Raises:
        ValueError: The text is something else.
    """
    try:
        return [int(width) for width in str(text).split(",")]
    except ValueError:
        raise ValueError("expected whole numbers with commas between") from None


#: The settings by the prefix of their names.
CONFIGS: dict[str, type[RewardConfig] | type[DDPGConfig]] = {"reward": RewardConfig, "ddpg": DDPGConfig}


def learning_setting_names() -> list[str]:
    """Return every key of `--set` of `graphfed policy` that concerns learning, with its prefix."""
    return [f"{prefix}.{f.name}" for prefix, config in CONFIGS.items() for f in dataclasses.fields(config)]


def take_settings(settings: Mapping[str, object]) -> tuple[RewardConfig, DDPGConfig, dict[str, object]]:
    """Separate the settings of the reward and of DDPG from those of the method and the data.

    Raises:
        InputError: A name or a value of the reward or of DDPG cannot be used.
    """
    given: dict[str, dict[str, object]] = {prefix: {} for prefix in CONFIGS}
    rest, names = {}, learning_setting_names()
    for key, value in settings.items():
        prefix, _, name = str(key).partition(".")
        if prefix not in CONFIGS:
            rest[key] = value
        elif key not in names:
            raise InputError(f"there is no setting {shown(key)}; {did_you_mean(key, names)}")
        elif isinstance(value, bool):
            raise InputError(f"{key}={value} cannot be used: expected a number or a name, not a truth value")
        else:
            given[prefix][name] = value
    return _made("reward", RewardConfig, given), _made("ddpg", DDPGConfig, given), rest


def _made(prefix: str, config: Callable[..., T], given: Mapping[str, Mapping[str, object]]) -> T:
    from graphfed.runs.settings import explain_in, settings_in

    try:
        return config(**given[prefix])
    except ValidationError as error:
        complaint = error.errors(include_url=False)[0]
        raise InputError(f"{prefix}.{explain_in(complaint, settings_in(config), prefix)}") from None
