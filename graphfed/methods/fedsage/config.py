"""The part of the settings of FedSage+ that is its own, in the settings of averaging methods."""

from typing import Annotated

from pydantic import Field

from graphfed.methods.settings import Unless, settings


@settings
class NeighGen:
    """The generator. Its encoder has the layers and widths of the network."""

    hidden_fraction: float = Field(
        default=0.5,
        gt=0,
        lt=1,
        description="fraction of every client's nodes that it hides from its generator, which learns to "
        "generate them",
    )
    generated: int = Field(
        default=5, ge=1, description="largest number of neighbours that are generated for a node"
    )
    generator_steps: int = Field(
        default=100, ge=1, description="steps of every client's generator on its own hidden nodes"
    )
    cross_steps: int = Field(
        default=20,
        ge=0,
        description="further steps, in which the other clients send gradients from their features; 0: before "
        "training nothing is sent",
    )
    cross_weight: Annotated[float, Unless("cross_steps", 0)] = Field(
        default=1.0,
        ge=0,
        allow_inf_nan=False,
        description="alpha: weight of the features of the other clients in the loss of a generator",
    )
    feature_weight: float = Field(
        default=1.0,
        gt=0,
        allow_inf_nan=False,
        description="lambda_f: weight of the generated features in the loss of a generator; that of the "
        "number of missing neighbours is 1",
    )
    generator_lr: float = Field(
        default=0.01, gt=0, allow_inf_nan=False, description="learning rate of the generators"
    )
