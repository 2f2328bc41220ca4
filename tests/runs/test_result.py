"""A result in Python: its model, history, predictions and pictures, from memory and from a folder."""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch_geometric.data import Data

import graphfed
from graphfed.errors import InputError
from graphfed.files import read_tensors, write_json
from graphfed.runs.reopen import read_manifest
from graphfed.runs.result import Result

SETTINGS: dict[str, Any] = {"rounds": 3, "partition": "random", "split": "random:0.5,0.25,0.25"}


def small(n: int = 90) -> Data:
    """Edges in one direction, one of them twice and one a loop: a run makes them undirected and single."""
    draws = torch.Generator().manual_seed(0)
    x, y = 1000 + 5 * torch.rand(n, 5, generator=draws), torch.arange(n) % 3
    x[torch.arange(n), y] += 3
    edges = torch.randint(0, n, (2, 2 * n), generator=draws)
    edges = torch.cat([edges, edges[:, :1], torch.tensor([[4], [4]])], 1)
    return Data(x=x, y=y, edge_index=edges)


def computed(result: Result, data: Data) -> np.ndarray:
    """The probabilities that the model computes [N, C]."""
    logits = result.model(data.x, data.edge_index, data.edge_weight)
    out: np.ndarray = logits.softmax(1).detach().numpy()
    return out


def predicted(result: Result) -> np.ndarray:
    """The probabilities of the run's own predictions [N, C]."""
    table = result.predictions.sort_by("node")
    columns = [name for name in table.column_names if name.startswith("probability_")]
    return np.stack([table[name].to_numpy() for name in columns], 1)


@pytest.mark.parametrize(
    "asked",
    [
        {"backbone": "gcn"}, {"backbone": "gat", "heads": 2}, {"backbone": "sage"}, {"backbone": "maxpool"},
        {"features": "raw"}, {"features": "unit"}, {"method": "own_features"},
    ],
    ids=str,
)  # fmt: skip
def test_the_model_on_the_data_of_a_central_run_gives_the_run_s_own_predictions(
    asked: dict[str, Any], tmp_path: Path
) -> None:
    data = small()
    result = graphfed.run(**{"method": "central", "data": data, "out": tmp_path / "run", **SETTINGS, **asked})
    np.testing.assert_allclose(computed(result, data), predicted(result), atol=1e-6)


def test_the_model_uses_the_weights_of_edges_as_the_run_does() -> None:
    data = small()
    # The two copies of an edge have different weights.
    data.edge_weight = 0.5 + torch.rand(data.num_edges, generator=torch.Generator().manual_seed(1))
    result = graphfed.run("central", data=data, out=False, **SETTINGS)
    np.testing.assert_allclose(computed(result, data), predicted(result), atol=1e-6)
    data.edge_weight = None
    assert np.abs(computed(result, data) - predicted(result)).max() > 1e-3


def test_a_run_without_a_folder_has_what_its_files_would_have(tmp_path: Path) -> None:
    data = small()
    kept, written = (
        graphfed.run("fedavg", data=data, clients=3, out=out, **SETTINGS) for out in (False, tmp_path / "run")
    )
    read = Result.read(tmp_path / "run")
    for result in (written, read):
        assert result.predictions.equals(kept.predictions)
        assert [(line["round"], line["val"]) for line in result.history] == [
            (line["round"], line["val"]) for line in kept.history
        ]
        np.testing.assert_array_equal(computed(result, data), computed(kept, data))
    names = {*read_tensors(tmp_path / "run" / "model.safetensors")[0]}
    assert {*dict(kept.model.named_parameters())} == {name for name in names if name.startswith("layers.")}


def test_the_model_s_scores_on_the_whole_graph_are_those_of_the_shared_model() -> None:
    data = small()
    result = graphfed.run("fedgcn", data=data, clients=3, out=False, **SETTINGS)
    test = result.predictions.sort_by("node")["split"].to_numpy() == "test"
    right = computed(result, data).argmax(1) == data.y.numpy()
    assert right[test].mean() == pytest.approx(result.details["test_pooled"]["accuracy"])


