"""Load a run's model into a plain PyG network: model.safetensors holds arrays, and needs nothing of graphfed.

    graphfed run central --data digits --out runs/mine
    python examples/load_in_pyg.py runs/mine

Layout of a GCN: layers.0.weight [F, H], layers.0.bias [H], layers.1.weight [H, C], layers.1.bias [C]. PyG's
GCNConv keeps its weight transposed, and is otherwise the same network.
"""

import sys
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch_geometric.nn import GCN


def load_gcn(folder: Path) -> GCN:
    """The model of the run in `folder`, as PyG's own class."""
    weights = load_file(folder / "model.safetensors")
    layers = sum(name.endswith("weight") for name in weights)
    features, hidden = weights["layers.0.weight"].shape
    model = GCN(features, hidden, layers, weights[f"layers.{layers - 1}.weight"].shape[1])
    with torch.no_grad():
        for i, layer in enumerate(model.convs):
            layer.lin.weight.copy_(weights[f"layers.{i}.weight"].T)
            layer.bias.copy_(weights[f"layers.{i}.bias"])
    return model.eval()


if __name__ == "__main__":
    print(load_gcn(Path(sys.argv[1])))
