"""Whatever is wrong with a user's files: exit code 2, one line that names the file and the row, nothing
written."""

import gzip
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from graphfed.cli import main

NODES = ["id,client,age,label,split", "a,x,1,yes,train", "b,y,2,no,val", "c,x,3,yes,test", "d,y,4,no,train"]
EDGES = ["source,target", "a,b", "b,c", "c,d"]
YAML = "nodes: nodes.csv\nedges: edges.csv\n"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A whole data set, to be broken in one place."""
    monkeypatch.chdir(tmp_path)
    good()
    return tmp_path


def good() -> None:
    Path("nodes.csv").write_text("\n".join(NODES) + "\n")
    Path("edges.csv").write_text("\n".join(EDGES) + "\n")
    Path("d.yaml").write_text(YAML)


def line(name: str, number: int, text: str) -> Callable[[], None]:
    """Line `number` (from 1) of a table becomes `text`."""

    def change() -> None:
        lines = Path(name).read_text().splitlines()
        lines[number - 1 : number] = [text]
        Path(name).write_text("\n".join(lines) + "\n")

    return change


def content(name: str, data: bytes | str) -> Callable[[], None]:
    return lambda: Path(name).write_bytes(data.encode() if isinstance(data, str) else data) and None


def yaml(text: str) -> Callable[[], None]:
    return content("d.yaml", text)


def parquet(table: dict[str, Any], cut: int | None = None) -> Callable[[], None]:
    def change() -> None:
        pq.write_table(pa.table(table), "nodes.parquet")
        raw = Path("nodes.parquet").read_bytes()
        Path("nodes.parquet").write_bytes(raw[:cut])
        Path("d.yaml").write_text("nodes: nodes.parquet\nedges: edges.csv\n")

    return change


COLUMNS: dict[str, Any] = {
    "id": ["a", "b", "c", "d"],
    "age": [1.0, 2.0, 3.0, 4.0],
    "label": ["y", "n", "y", "n"],
}

#: What is done to the good files, and what the message must say beside its file.
CASES: dict[str, tuple[Callable[[], Any], str]] = {
    # ends of edges
    "an edge from nowhere": (line("edges.csv", 3, "zz,c"), "edges.csv, line 3, column 'source': 'zz' is no node"),
    "an edge to nowhere": (line("edges.csv", 4, "c,A"), "edges.csv, line 4, column 'target': 'A' is no node"),
    "an edge without an end": (line("edges.csv", 2, "a,"), "edges.csv, line 2, column 'target': '' is no node"),
    "an id with leading zeros": (line("edges.csv", 2, "a,0b"), "edges.csv, line 2"),
    "an edge of three ends": (line("edges.csv", 2, "a,b,c"), "edges.csv, line 2: 3 values, and"),
    "an edge of one end": (line("edges.csv", 3, "b"), "edges.csv, line 3: 1 values, and"),
    "edges with no column source": (line("edges.csv", 1, "from,target"), "edges.csv has no column 'source'"),
    "no file of edges": (lambda: Path("edges.csv").unlink(), "edges.csv cannot be read"),
    "an empty file of edges": (content("edges.csv", ""), "edges.csv is empty"),
    "a folder instead of edges": (
        lambda: (Path("edges.csv").unlink(), Path("edges.csv").mkdir()), "edges.csv is a folder"),
    # weights of edges
    "a negative weight": (
        content("edges.csv", "source,target,weight\na,b,1\nb,c,-2\n"), "edges.csv, line 3, column 'weight': -2.0 is no weight"),
    "a weight of zero": (
        content("edges.csv", "source,target,weight\na,b,0\nb,c,2\n"), "edges.csv, line 2, column 'weight': 0.0 is no weight"),
    "a weight that is not a number": (
        content("edges.csv", "source,target,weight\na,b,nan\n"), "edges.csv, line 2, column 'weight': 'nan' means a missing value"),
    "a weight of text": (
        content("edges.csv", "source,target,weight\na,b,much\n"), "edges.csv, line 2, column 'weight': 'much' is no number"),
    "an empty weight": (
        content("edges.csv", "source,target,weight\na,b,1\nb,c,\n"), "edges.csv, line 3, column 'weight': the value is empty"),
    "weights that add up beyond float32": (
        content("edges.csv", "source,target,weight\na,b,3e38\nb,a,3e38\n"), "between nodes 0 and 1 has weight inf"),
    "a column of weights that is not there": (
        yaml(YAML + "weight: amount\n"), "edges.csv has no column 'amount' (weight)"),
    "an unknown rule for repeated edges": (yaml(YAML + "repeated: add\n"), "repeated is 'add'"),
    "no column for the ids": (yaml(YAML + "id:\n"), "d.yaml: id must be text"),
    # ids
    "an id twice": (line("nodes.csv", 5, "a,y,4,no,train"), "nodes.csv, line 5, column 'id': the id 'a' is also in line 2"),
    "an empty id": (line("nodes.csv", 3, ",y,2,no,val"), "nodes.csv, line 3, column 'id': the value is empty"),
    "an id of blanks": (line("nodes.csv", 3, "  ,y,2,no,val"), "nodes.csv, line 3, column 'id'"),
    # features
    "a feature that is not a number": (line("nodes.csv", 3, "b,y,NaN,no,val"), "nodes.csv, line 3, column 'age'"),
    "an infinite feature": (line("nodes.csv", 4, "c,x,inf,yes,test"), "nodes.csv, line 4, column 'age': 'inf' is no finite"),
    "a feature beyond float32": (line("nodes.csv", 4, "c,x,1e39,yes,test"), "nodes.csv, line 4, column 'age': '1e39'"),
    "an empty feature": (line("nodes.csv", 5, "d,y,,no,train"), "nodes.csv, line 5, column 'age': the value is empty"),
    "a feature of text": (line("nodes.csv", 5, "d,y,old,no,train"), "nodes.csv, line 5, column 'age': 'old' is no number"),
    "a comma of two meanings": (
        line("nodes.csv", 5, 'd,y,"4,500",no,train'), "nodes.csv, line 5, column 'age': '4,500' is no number; write 'decimal:"),
    "a number with a unit": (line("nodes.csv", 2, "a,x,1 kg,yes,train"), "nodes.csv, line 2, column 'age': '1 kg'"),
    "no column for features": (
        content("nodes.csv", "id,label\na,x\nb,y\nc,x\nd,y\n"), "nodes.csv has no column for features"),
    "a feature that is not there": (yaml(YAML + "features: [agee]\n"), "no column 'agee' (features); did you mean 'age'?"),
    "a pattern without a match": (yaml(YAML + "features: ['f_*']\n"), "no column 'f_*'"),
    "a feature that is the label": (yaml(YAML + "features: [label]\n"), "'label' of nodes.csv cannot be a feature"),
    "features that are no list": (yaml(YAML + "features: 3\n"), "features must be a list"),
    # labels, splits, clients
    "as many labels as nodes": (
        lambda: (content("nodes.csv", "id,age,label\n" + "".join(f"{i},1,{i}\n" for i in range(1200)))(),
                 content("edges.csv", "source,target\n0,1\n")()),
        "1200 different labels of 1200 nodes are too many for classes"),
    "labels that are measurements": (
        lambda: (content("nodes.csv", "id,age,label\n" + "".join(f"{i},1,{i // 2 + 0.5}\n" for i in range(49)))(),
                 content("edges.csv", "source,target\n0,1\n")()),
        "25 different labels of 49 nodes are too many for classes"),
    "a label that is no class": (
        yaml(YAML + "classes: ['no', maybe]\n"),
        "nodes.csv, line 2, column 'label': 'yes' is none of the classes; correct it, add it to 'classes' ('no', 'maybe')"),
    "classes that are no list": (yaml(YAML + "classes: legit\n"), "d.yaml: classes must be a list of labels, as in [legit, fraud] (found 'legit')"),
    "no class in the list": (yaml(YAML + "classes: []\n"), "d.yaml: classes must be a list of labels, as in [legit, fraud] (found none in it)"),
    "a class that YAML takes for no text": (yaml(YAML + "classes: [yes, no]\n"), "d.yaml: the class True is no text; put it in quotes"),
    "a class without a name": (yaml(YAML + "classes: ['yes', ' ']\n"), "d.yaml: the class ' ' is no text"),
    "a class that is a list": (yaml(YAML + "classes: [[a], b]\n"), "d.yaml: the class list is no text"),
    "a class twice": (yaml(YAML + "classes: ['yes', 'no', 'yes ']\n"), "d.yaml: 'classes' names 'yes' twice"),
    "no labels at all": (content("nodes.csv", "id,age\na,1\nb,2\nc,3\nd,4\n"), "'nodes' has no labels, and node classification needs them"),
    "a part that is unknown": (line("nodes.csv", 4, "c,x,3,yes,tset"), "nodes.csv, line 4, column 'split': 'tset' is no part"),
    "nothing to train on": (
        content("nodes.csv", "\n".join(NODES).replace("train", "")), "split 'own' of 'nodes' has no train node"),
    "nothing to select on": (
        content("nodes.csv", "\n".join(NODES).replace("val", "")), "split 'own' of 'nodes' has no val node"),
    "a node to train on without a label": (
        line("nodes.csv", 2, "a,x,1,,train"), "node 'a' of 'nodes' is in split 'own' and has no label"),
    "an empty client": (line("nodes.csv", 3, "b,,2,no,val"), "nodes.csv, line 3, column 'client': the value is empty"),
    "clients of edges without clients": (
        lambda: (content("nodes.csv", "id,age,label\na,1,x\nb,2,y\n")(), content("edges.csv", "source,target,s\na,b,x\n")(),
                 yaml(YAML + "source_client: s\ntarget_client: s\n")()), "and no column of clients of nodes.csv"),
    "the client of only one endpoint": (
        lambda: (line("edges.csv", 1, "source,s")(), yaml(YAML + "target: s\nsource_client: s\n")()), "only one endpoint of the edges"),
    # the table itself
    "a row too long": (line("nodes.csv", 4, "c,x,3,yes,test,6"), "nodes.csv, line 4: 6 values, and"),
    "a row too short": (line("nodes.csv", 4, "c,x,3"), "nodes.csv, line 4: 3 values, and"),
    "an empty file of nodes": (content("nodes.csv", ""), "nodes.csv is empty"),
    "a first line with a very long name": (
        content("nodes.csv", "id," + "x" * 140_000 + "\na,1\n"), "nodes.csv, line 1: a value has more than 131,072 characters"),
    "a file of blank lines": (content("nodes.csv", "\n\n\n"), "nodes.csv is empty"),
    "a header alone": (content("nodes.csv", NODES[0] + "\n"), "nodes.csv has no row"),
    "a column twice": (line("nodes.csv", 1, "id,age,age,label,split"), "nodes.csv has two columns called 'age'"),
    "a column without a name": (line("nodes.csv", 1, "id,client,,label,split"), "nodes.csv: column 3 has no name"),
    "no column id": (line("nodes.csv", 1, "name,client,age,label,split"), "nodes.csv has no column 'id'"),
    "half of a character in UTF-16": (
        content("nodes.csv", "\n".join(NODES).encode("utf-16")[:-1]), "nodes.csv is not utf-16"),
    "Latin-1": (
        content("nodes.csv", "\n".join(NODES).replace("c,x", "c,ø").encode("latin-1")),
        "nodes.csv, line 4: byte 3 is not UTF-8 (0xf8)"),
    "a header in Latin-1": (content("nodes.csv", "id,ålder\n".encode("latin-1")), "nodes.csv, line 1: byte 4"),
    "zero bytes": (content("nodes.csv", b"\0\0\0\0\0\0"), "nodes.csv is no text"),
    "a picture": (content("nodes.csv", bytes(range(256)) * 9), "nodes.csv"),
    "a gzip that is none": (
        lambda: (content("n.csv.gz", "id,age\n")(), yaml("nodes: n.csv.gz\nedges: edges.csv\n")()), "n.csv.gz cannot be read"),
    "a gzip that is cut short": (
        lambda: (content("n.csv.gz", gzip.compress(os.urandom(10_000))[:-5000])(), yaml("nodes: n.csv.gz\nedges: edges.csv\n")()),
        "n.csv.gz"),
    "another kind of file": (
        lambda: (content("n.xlsx", "x")(), yaml("nodes: n.xlsx\nedges: edges.csv\n")()), "n.xlsx has the ending of a spreadsheet; expected one of .csv"),
    # Parquet
    "Parquet that is none": (
        lambda: (content("n.parquet", "PAR1")(), yaml("nodes: n.parquet\nedges: edges.csv\n")()), "n.parquet is damaged"),
    "Parquet that is cut short": (parquet(COLUMNS, cut=-60), "nodes.parquet is damaged"),
    "a null in Parquet": (parquet({**COLUMNS, "age": [1.0, None, 2.0, 3.0]}), "nodes.parquet, row 2, column 'age': the value is empty"),
    "NaN in Parquet": (parquet({**COLUMNS, "age": [1.0, 2.0, np.nan, 3.0]}), "nodes.parquet, row 3, column 'age'"),
    "lists in Parquet": (parquet({**COLUMNS, "age": [[1], [2], [3], [4]]}), "nodes.parquet, column 'age' has type list"),
    "text in Parquet": (parquet({**COLUMNS, "age": ["1", "2", "x", "4"]}), "nodes.parquet, row 3, column 'age': 'x' is no number"),
    "an id twice in Parquet": (parquet({**COLUMNS, "id": ["a", "b", "b", "d"]}), "nodes.parquet, row 3, column 'id': the id 'b' is also in row 2"),
    "ids that are lists": (parquet({**COLUMNS, "id": [[1], [2], [3], [4]]}), "nodes.parquet, column 'id'"),
    # the description
    "an unknown key": (yaml(YAML + "lable: x\n"), "d.yaml has an unknown key 'lable'; did you mean 'label'?"),
    "no nodes": (yaml("edges: edges.csv\n"), "d.yaml has no 'nodes'"),
    "a list": (yaml("- nodes.csv\n"), "d.yaml must be a mapping"),
    "an empty description": (yaml(""), "d.yaml must be a mapping"),
    "not YAML": (yaml("nodes: [\n"), "d.yaml is not YAML"),
    "a tag": (yaml("nodes: !!python/object/apply:os.system ['true']\n"), "d.yaml, line 1: tags"),
    "an alias": (yaml("nodes: &a nodes.csv\nedges: *a\n"), "d.yaml, line 1: anchors"),
    "a key twice": (yaml(YAML + "nodes: x.csv\n"), "d.yaml, line 3: 'nodes' is given twice"),
    "a column that is a list": (yaml(YAML + "id: [a]\n"), "d.yaml: id must be text"),
    "a name that YAML takes for no text": (yaml(YAML + "name: yes\n"), "d.yaml: name must be text (found True); put it in quotes"),
    "features without one": (yaml(YAML + "features: []\n"), "d.yaml: features must be a list of column names, as in [age, balance] (found none in it)"),
    "a misspelt column": (yaml(YAML + "label: lable\n"), "no column 'lable' (label); did you mean 'label'?"),
}  # fmt: skip

RUN = ["run", "fedavg", "--rounds", "1", "--no-progress", "--no-report"]


def refused(arguments: list[str], capsys: pytest.CaptureFixture[str], values: str) -> None:
    before = {path: path.stat().st_mtime_ns for path in Path().rglob("*")}
    capsys.readouterr()
    assert main([*RUN, *arguments]) == 2
    out, error = capsys.readouterr()
    assert out == ""
    assert error.startswith("error: ")
    assert error.count("\n") == 1
    assert "Traceback" not in error
    assert values in error
    assert {path: path.stat().st_mtime_ns for path in Path().rglob("*")} == before


def test_the_good_files_are_good() -> None:
    assert main([*RUN, "--data", "d.yaml"]) == 0


@pytest.mark.parametrize("case", CASES)
def test_broken_files_are_refused_in_one_line_and_nothing_is_written(
    case: str, capsys: pytest.CaptureFixture[str]
) -> None:
    change, described = CASES[case]
    change()
    refused(["--data", "d.yaml"], capsys, described)


# ---- several clients' files ----------------------------------------------------------------------------------

CUSTOMERS = {
    "north": ["id,age,balance,label,split", "a,1,5,yes,train", "b,2,6,no,val", "c,3,7,yes,test"],
    "south": ["id,age,balance,label,split", "c,3,7,yes,test", "d,4,8,no,train", "b,2,6,,"],
}
TRANSFERS = {"north": ["source,target", "a,b", "b,c"], "south": ["source,target", "c,d", "b,c"]}
TWO = (
    "clients:\n  north: {nodes: north/customers.csv, edges: north/transfers.csv}\n"
    "  south: {nodes: south/customers.csv, edges: south/transfers.csv}\n"
)


def good_clients() -> None:
    for name, customers in CUSTOMERS.items():
        Path(name).mkdir()
        Path(name, "customers.csv").write_text("\n".join(customers) + "\n")
        Path(name, "transfers.csv").write_text("\n".join(TRANSFERS[name]) + "\n")
    Path("d.yaml").write_text(TWO)


def weights(north: str, south: str) -> Callable[[], None]:
    def change() -> None:
        for name, rows in (("north", north), ("south", south)):
            Path(name, "transfers.csv").write_text(f"source,target,weight\n{rows}")

    return change


def renamed(name: str, column: str) -> Callable[[], None]:
    """A column of customers is called something else at one client."""
    return line(f"{name}/customers.csv", 1, CUSTOMERS[name][0].replace(column, f"{column}_"))


#: What is done to the good files of two clients, and what the message must say: client, file, place and value.
SITE_CASES: dict[str, tuple[Callable[[], Any], str]] = {
    # what two clients say of one node or edge
    "a client with features of another width": (
        content("south/customers.csv", "id,age,label,split\nc,3,yes,test\nd,4,no,train\n"),
        "client 'south': south/customers.csv has other features than north/customers.csv of client 'north': it does not have 'balance'; give"),
    "a feature more": (
        content("south/customers.csv", "id,age,balance,limit,label,split\nc,3,7,0,yes,test\n"),
        "of client 'north': it also has 'limit'; give all clients' files the same columns"),
    "a feature of another name": (renamed("south", "age"), "it does not have 'age' and also has 'age_'"),
    "a named feature that a client lacks": (
        lambda: (renamed("south", "age")(), yaml(TWO + "features: [age]\n")()),
        "client 'south': the data's description d.yaml: south/customers.csv has no column 'age' (features); did you mean 'age_'?"),
    "two features of one node": (
        line("south/customers.csv", 2, "c,3,7.5,yes,test"),
        "client 'south': south/customers.csv, line 2, column 'balance': this feature of node 'c' is 7.5 here and 7.0 at client 'north' (north/customers.csv, line 4); give a node"),
    "two labels of one node": (
        line("south/customers.csv", 4, "b,2,6,yes,"),
        "client 'south': south/customers.csv, line 4, column 'label': the label of node 'b' is 'yes' here and 'no' at client 'north' (north/customers.csv, line 3); correct one"),
    "two parts of one node": (
        line("south/customers.csv", 4, "b,2,6,,test"),
        "client 'south': south/customers.csv, line 4, column 'split': the part of the split of node 'b' is 'test' here and 'val' at client 'north' (north/customers.csv, line 3)"),
    "two weights of one edge": (
        weights("a,b,1\nb,c,2\n", "c,d,4\nc,b,1\nb,c,2\n"),
        "client 'south': south/transfers.csv, line 3, column 'weight': the edge between 'b' and 'c' has weight 3.0 here and 2.0 at client 'north' (north/transfers.csv, line 3); give it one weight"),
    # one client's files
    "an empty client": (
        content("south/customers.csv", CUSTOMERS["south"][0] + "\n"),
        "client 'south': south/customers.csv has no row; add one row for each node, or remove the client"),
    "an edge to another client's node": (
        line("south/transfers.csv", 2, "c,a"),
        "client 'south': south/transfers.csv, line 2, column 'target': 'a' is no node of south/customers.csv; add the node, or drop the edge"),
    "an id twice at one client": (
        line("south/customers.csv", 3, "c,3,7,yes,test"), "client 'south': south/customers.csv, line 3, column 'id': the id 'c' is also in line 2"),
    "a bad number at one client": (
        line("south/customers.csv", 3, "d,old,8,no,train"), "client 'south': south/customers.csv, line 3, column 'age': 'old' is no number"),
    "a part that one client calls otherwise": (
        line("south/customers.csv", 3, "d,4,8,no,training"), "client 'south': south/customers.csv, line 3, column 'split': 'training' is no part"),
    "a client without its file": (
        lambda: Path("south/transfers.csv").unlink(), "client 'south': south/transfers.csv cannot be read"),
    "a client without labels": (
        lambda: (renamed("south", "label")(), yaml(TWO + "features: [age]\n")()),
        "client 'south': south/customers.csv has no column 'label' (label), and north/customers.csv of client 'north' has one; add the column"),
    "a client with weights": (
        content("south/transfers.csv", "source,target,weight\nc,d,2\n"),
        "client 'north': north/transfers.csv has no column 'weight' (weight), and south/transfers.csv of client 'south' has one"),
    "a client without ids": (renamed("south", "id"), "client 'south': south/customers.csv has no column 'id'"),
    # the description
    "clients and nodes": (yaml(TWO + "nodes: nodes.csv\n"), "d.yaml has both 'clients' and 'nodes'"),
    "clients and edges": (yaml(TWO + "edges: edges.csv\n"), "d.yaml has both 'clients' and 'edges'"),
    "clients and a column of clients": (yaml(TWO + "client: bank\n"), "d.yaml has both 'clients' and 'client'"),
    "clients and the clients of ends": (yaml(TWO + "source_client: s\n"), "d.yaml has both 'clients' and 'source_client'"),
    "clients and the clients of other ends": (yaml(TWO + "target_client: s\n"), "d.yaml has both 'clients' and 'target_client'"),
    "one client": (yaml("\n".join(TWO.splitlines()[:2])), "d.yaml: 'clients' names 1 client, and at least two are needed"),
    "no client": (yaml("clients: {}\n"), "d.yaml: 'clients' names 0 clients"),
    "clients that are a list": (yaml("clients: [north, south]\n"), "d.yaml: clients must map each client's name to its files"),
    "clients that are empty": (yaml("clients:\n"), "d.yaml: clients must map each client's name to its files"),
    "a client that is text": (yaml(TWO + "  west: west.csv\n"), "d.yaml, client 'west' must name its files"),
    "an unknown key of a client": (
        yaml(TWO + "  west: {nods: west.csv, edges: e.csv}\n"), "d.yaml, client 'west' has an unknown key 'nods'; did you mean 'nodes'?"),
    "a key of a client that is common": (
        yaml(TWO + "  west: {nodes: w.csv, edges: e.csv, label: fraud}\n"), "d.yaml, client 'west' has an unknown key 'label'"),
    "a client without edges": (yaml(TWO + "  west: {nodes: north/customers.csv}\n"), "d.yaml, client 'west' has no 'edges'; add it (The client's file of edges.)"),
    "a client whose file is a list": (yaml(TWO + "  west: {nodes: [a], edges: e.csv}\n"), "d.yaml, client 'west': nodes must be text"),
    "a client twice": (yaml(TWO + TWO.splitlines()[1] + "\n"), "d.yaml, line 4: 'north' is given twice"),
    "a client whose name is no text": (yaml(TWO.replace("north:", "yes:")), "d.yaml: the client True has no name that is text; put it in quotes"),
    "a client without a name": (yaml(TWO.replace("  north:", "  '':")), "d.yaml: the client '' has no name"),
    "clients misspelt": (yaml(TWO.replace("clients:", "client_s:")), "d.yaml has an unknown key 'client_s'; did you mean 'clients'?"),
}  # fmt: skip


def test_the_good_files_of_two_clients_are_good() -> None:
    good_clients()
    assert main([*RUN, "--data", "d.yaml"]) == 0
    weights("a,b,1\nb,c,3\n", "c,d,4\nc,b,1\nb,c,2\n")()
    assert main([*RUN, "--data", "d.yaml", "--out", "weighted"]) == 0


@pytest.mark.parametrize("case", SITE_CASES)
def test_broken_files_of_clients_are_refused_in_one_line_and_nothing_is_written(
    case: str, capsys: pytest.CaptureFixture[str]
) -> None:
    good_clients()
    change, described = SITE_CASES[case]
    change()
    refused(["--data", "d.yaml"], capsys, described)


def test_a_method_that_cannot_share_nodes_names_one_that_is_shared(
    capsys: pytest.CaptureFixture[str],
) -> None:
    good_clients()
    described = (
        "fedgcn needs every node at exactly one client, but partition 'column' has node 'b' at 2 clients"
    )
    before = sorted(Path().rglob("*"))
    assert main(["run", "fedgcn", "--data", "d.yaml"]) == 2
    assert described in capsys.readouterr().err
    assert sorted(Path().rglob("*")) == before
    refused(["--data", "d.yaml", "--clients", "3"], capsys, "has 2 clients for 'customers', not 3")


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("g.graphml", "<graphml>", "g.graphml is no GraphML"),
        ("g.graphml", "", "g.graphml is no GraphML"),
        ("g.graphml", '<!DOCTYPE x [<!ENTITY a "aaaa">]><graphml/>', "document type definition"),
        ("g.graphml", f"<!--{' ' * 70_000}--><!DOCTYPE x><graphml/>", "document type definition"),
        ("g.graphml", '<!DOCTYPE x [<!ENTITY a "aaaa">]><graphml/>'.encode("utf-16"), "document type definition"),
        ("g.graphml", "<graphml><graph edgedefault='undirected'><node id='a'/></graph></graphml>", "has no labels"),
        ("g.pt", "not a file of torch", "g.pt was refused, because it is no PyG Data"),
        ("g.pt", "", "g.pt was refused, because it is no PyG Data"),
        ("nodes.csv", None, "is one table, and a graph needs two"),
        ("missing.yaml", None, "missing.yaml cannot be read"),
        ("missing.graphml", None, "missing.graphml cannot be read"),
        ("missing.pt", None, "missing.pt cannot be read"),
        ("coar", None, "did you mean 'cora'?"),
        ("graph.xlsx", None, "is neither a file that can be read"),
    ],
)  # fmt: skip
def test_a_whole_graph_that_cannot_be_read_is_refused(
    name: str, text: str | bytes | None, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    if text is not None:
        content(name, text)()
    refused(["--data", name], capsys, message)


def test_a_pickle_in_a_file_of_torch_is_refused_and_does_not_run(capsys: pytest.CaptureFixture[str]) -> None:
    class Evil:
        def __reduce__(self) -> Any:
            return (Path.touch, (Path("ran").absolute(),))

    torch.save(Evil(), "g.pt")
    refused(["--data", "g.pt"], capsys, "g.pt was refused, because it is no PyG Data")
    Path("g.pt").write_bytes(pickle.dumps(Evil()))
    refused(["--data", "g.pt"], capsys, "g.pt was refused, because it is no PyG Data")
    assert not Path("ran").exists()


def npz(cut: int | None) -> None:
    """A public set's file, cut short."""
    arrays = {"edges": np.array([[0, 1], [1, 2]]), "labels": np.array([0, 1, 1])}
    arrays |= {"feat_indptr": np.arange(4), "feat_indices": np.arange(3)}
    Path("sets/dblp").mkdir(parents=True)
    np.savez(Path("sets/dblp/dblp.npz"), **arrays, num_features=3)
    whole = Path("sets/dblp/dblp.npz").read_bytes()
    Path("sets/dblp/dblp.npz").write_bytes(whole[:cut])