def test_the_model_can_be_trained_further_with_the_run_s_dropout() -> None:
    data = small()
    model = graphfed.run("central", data=data, out=False, dropout=0.5, **SETTINGS).model
    assert not model.training
    assert torch.equal(model(data.x, data.edge_index), model(data.x, data.edge_index))
    model.train()
    one, other = (model(data.x, data.edge_index) for _ in range(2))
    assert not torch.equal(one, other)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    losses = []
    for _ in range(30):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model.eval()(data.x, data.edge_index), data.y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.9 * losses[0]


@pytest.mark.parametrize(
    ("asked", "reason"),
    [
        ({"method": "isolated"}, "isolated has a model for every client"),
        ({"method": "prediction_release", "partition": "ego", "clients": None}, "in its protocol only"),
        (
            {"method": "last_value", "data": "roads", "clients": None, "split": "default", "partition": None},
            "forecasts readings",
        ),
    ],
)
def test_a_method_without_one_shared_graph_network_says_why_it_has_no_model(
    asked: dict[str, Any], reason: str
) -> None:
    method = asked.pop("method")
    data = small()
    # `prediction_release` takes features between 0 and 1.
    data.x = (data.x - data.x.min()) / (data.x.max() - data.x.min())
    result = graphfed.run(
        method, **{"data": data, "clients": 3, "out": False, **SETTINGS, "rounds": 1, **asked}
    )
    with pytest.raises(InputError, match=reason):
        _ = result.model


def test_a_result_that_is_only_json_says_that_it_has_no_files(finished: Result) -> None:
    bare = Result.model_validate(finished.to_json())
    with pytest.raises(InputError, match="neither a folder nor"):
        _ = bare.history


def test_a_tampered_manifest_gives_one_line_and_no_model(finished: Result, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    graphfed.run("fedavg", clients=2, rounds=1, out=folder)
    result = Result.read(folder)
    manifest = read_manifest(folder)
    manifest["config"]["training"]["hidden"] = 7
    write_json(folder / "manifest.json", manifest)
    with pytest.raises(InputError, match=r"model\.safetensors has layers\.0"):
        _ = result.model
    manifest["config"]["training"]["hidden"] = "many"
    write_json(folder / "manifest.json", manifest)
    with pytest.raises(InputError, match="hidden='many'"):
        _ = result.model


def test_a_result_is_shown_in_at_most_eight_lines_and_escapes_names(finished: Result) -> None:
    odd = finished.model_copy(update={"dataset": "<b>x</b>\n\x1b[2J"})
    for result in (finished, odd):
        lines = repr(result).splitlines()
        assert len(lines) <= 8
        assert str(result) == repr(result)
        assert "\x1b" not in repr(result)
        assert f"accuracy {result.test['accuracy']:.4g}" in repr(result)
    assert "<b>" not in odd._repr_html_()
    assert "&lt;b&gt;x" in odd._repr_html_()


def test_a_plot_has_the_history_s_values_and_an_unknown_metric_is_named(finished: Result) -> None:
    (axes,) = finished.plot("loss").axes
    drawn = axes.lines[0].get_xydata()
    assert np.asarray(drawn).tolist() == [[line["round"], line["val"]["loss"]] for line in finished.history]
    with pytest.raises(InputError, match="'los'; did you mean 'loss'"):
        finished.plot("los")


def test_without_pandas_a_frame_is_refused_with_the_line_to_type(
    finished: Result, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(InputError, match="pip install pandas"):
        finished.to_frame()


def test_a_frame_has_a_row_for_every_evaluated_round(finished: Result) -> None:
    pytest.importorskip("pandas")
    frame = finished.to_frame()
    assert frame["round"].tolist() == [1, 2, 3]
    assert frame["val_accuracy"].tolist() == [line["val"]["accuracy"] for line in finished.history]
