"""Load a run's model into a plain PyG network: model.safetensors holds arrays, and needs nothing of graphfed.

    graphfed run central --data digits --out runs/central
    python examples/load_in_pyg.py runs/central

Layout of a GCN: layers.0.weight [F, H], layers.0.bias [H], layers.1.weight [H, C], layers.1.bias [C]. PyG's
GCNConv keeps its weight transposed, and is otherwise the same network. With features=scaled, the default, the
network was trained on asinh((x - center) / scale) / asinh(1), with feature_scaling.center [F] and
feature_scaling.scale [F] of the same file.
"""

import sys
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch_geometric.nn import GCN


class ScaledGCN(torch.nn.Module):
    """PyG's own GCN on features that are scaled as in training."""

    def __init__(self, gcn: GCN, center: torch.Tensor, scale: torch.Tensor) -> None:
        super().__init__()
        self.gcn, self.center, self.scale = gcn, center, scale

    def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> torch.Tensor:
        scaled = torch.asinh((x - self.center) / self.scale) / torch.asinh(torch.ones(()))
        logits: torch.Tensor = self.gcn(scaled, edge_index)
        return logits


def load_gcn(folder: Path) -> torch.nn.Module:
    """Load the model of the run in `folder`."""
    weights = load_file(folder / "model.safetensors")
    scaling = [weights.pop(f"feature_scaling.{name}", None) for name in ("center", "scale", "as_dense")]
    layers = sum(name.endswith("weight") for name in weights)
    features, hidden = weights["layers.0.weight"].shape
    model = GCN(features, hidden, layers, weights[f"layers.{layers - 1}.weight"].shape[1])
    with torch.no_grad():
        for i, layer in enumerate(model.convs):
            layer.lin.weight.copy_(weights[f"layers.{i}.weight"].T)
            layer.bias.copy_(weights[f"layers.{i}.bias"])
    model.eval()
    return model if scaling[0] is None else ScaledGCN(model, scaling[0], scaling[1]).eval()


if __name__ == "__main__":
    print(load_gcn(Path(sys.argv[1])))