@pytest.mark.parametrize("cut", [0, 10, 300, -40, -1])
def test_a_public_set_that_is_cut_short_is_refused(cut: int, capsys: pytest.CaptureFixture[str]) -> None:
    npz(cut)
    refused(["--data", "dblp", "--data-dir", "sets"], capsys, "dblp.npz")


@pytest.mark.parametrize(
    ("data_dir", "message"),
    [
        ("missing", "the data folder missing does not exist"),
        ("nodes.csv", "nodes.csv"),
        ("empty", "dblp.npz"),
    ],
)
def test_a_data_folder_that_is_none_is_refused(
    data_dir: str, message: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GRAPHFED_DATA", raising=False)
    Path("empty").mkdir()
    refused(["--data", "dblp", "--data-dir", data_dir], capsys, message)


@pytest.mark.parametrize("file", ["model.safetensors", "manifest.json", "result.json"])
@pytest.mark.parametrize("left", [0, 0.5, 0.98])
@pytest.mark.sampled(2)
def test_a_run_whose_files_are_cut_short_predicts_nothing(
    file: str, left: float, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*RUN, "--data", "d.yaml", "--out", "run"]) == 0
    path = Path("run") / file
    whole = path.read_bytes()
    path.write_bytes(whole[: int(left * len(whole))])
    capsys.readouterr()
    command = ["audit", "run"] if file == "result.json" else ["predict", "run", "--out", "p.csv"]
    assert main(command) == 2
    out, error = capsys.readouterr()
    assert out == ""
    assert error.count("\n") == 1
    assert str(path) in error
    assert not Path("p.csv").exists()
    assert not Path("run/audit.json").exists()


