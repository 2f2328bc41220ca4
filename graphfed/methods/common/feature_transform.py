"""What set-up does to the features of every client: fill their gaps, then bring them to one scale.

A run saves what the clients share of it with the model, so that it can be done again to other data.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from graphfed.federation import Federation, Located
from graphfed.federation.cohort import Cohort
from graphfed.federation.series import SensorData, TaskData
from graphfed.methods.base import Method, Task
from graphfed.methods.common import feature_gaps, feature_quantiles, feature_scaling
from graphfed.methods.settings import value
from graphfed.nn.backbones import BACKBONES


@dataclass(frozen=True)
class Transform:
    """What all clients share.

    Attributes:
        means: [1, D], the means that fill the gaps of the features `Task.filled`; None without gaps, or if
            every client has its own.
        scaling: None if features are not scaled, or if every client has its own scaling.
    """

    means: Tensor | None = None
    scaling: feature_scaling.Scaling | None = None


UNCHANGED = Transform()


@dataclass(frozen=True)
class Agreed:
    """The parts of a `Transform` at the clients."""

    means: Located | None
    scaling: Located | None

    @property
    def here(self) -> Transform:
        """What the clients of this process share."""
        return Transform(
            *(None if of is None else next(iter(of.parts), None) for of in (self.means, self.scaling))
        )


def transform_features(
    fed: Federation, data: TaskData, method: Method, config: object, task: Task
) -> tuple[TaskData, Agreed]:
    data, means = feature_gaps.fill_features(fed, data, method, config, task)
    data, scaling = scale_features(fed, data, method, config, task)
    return data, Agreed(means, scaling)


def scale_features(
    fed: Federation, data: TaskData, method: Method, config: object, task: Task
) -> tuple[TaskData, Located | None]:
    """Scale the features of every client as the setting `features` says; `SensorData` has no features.

    The second result is the `Scaling` at the clients; None if features are not scaled or every client has a
    scaling of its own.
    """
    how = value(config, "features")
    if isinstance(data, SensorData) or how not in ("scaled", "robust"):
        return data, None
    backbone = value(config, "backbone")
    reads_edges = task.edge_features > 0 and backbone in BACKBONES and BACKBONES[backbone].directed
    # Where nothing may be sent, clients cannot agree.
    if method.pooled or (method.personal and not method.sends.messages):
        scaled, alone = fed.clients.run(scale_alone, data, how, reads_edges, outputs=2)
        return scaled, alone if method.pooled else None
    agree = feature_scaling.agree_on_scales if how == "scaled" else feature_quantiles.agree_on_quantiles
    with fed.phase("setup", round_number=0):
        scaling = agree(fed, data, config, task.num_features)
        if reads_edges:
            rows, names = fed.clients.run(feature_scaling.edges_as_rows, data), feature_scaling.OF_EDGES
            of_edges = feature_scaling.agree_on_scales(fed, rows, config, task.edge_features, names)
            scaling = fed.clients.run(feature_scaling.with_edges, scaling, of_edges)
    return fed.clients.run(feature_scaling.apply_scaling, data, scaling), scaling


def scale_alone(cohort: Cohort, how: str, with_edges: bool) -> tuple[Cohort, feature_scaling.Scaling]:
    """Scale every client's features, and attributes of edges if asked, by its own data; nothing is sent."""
    own = feature_scaling.own_scaling if how == "scaled" else feature_quantiles.own_scaling
    scaling = own(cohort)
    if with_edges:
        rows = feature_scaling.edges_as_rows(cohort)
        scaling = feature_scaling.with_edges(scaling, feature_scaling.own_scaling(rows))
    return feature_scaling.apply_scaling(cohort, scaling), scaling


def apply_transform(cohort: Cohort, transform: Transform, config: object) -> Cohort:
    """Do to other data what was done to that of the run."""
    if transform.means is not None and cohort.filled:
        cohort = feature_gaps.fill_gaps(cohort, transform.means, config)
    return cohort if transform.scaling is None else feature_scaling.apply_scaling(cohort, transform.scaling)


def to_message(transform: Transform) -> dict[str, Any]:
    scaling = transform.scaling
    return {
        "means": transform.means,
        "scaling": None if scaling is None else feature_scaling.to_message(scaling),
    }


def from_message(message: Mapping[str, Any]) -> Transform:
    scaling = message["scaling"]
    return Transform(message["means"], None if scaling is None else feature_scaling.from_message(scaling))


def to_arrays(transform: Transform) -> dict[str, np.ndarray]:
    """Return the arrays of a model's file."""
    means = {} if transform.means is None else feature_gaps.to_arrays(transform.means)
    return means | ({} if transform.scaling is None else feature_scaling.to_arrays(transform.scaling))


def transform_from(arrays: Mapping[str, Any], device: torch.device | str) -> Transform:
    """Read the transform from the arrays of a model's file."""
    return Transform(feature_gaps.means_from(arrays, device), feature_scaling.scaling_from(arrays, device))


MESSAGES = {**feature_gaps.MESSAGES, **feature_scaling.MESSAGES, **feature_quantiles.MESSAGES}
