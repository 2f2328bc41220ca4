"""Files of other programs: what each is said to be, and that the named conversion gives a usable file."""

import pickle
import re
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pytest
import scipy.io
import scipy.sparse
import torch
import torch_geometric.io

from graphfed.data.graphs.graph import Graph
from graphfed.data.sensors.series import Sensors
from graphfed.data.user_files.other_formats import _FORMATS
from graphfed.errors import InputError
from graphfed.tasks.source import data_source, load_data

SENSORS = 6
NUMBERS = np.random.default_rng(0).uniform(40, 70, (300, SENSORS))
MATRIX = np.eye(SENSORS) + np.eye(SENSORS, k=1)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    rows = "".join(f"{i},{i + 1},{100.5 + i}\n" for i in range(SENSORS - 1))
    Path("distances.csv").write_text(f"from,to,distance\n{rows}")
    np.savez(
        "readings.npz", readings=NUMBERS, ids=np.arange(SENSORS), start="2024-01-31 08:00", step_minutes=5
    )
    return tmp_path


def refusal(data: str) -> str:
    with pytest.raises(InputError) as error:
        load_data(data_source(data).value)
    return str(error.value)


def convert(message: str, **values: Any) -> None:
    """Run the first call in a message that saves a file, with the values that it leaves to the user."""
    (call,) = re.findall(r"[a-z_.]+\.(?:save|savez|save_npz|write_graphml)\(.*\)", message)[:1]
    while True:
        try:
            code = compile(call, "fix", "eval")
            break
        except SyntaxError:  # the end of the sentence follows the call
            call = call[: call.rindex(")", 0, len(call) - 1) + 1]
    modules = {"numpy": np, "scipy": scipy, "networkx": nx, "torch": torch} | {
        "torch_geometric": torch_geometric
    }
    eval(code, modules | values)


def described(text: str) -> Sensors:
    Path("d.yaml").write_text(text)
    return load_data(data_source("d.yaml").value)


def test_a_pickled_adjacency_is_never_read_and_its_matrix_is_after_conversion() -> None:
    class Evil:
        def __reduce__(self) -> Any:
            return (Path.touch, (Path("ran"),))

    Path("adj_mx.pkl").write_bytes(pickle.dumps(Evil()))
    Path("p.yaml").write_text("readings: readings.npz\nadjacency: adj_mx.pkl\n")
    message = refusal("p.yaml")
    assert "has the ending of a pickle, which can run code and is never read; expected one of .csv" in message
    assert ".npz" in message
    assert not Path("ran").exists()
    convert(message, matrix=MATRIX)
    assert described("readings: readings.npz\nadjacency: adjacency.npz\n").adjacency.nnz == 2 * SENSORS - 1


def test_an_adjacency_in_matrix_market_form_is_converted() -> None:
    scipy.io.mmwrite("g.mtx", scipy.sparse.coo_matrix(MATRIX))
    Path("p.yaml").write_text("readings: readings.npz\nadjacency: g.mtx\n")
    convert(refusal("p.yaml"))
    assert described("readings: readings.npz\nadjacency: adjacency.npz\n").adjacency.nnz == 2 * SENSORS - 1


def test_an_array_without_names_is_converted_to_readings() -> None:
    np.save("vel.npy", NUMBERS)
    Path("p.yaml").write_text("readings: vel.npy\ndistances: distances.csv\n")
    message = refusal("p.yaml")
    assert "one array of numpy without names; expected one of .csv" in message
    assert all(ending in message for ending in (".h5", ".npz", ".parquet"))
    convert(message, numbers=np.load("vel.npy"), names=np.arange(SENSORS))
    sensors = described("readings: readings.npz\ndistances: distances.csv\n")
    assert np.array_equal(sensors.readings, NUMBERS.astype(np.float32))


def test_several_quantities_are_named_and_one_is_written() -> None:
    np.savez("PEMS04.npz", data=np.stack([NUMBERS, NUMBERS / 100, NUMBERS + 1], axis=2))
    Path("p.yaml").write_text("readings: PEMS04.npz\ndistances: distances.csv\n")
    message = refusal("p.yaml")
    assert f"has no array 'readings' (array 'data' has 3 quantities of {SENSORS} sensors)" in message
    convert(message, names=np.arange(SENSORS))
    sensors = described("readings: readings.npz\ndistances: distances.csv\n")
    assert np.array_equal(sensors.readings, NUMBERS.astype(np.float32))
    np.savez("other.npz", speeds=NUMBERS)
    Path("p.yaml").write_text("readings: other.npz\ndistances: distances.csv\n")
    convert(refusal("p.yaml"), names=np.arange(SENSORS))
    assert described("readings: readings.npz\ndistances: distances.csv\n").num_steps == 300


def test_ids_of_arrays_have_the_texts_that_tables_have() -> None:
    ids = [f"{i}.0 " for i in range(SENSORS)]
    np.savez("readings.npz", readings=NUMBERS, ids=ids, start="2024-01-31 08:00", step_minutes=5)
    assert described("readings: readings.npz\ndistances: distances.csv\n").ids == tuple("012345")


@pytest.mark.parametrize("name", ["readings.h5", "readings.npz"])
def test_readings_in_place_of_a_description_name_the_key(name: str) -> None:
    Path(name).touch()
    assert "name it as 'readings:' in a YAML file, next to 'distances:' or 'adjacency:'" in refusal(name)


@pytest.mark.parametrize("ending", ["gexf", "gml"])
def test_a_graph_of_networkx_in_another_form_is_converted(ending: str) -> None:
    network = nx.karate_club_graph()
    for v in network:
        network.nodes[v].clear()
        network.nodes[v]["degree"] = float(network.degree[v])
    getattr(nx, f"write_{ending}")(network, f"k.{ending}")
    convert(refusal(f"k.{ending}"))
    converted = nx.read_graphml("graph.graphml")
    for v in converted:  # as the message says: GEXF and GML have the nodes' names as labels
        converted.nodes[v]["label"] = str(int(v) % 2)
    nx.write_graphml(converted, "graph.graphml")
    graph = data_source("graph.graphml").value
    assert isinstance(graph, Graph)
    assert (graph.num_nodes, graph.num_edges, graph.num_classes) == (34, 78, 2)


def test_the_npz_form_of_amazon_and_coauthor_is_converted() -> None:
    adjacency, features = scipy.sparse.csr_matrix(MATRIX), scipy.sparse.csr_matrix(np.eye(SENSORS))
    arrays = {
        f"{name}_{part}": getattr(matrix, part)
        for name, matrix in (("adj", adjacency), ("attr", features))
        for part in ("data", "indices", "indptr", "shape")
    }
    np.savez("amazon_photo.npz", labels=np.arange(SENSORS) % 2, **arrays)
    convert(refusal("amazon_photo.npz"))
    graph = data_source("graph.pt").value
    assert isinstance(graph, Graph)
    assert (graph.num_nodes, graph.num_edges, graph.num_classes) == (SENSORS, SENSORS - 1, 2)


@pytest.mark.parametrize("ending", [".docx", *sorted(_FORMATS)])
def test_a_file_of_every_known_ending_is_refused_with_its_kind(ending: str) -> None:
    Path(f"x{ending}").touch()
    message, (kind, _) = refusal(f"x{ending}"), _FORMATS.get(ending, ("no file that is known here", {}))
    assert f"has the ending of {kind}; expected one of .yaml, .yml, .pt, .graphml; " in message
    assert "{" not in message