def test_weights_are_refused_where_the_method_has_no_use_for_them(capsys: pytest.CaptureFixture[str]) -> None:
    Path("edges.csv").write_text("source,target,weight\na,b,1.5\nb,c,2\n")
    described = "backbone 'gat' cannot use edge weights, and 'nodes' has edge weights; choose gcn or sage"
    refused(["--data", "d.yaml", "--set", "backbone=gat"], capsys, described)


def test_clients_that_the_data_has_not_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    refused(["--data", "d.yaml", "--clients", "3"], capsys, "has 2 clients for 'nodes', not 3")
    refused(
        ["--partition", "column"], capsys, "partition 'column' needs data that states the client of each node"
    )


def test_what_looks_odd_and_is_not_wrong_is_read() -> None:
    """A byte-order mark, blank lines, CRLF, a client with one node, isolated nodes, no edges, a label only
    some have."""
    text = "\ufeff" + "\r\n\r\n".join([*NODES, "e,alone,5,,", "f,x,6,no,none"]) + "\r\n"
    Path("nodes.csv").write_bytes(text.encode())
    assert main([*RUN, "--data", "d.yaml"]) == 0
    Path("edges.csv").write_text("source,target\n")
    assert main([*RUN, "--data", "d.yaml", "--out", "none"]) == 0


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read anything")
def test_a_file_that_may_not_be_read_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    Path("nodes.csv").chmod(0)
    refused(["--data", "d.yaml"], capsys, "nodes.csv cannot be read: Permission denied")


