"""The settings of prediction_release."""

from typing import Self

from pydantic import Field, model_validator

from graphfed.errors import InputError
from graphfed.methods.common.released import NoiseSeed
from graphfed.methods.parts import Inputs, Loss, Network, Protocols, Run, Selection, Steps, Sums, Training
from graphfed.methods.settings import settings


@settings
class Release:
    """The release of predicted classes, and what is made of it."""

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


@settings
class PredictionReleaseConfig:
    """The settings of prediction_release."""

    run: Run = Run()
    training: Training = Training()
    network: Network = Network()
    inputs: Inputs = Inputs()
    selection: Selection = Selection()
    loss: Loss = Loss()
    steps: Steps = Steps()
    sums: Sums = Sums()
    protocols: Protocols = Protocols()
    noise: NoiseSeed = NoiseSeed()
    release: Release = Release()

    @property
    def round_of_release(self) -> int:
        """The round in which classes are released.

        Training ends after `patience` evaluations without improvement. The first evaluation is always an
        improvement, so the round `patience * eval_every` is reached whatever the evaluations give.
        """
        if self.release.release_round is not None:
            return self.release.release_round
        half, patience = (self.run.rounds + 1) // 2, self.training.patience
        return half if patience is None else min(half, patience * self.training.eval_every)

    @model_validator(mode="after")
    def _released_in_a_round(self) -> Self:
        number, rounds = self.release.release_round, self.run.rounds
        if number is not None and number > rounds:
            raise InputError(
                f"release_round={number} cannot be used with rounds={rounds}: expected at most {rounds}, "
                "because nothing is released after the last round; set more rounds, or leave release_round "
                "out"
            )
        return self
