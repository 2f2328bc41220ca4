"""What files of other programs are, and how to convert them. No such file is opened.

A file is recognised by its ending. The conversions are lines of Python, and tests run them.
"""

from collections.abc import Sequence
from pathlib import Path

from graphfed.data.messages import brief
from graphfed.errors import InputError

#: How to save the content of a file for each use, where the ending has no conversion of its own.
_SAVE = {
    "readings": "save its numbers, [times, sensors], with numpy.savez('readings.npz', readings=numbers, "
    "ids=names, start='2024-01-31 08:00', step_minutes=5)",
    "adjacency": "save its matrix with numpy.savez('adjacency.npz', matrix)",
    "table": "save its columns with pandas, as in frame.to_parquet('table.parquet')",
    "graph": "save the graph as a PyG Data with torch.save(data, 'graph.pt'), as a networkx graph with "
    "networkx.write_graphml(graph, 'graph.graphml'), or as a table of nodes and one of edges",
}
_NETWORKX = (
    "convert it with networkx.write_graphml(networkx.{read}({path!r}), 'graph.graphml'); the node attribute "
    "'label' must then be the class, and all others numbers"
)
_MATRIX_MARKET = "convert it with scipy.sparse.save_npz('adjacency.npz', scipy.io.mmread({path!r}).tocsr())"
_IN_YAML = (
    "name it as 'readings:' in a YAML file, next to 'distances:' or 'adjacency:', and give the YAML file"
)
#: What a file is, by its ending, and its conversion for some uses.
_FORMATS: dict[str, tuple[str, dict[str, str]]] = {
    **dict.fromkeys(
        (".pkl", ".pickle", ".p", ".gpickle"), ("a pickle, which can run code and is never read", {})
    ),
    ".npy": ("one array of numpy without names", {}),
    ".npz": (
        "an archive of numpy arrays",
        {
            "graph": f"if it has readings of sensors, {_IN_YAML}; if it has a graph in the form adj_data, "
            "attr_data, convert it with torch.save(torch_geometric.io.read_npz({path!r}), 'graph.pt')"
        },
    ),
    **dict.fromkeys(
        (".h5", ".hdf5", ".hdf"), ("an HDF5 file", {"graph": f"for readings of sensors, {_IN_YAML}"})
    ),
    ".mtx": (
        "a Matrix Market file",
        {"adjacency": _MATRIX_MARKET},
    ),
    ".mat": (
        "a MATLAB file",
        {key: f"read it with scipy.io.loadmat({{path!r}}), and {how}" for key, how in _SAVE.items()},
    ),
    ".gexf": ("a graph in GEXF", {"graph": _NETWORKX.replace("{read}", "read_gexf")}),
    ".gml": ("a graph in GML", {"graph": _NETWORKX.replace("{read}", "read_gml")}),
    ".net": ("a graph in Pajek's form", {"graph": _NETWORKX.replace("{read}", "read_pajek")}),
    **dict.fromkeys(
        (".xlsx", ".xls", ".ods"), ("a spreadsheet", {"table": "save the sheet as CSV in UTF-8"})
    ),
    **dict.fromkeys((".json", ".jsonl"), ("a JSON file", {})),
    **dict.fromkeys((".feather", ".arrow"), ("a file of Arrow", {})),
    **dict.fromkeys(
        (".zip", ".tar", ".gz", ".tgz", ".bz2", ".xz", ".7z", ".rar"),
        ("a packed file", dict.fromkeys(_SAVE, "unpack it, and name the file in it")),
    ),
    **dict.fromkeys((".pth", ".bin", ".dgl"), ("a file of torch or DGL", {})),
}


def require_ending(path: Path, accepted: Sequence[str], use: str) -> None:
    """Check that a file has one of the `accepted` endings (in lower case).

    The message for a known ending says what the file is, and how to convert it for its `use`: "readings",
    "adjacency", "table" or "graph".
    """
    if path.name.lower().endswith(tuple(accepted)):
        return
    kind, conversions = _FORMATS.get(path.suffix.lower(), ("no file that is known here", {}))
    how = conversions.get(use, _SAVE[use]).replace("{path!r}", repr(str(path)))
    raise InputError(
        f"{brief(str(path))} has the ending of {kind}; expected one of {', '.join(accepted)}; {how}"
    )