@settings(max_examples=60)
@given(data=st.data())
def test_a_generated_table_with_one_bad_cell_is_refused_naming_its_line(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Any size, any place: the line of the bad cell and its column are in the message."""
    rows = data.draw(st.integers(2, 30))
    features = data.draw(st.integers(1, 4))
    bad_row = data.draw(st.integers(0, rows - 1))
    bad_column = data.draw(st.integers(0, features - 1))
    bad = data.draw(
        st.sampled_from(["", "nan", "-inf", "x", "1,234", "1e400", "--1", "0x1", "½", "None", "true"])
    )
    folder = tmp_path_factory.mktemp("table")
    lines = ["id," + ",".join(f"f{j}" for j in range(features)) + ",label"]
    for i in range(rows):
        cells = [f'"{bad}"' if (i, j) == (bad_row, bad_column) else str(i * j) for j in range(features)]
        lines.append(f"v{i},{','.join(cells)},{i % 2}")
    (folder / "nodes.csv").write_text("\n".join(lines))
    (folder / "edges.csv").write_text("source,target\nv0,v1\n")
    (folder / "d.yaml").write_text(YAML)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        described: list[str] = []
        patch.setattr("graphfed.cli.commands.say", described.append)
        assert main([*RUN, "--data", "d.yaml"]) == 2
    (message,) = described
    assert f"nodes.csv, line {bad_row + 2}, column 'f{bad_column}': " in message
    assert sorted(path.name for path in folder.iterdir()) == ["d.yaml", "edges.csv", "nodes.csv"]


def test_the_line_of_a_ragged_row_is_the_one_an_editor_shows(capsys: pytest.CaptureFixture[str]) -> None:
    Path("edges.csv").write_text("\n\nsource,target\n\na,b\n\n\nb,c,d\n")
    refused(["--data", "d.yaml"], capsys, "edges.csv, line 8: 3 values")
    Path("edges.csv").write_text("\n\nsource,target\n\na,b\n\n\nb,q\n")
    refused(["--data", "d.yaml"], capsys, "edges.csv, line 8, column 'target'")
