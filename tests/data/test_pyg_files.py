"""Files of torch.save without a single PyG Data: what each is, and that the named conversion can be read."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch_geometric.data import Data, HeteroData, InMemoryDataset, TemporalData

from graphfed.data.user_files.graph_files import read_graph_file
from graphfed.errors import InputError


def make(n: int = 6) -> Data:
    return Data(x=torch.eye(n, 6), y=torch.arange(n) % 2, edge_index=torch.tensor([[0, 1, 2], [1, 2, 3]]))


class Twice(InMemoryDataset):
    """Two graphs in memory."""

    def __init__(self) -> None:
        super().__init__(None)
        self.data, self.slices = self.collate([make(), make(4)])


def hetero() -> HeteroData:
    data = HeteroData()
    for kind in ("account", "shop"):
        data[kind].x, data[kind].y = torch.eye(3), torch.tensor([0, 1, 0])
    data["account", "pays", "shop"].edge_index = torch.tensor([[0, 1], [1, 2]])
    return data


def homogeneous() -> Data:
    data = hetero().to_homogeneous()
    return Data(x=data.x, edge_index=data.edge_index, y=data.y)


def events() -> TemporalData:
    return TemporalData(
        src=torch.tensor([0]), dst=torch.tensor([1]), t=torch.tensor([0]), msg=torch.ones(1, 2)
    )


def dataset() -> tuple[Any, ...]:
    both = Twice()
    return both._data.to_dict(), both.slices, both._data.__class__


@pytest.mark.parametrize(
    ("content", "message", "converted"),
    [
        (hetero, r"has a HeteroData, .*convert it with data.to_homogeneous\(\)", homogeneous),
        (events, "has a TemporalData", None),
        (dataset, r"the content of a PyG dataset .*torch.save\(dataset\[0\], path\)", lambda: Twice()[0]),
        (
            lambda: (make(), {"x": torch.tensor([0, 6])}),
            r"the content of a PyG dataset .*torch.save\(dataset\[0\], path\)", make,
        ),
        (lambda: [make(), make(4)], r"a list of 2 graphs, .*torch.save\(graphs\[0\], path\)", make),
        (lambda: [1, 2], "a list of 2 objects, and a PyG Data is expected", make),
        (lambda: torch.eye(3), "a Tensor, and a PyG Data is expected", make),
        (
            lambda: {"lin.weight": torch.eye(2)},
            "a dictionary without 'edge_index' .it has 'lin.weight'.",
            lambda: {"x": torch.eye(3), "edge_index": torch.tensor([[0], [1]]), "y": torch.tensor([0, 1, 0])},
        ),
        (lambda: Data(x=np.eye(3)), "it has a numpy array, which torch.load would unpickle", make),
        (lambda: torch.nn.Linear(2, 2), "no PyG Data object of tensors only .*torch.nn.modules.linear", make),
    ],
)  # fmt: skip
def test_what_a_file_has_instead_is_said_with_a_conversion_that_works(
    tmp_path: Path, content: Any, message: str, converted: Any
) -> None:
    path = tmp_path / "g.pt"
    torch.save(content(), path)
    with pytest.raises(InputError, match=message):
        read_graph_file(path)
    if converted is not None:
        torch.save(converted(), path)
        assert read_graph_file(path).num_edges > 0


@pytest.mark.parametrize(
    ("key", "tensor"),
    [
        ("x", torch.sparse_coo_tensor(torch.zeros(2, 0), torch.zeros(0), (6, 10**13))),
        ("x", torch.sparse_coo_tensor(torch.zeros(2, 0), torch.zeros(0), (10**13, 6))),
        ("x", torch.zeros(1, 1).expand(10**11, 1)),
        ("edge_index", torch.zeros(1, 1, dtype=torch.int64).expand(2, 10**11)),
    ],
    ids=["columns", "rows", "repeated rows", "repeated edges"],
)
def test_a_small_file_cannot_state_a_large_tensor(tmp_path: Path, key: str, tensor: torch.Tensor) -> None:
    content = make()
    content[key] = tensor
    torch.save(content, tmp_path / "g.pt")
    with pytest.raises(InputError, match=rf"{key} has shape .*, and the file has only \d,\d+ bytes; save"):
        read_graph_file(tmp_path / "g.pt")


def test_an_ending_in_capitals_is_the_same_ending(tmp_path: Path) -> None:
    torch.save(make(), tmp_path / "G.PT")
    assert read_graph_file(tmp_path / "G.PT").num_nodes == 6


@pytest.mark.parametrize("kind", [torch.int64, torch.float64])
def test_large_features_keep_their_differences(kind: torch.dtype, tmp_path: Path) -> None:
    data = make()
    data.x = torch.stack([1_600_000_000 + torch.arange(6), torch.arange(6)], 1).to(kind)
    torch.save(data, tmp_path / "times.pt")
    assert read_graph_file(tmp_path / "times.pt").x.tolist() == data.x.tolist()
