"""Reading of GraphML files with networkx, after what networkx does not read has been added or refused.

networkx does not apply default values to nodes and edges, and silently leaves out all graphs after the first,
the graphs inside nodes, and nodes that are declared twice. Ports are left out here, too, and named.
"""

import io
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn
from xml.etree.ElementTree import Element, ParseError, SubElement, TreeBuilder, XMLParser, parse, tostring

from graphfed.data.messages import brief
from graphfed.errors import InputError, shown
from graphfed.files import read_start

if TYPE_CHECKING:
    import networkx as nx


class _Builder(TreeBuilder):
    """Builds the tree of a file, unless the file has a document type definition.

    Such a definition defines entities, which can expand a small file to gigabytes.
    """

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path

    def doctype(self, *_: str | None) -> NoReturn:
        raise InputError(f"{self._path} has a document type definition, which is not read; remove it")


def read_graphml(path: Path) -> "tuple[nx.Graph, tuple[str, ...]]":
    """Read a GraphML file of one graph, and describe what was not read.

    Every node and edge without a value of a key has the key's default.
    """
    import networkx as nx

    read_start(path, 1)
    try:
        root = parse(path, XMLParser(target=_Builder(path))).getroot()
        assert root is not None
        ports = _prepare(root, path)
        return nx.read_graphml(io.BytesIO(tostring(root))), ports
    except InputError:
        raise
    except ParseError as error:
        raise InputError(f"{path} is no GraphML file ({brief(error)}); write it again") from None
    except Exception as error:  # networkx raises several kinds of errors
        raise InputError(f"{path} cannot be read as GraphML ({brief(error)}); correct it") from None


def _prepare(root: Element, path: Path) -> tuple[str, ...]:
    """Add default values in place and remove ports; refuse what networkx would leave out."""
    graphs = root.findall("{*}graph")
    if root.tag.rpartition("}")[2] != "graphml" or len(graphs) != 1:
        raise InputError(
            f"{path} has {len(graphs)} graphs, and GraphML of one graph is expected; write one file per graph"
        )
    (graph,) = graphs
    nodes, edges = graph.findall(".//{*}node"), graph.findall(".//{*}edge")
    _refuse_unread(graph, nodes, edges, path)
    for key in root.findall("{*}key"):
        if key.get("yfiles.type") is None:  # the name and the type of a key are optional in GraphML
            # networkx refuses a key without them.
            key.set("attr.name", key.get("attr.name", key.get("id", "")))
            key.set("attr.type", key.get("attr.type", "string"))
        for default in key.findall("{*}default"):
            for elements, name in ((nodes, "node"), (edges, "edge")):
                if key.get("for", "all") in (name, "all"):
                    _set_default(elements, key, default)
            key.remove(default)  # networkx would convert it once more, and fails if it is empty
    # If only some edges have a direction, all are read as directed. Training uses both directions anyway.
    directions = {edge.attrib.pop("directed", None) for edge in edges} - {None}
    if "true" in directions:
        graph.set("edgedefault", "directed")
    ports = 0
    for element in (*nodes, *edges):
        for port in element.findall("{*}port"):
            element.remove(port)
            ports += 1
    return (f"{ports:,} port{'' if ports == 1 else 's'}",) if ports else ()


def _refuse_unread(graph: Element, nodes: list[Element], edges: list[Element], path: Path) -> None:
    if graph.find(".//{*}hyperedge") is not None:
        raise InputError(
            f"{path} has hyperedges, and an edge of graphfed joins two nodes; replace each by edges, such as "
            "one between each two of its nodes"
        )
    known: set[str | None] = set()
    for node in nodes:
        name = node.get("id")
        # yEd writes a group of nodes as a graph in a node, which networkx does read.
        if node.find("{*}graph") is not None and node.get("yfiles.foldertype") != "group":
            raise InputError(
                f"{path}: node {shown(name)} contains a graph, and nested graphs are not read; write all "
                "nodes and edges into one graph"
            )
        if name in known:
            raise InputError(
                f"{path} has two nodes with the id {shown(name)}; give every node an id of its own"
            )
        known.add(name)
    for edge in edges:
        ends = edge.get("source"), edge.get("target")
        for end in ends:
            if end not in known:
                raise InputError(
                    f"{path}: the edge from {shown(ends[0])} to {shown(ends[1])} names {shown(end)}, which "
                    "is no node; add the node, or drop the edge"
                )


def _set_default(elements: list[Element], key: Element, default: Element) -> None:
    """Add the default of a key to the elements that have no value of it."""
    for element in elements:
        if all(data.get("key") != key.get("id") for data in element.findall("{*}data")):
            data = SubElement(element, default.tag[: -len("default")] + "data", {"key": key.get("id", "")})
            data.text = default.text
