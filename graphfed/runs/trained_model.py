"""The trained network of a run as a PyTorch module, which takes features and edges as PyG's models do."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pydantic import ValidationError
from torch import Tensor, nn
from torch_geometric.utils import remove_self_loops, to_undirected

from graphfed.errors import InputError
from graphfed.federation.cohort import unit_rows
from graphfed.methods.base import Method, Task
from graphfed.methods.common.feature_scaling import Scaling, scale_rows, scaling_from
from graphfed.methods.common.local_training import batch_of_all, initial_weights
from graphfed.methods.parts import Network
from graphfed.methods.registry import get_method
from graphfed.methods.tasks import FORECASTING
from graphfed.nn.backbones import Weights
from graphfed.nn.batch import View
from graphfed.nn.layers import Dropout
from graphfed.plugins import check_plugins
from graphfed.runs.folder import read_json
from graphfed.runs.folder_schema import ModelManifest
from graphfed.runs.model_file import read_weights, shared_weights
from graphfed.runs.settings import explain


class GraphModel(nn.Module):
    """A trained graph network, with the scaling of the features that it was trained on.

    It prepares a graph as a run does: edges count in both directions, once, and without self loops. Its
    parameters have the names of the weights in model.safetensors. In training mode it applies the dropout of
    the run.
    """

    def __init__(
        self, network: Network, weights: Mapping[str, Tensor], features: str, scaling: Scaling | None
    ):
        super().__init__()
        self.network, self.features = network, features
        self.center: Tensor | None
        self.scale: Tensor | None
        self.register_buffer("center", None if scaling is None else scaling.center)
        self.register_buffer("scale", None if scaling is None else scaling.scale)
        layers: list[dict[str, Tensor]] = [{} for _ in range(network.layers)]
        for name, weight in weights.items():
            _, layer, key = name.split(".")
            layers[int(layer)][key] = nn.Parameter(weight)
        self.layers = nn.ModuleList(nn.ParameterDict(layer) for layer in layers)

    def forward(self, x: Tensor, edge_index: Tensor, edge_weight: Tensor | None = None) -> Tensor:
        """Compute the logits of every node.

        Args:
            x: [N, F], the features as they are in the data, before any scaling.
            edge_index: [2, E] int64, the nodes at the ends of every edge, in one direction or in both.
            edge_weight: [E], the weights of the edges; None: every edge has weight 1.

        Returns:
            Logits [N, C]; of a link prediction model embeddings [N, H], whose scalar products score pairs.
        """
        x, n = self._prepared(x), len(x)
        edge_index, edge_weight = remove_self_loops(edge_index, edge_weight)
        # An edge that is given several times has the mean of its weights, as in a run.
        edges, weight = to_undirected(edge_index, edge_weight, num_nodes=n, reduce="mean")
        degree = torch.bincount(edges[1], weight, minlength=n)
        row = torch.arange(n, device=x.device)
        view = View(
            x,
            row,
            torch.zeros_like(row),
            1,
            torch.full_like(row, -1),
            degree,
            (edges,),
            edge_weight=None if weight is None else (weight,),
        )
        batch = batch_of_all(view, self.network, per_client=False)
        rate = self.network.dropout if self.training else 0.0
        dropout = Dropout(rate, int(torch.randint(2**62, ()))) if rate else None
        weights: Weights = dict(self.named_parameters())
        return self.network.kernel.forward(weights, batch, dropout)

    def _prepared(self, x: Tensor) -> Tensor:
        """Return features [N, F] as the network was trained on them."""
        x = x if x.layout == torch.strided else x.to_dense()
        if self.center is not None and self.scale is not None:
            scaling = Scaling(self.center, self.scale, as_dense=True, linear=self.features == "robust")
            x = scale_rows(x, scaling, torch.zeros(len(x), dtype=torch.int64, device=x.device))
        x = x.to(next(self.parameters()).dtype)
        return unit_rows(x) if self.features == "unit" else x


def trained_model(method: Method, task: Task, config: Any, arrays: Mapping[str, np.ndarray]) -> GraphModel:
    """Build the module of a run from the arrays of its model.safetensors.

    Raises InputError if the method has no graph network that all clients share.
    """
    if task.name == FORECASTING:
        raise InputError(
            f"{method.name} forecasts readings and has no graph network with features and edges as input; "
            "use graphfed.predict for its forecasts"
        )
    if not (method.state.shared_model or method.pooled):
        has = "a model for every client" if method.personal else "a model that works in its protocol only"
        raise InputError(
            f"{method.name} has {has}, and no graph network that all clients share; use .predictions, or "
            "graphfed.predict, for what it predicts"
        )
    if not method.state.model:
        raise InputError(f"{method.name} has no network; use .predictions for what it predicts")
    network: Network = config.network
    if network.kernel.directed and (task.directed or task.edge_features):
        raise InputError(
            f"backbone={network.backbone} reads directions and attributes of edges, which the module does "
            "not take; use .predictions, or graphfed.predict for other data"
        )
    if task.filled:
        raise InputError(
            "the run filled gaps of features, which the module does not do; use .predictions, or "
            "graphfed.predict for other data"
        )
    template = initial_weights(task, network, 0, "cpu")
    scaling = scaling_from(arrays, "cpu")
    weights = shared_weights(template, arrays)
    return GraphModel(network, weights, config.inputs.features, scaling).eval()


def model_in(folder: Path) -> GraphModel:
    """Build the module of the run in a folder (see `trained_model`)."""
    manifest = read_json(folder / "manifest.json", ModelManifest)
    asked, data = manifest["config"], manifest["data"]
    check_plugins(asked.get("plugins", ()), folder)
    method = get_method(asked["method"])
    task = Task(
        data.get("features") or 0,
        data.get("classes") or 0,
        asked.get("task", method.tasks[0]),
        tuple(data.get("filled", ())),
        len(data.get("edge_features", ())),
        bool(data.get("directed")),
    )
    try:
        config = method.configure(asked["training"], {})
    except ValidationError as error:
        raise InputError(explain(error.errors(include_url=False)[0], method, task.name)) from None
    return trained_model(method, task, config, read_weights(folder))
