"""The settings of prediction_release."""

from typing import Self

from pydantic import Field, model_validator
from pydantic.dataclasses import dataclass

from graphfed.errors import InputError
from graphfed.methods import config as groups
from graphfed.methods.common.released import NoiseSettings


@dataclass(frozen=True, config={"extra": "forbid"})
class PredictionReleaseConfig(
    NoiseSettings,
    groups.AggregationSettings,
    groups.ProtocolSettings,
    groups.ClassWeightSettings,
    groups.GraphSettings,
    groups.TrainingSettings,
    groups.CommonSettings,
):
    """The settings of prediction_release."""

    epsilon: float = Field(
        default=2.0, gt=0, allow_inf_nan=False, description="privacy budget of a node's released class"
    )
    release_round: int | None = Field(
        default=None,
        ge=1,
        description="round in which classes are released, once; none: half of the rounds, or before if "
        "training may end sooner, so that the round is reached in any case",
    )
    smoothing: float = Field(
        default=3.0,
        gt=0,
        allow_inf_nan=False,
        description="weight of the distribution of all neighbours' classes in the estimate for the "
        "neighbours of one class, as a number of neighbours",
    )

    @property
    def architecture(self) -> str:
        """Name of the network."""
        return "mlp"

    @property
    def round_of_release(self) -> int:
        """The round in which classes are released.

        Training ends after `patience` evaluations without improvement. The first evaluation is always an
        improvement, so the round `patience * eval_every` is reached whatever the evaluations give.
        """
        if self.release_round is not None:
            return self.release_round
        half = (self.rounds + 1) // 2
        return half if self.patience is None else min(half, self.patience * self.eval_every)

    @model_validator(mode="after")
    def _released_in_a_round(self) -> Self:
        if self.release_round is not None and self.release_round > self.rounds:
            raise InputError(
                f"release_round={self.release_round} cannot be used with rounds={self.rounds}: expected at "
                f"most {self.rounds}, because nothing is released after the last round; set more rounds, or "
                "leave release_round out"
            )
        return self
