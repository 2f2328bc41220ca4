"""Tables as other programs export them: dates, categories, gaps, unknown nodes, and each client's own habits.

The oracles are Python's datetime, scikit-learn on the pooled table, and the same data written cleanly.
"""

import datetime
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from graphfed.cli import main
from graphfed.data.graphs.graph import Graph
from graphfed.data.partitions.partition import partition
from graphfed.data.user_files.graph_description import describe
from graphfed.data.user_files.graph_files import load_description
from graphfed.errors import InputError

DAYS = [datetime.date(2019, 12, 30) + datetime.timedelta(days=3 * i) for i in range(12)]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("edges.csv").write_text("source,target\n" + "".join(f"{i},{(i + 1) % 12}\n" for i in range(12)))
    return tmp_path


def load(**more: Any) -> Graph:
    return load_description(describe({"nodes": "nodes.csv", "edges": "edges.csv", **more}, Path(), "it"))


def features(graph: Graph) -> np.ndarray:
    assert isinstance(graph.x, np.ndarray)
    return graph.x


# ---- dates -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "form",
    ["%Y-%m-%d", "%d/%m/%Y", "%m/%d/%Y", "%d.%m.%Y", "%Y%m%d", "%Y-%m-%d %H:%M", "%d.%m.%Y %H:%M:%S"],
)
def test_dates_in_every_usual_form_are_the_days_since_1970(form: str) -> None:
    Path("nodes.csv").write_text(
        "id,opened\n" + "".join(f"{i},{day.strftime(form)}\n" for i, day in enumerate(DAYS))
    )
    days = [(day - datetime.date(1970, 1, 1)).days for day in DAYS]
    assert features(load(dates="opened"))[:, 0].tolist() == days


def test_a_date_of_two_meanings_is_refused_and_the_key_decides() -> None:
    Path("nodes.csv").write_text("id,opened\n" + "".join(f"{i},0{1 + i % 9}/02/2024\n" for i in range(12)))
    with pytest.raises(InputError, match=r"line 2, column 'opened': '01/02/2024' is no date.*'date_format'"):
        load(dates="opened")
    by_day, by_month = (
        features(load(dates="opened", date_format=form))[:2, 0] for form in ("%d/%m/%Y", "%m/%d/%Y")
    )
    assert np.diff(by_day).tolist() == [1]
    assert np.diff(by_month).tolist() == [31]


def test_a_day_that_does_not_exist_is_refused_with_its_line() -> None:
    for written, form in (("2023-02-29", None), ("29/2/2023", "%d/%m/%Y")):
        Path("nodes.csv").write_text(f"id,opened\n0,{written}\n")
        Path("edges.csv").write_text("source,target\n")
        with pytest.raises(InputError, match=f"line 2, column 'opened': '{written}' is no date"):
            load(dates="opened", date_format=form)


# ---- all faults of a file ----------------------------------------------------------------------------------


def test_all_faults_of_a_file_are_in_one_message_whose_keys_make_the_file_readable(
    capsys: pytest.CaptureFixture[str],
) -> None:
    countries, lines = ["DE", "FR", "Österreich"], []
    for i, day in enumerate(DAYS):
        income = "" if i % 4 == 0 else i * 0.5
        lines.append(f"{i},{countries[i % 3]},{day:%d/%m/%Y},{income},{i}\n")
    Path("nodes.csv").write_text("id,Country,Opened on,income,age\n" + "".join(lines))
    Path("d.yaml").write_text("nodes: nodes.csv\nedges: edges.csv\n")
    assert main(["data", "inspect", "d.yaml"]) == 2
    message = capsys.readouterr().err
    assert message.count("\n") == 1
    assert (
        "nodes.csv: 3 columns have values that are no numbers: 'Country' (12 such values, line 2: 'DE')"
        in message
    )
    assert "'income' (3 empty)" in message
    keys = re.findall(r"'(\w+: [^']+)'", message.partition("add to the description")[2])
    assert keys == ["dates: [Opened on]", "categorical: [Country]", "missing: mean"]
    Path("d.yaml").write_text("\n".join(["nodes: nodes.csv", "edges: edges.csv", *keys]))
    assert main(["data", "inspect", "d.yaml"]) == 0


def test_a_single_faulty_column_is_refused_at_its_first_line_with_the_number_of_such_values() -> None:
    Path("nodes.csv").write_text("id,f\n" + "".join(f"{i},{'x' if i > 7 else i}\n" for i in range(12)))
    with pytest.raises(InputError, match=r"line 10, column 'f': 'x' is no number; .*\(4 such values\)"):
        load()


# ---- unknown nodes and clients' own habits -----------------------------------------------------------------


def test_edges_to_unknown_nodes_are_refused_or_dropped_and_counted() -> None:
    Path("nodes.csv").write_text("id,f\n" + "".join(f"{i},{i * i}\n" for i in range(10)))
    with pytest.raises(InputError, match=r"line 12, column 'source': '10' is no node.*\(2 such rows\)"):
        load()
    graph = load(unknown_nodes="drop")
    assert graph.num_edges == 9
    assert "3 rows of edges to an unknown node" in graph.dropped


def test_edges_to_unknown_nodes_add_nodes_with_the_means_and_without_a_label() -> None:
    Path("nodes.csv").write_text("id,label,f,c\n" + "".join(f"{i},a,{i * i},x\n" for i in range(10)))
    graph = load(unknown_nodes="add", missing="mean", categorical="c")
    assert graph.ids.to_pylist() == [str(i) for i in range(12)]
    assert graph.num_edges == 12
    assert graph.y.tolist() == [0] * 10 + [-1] * 2
    assert graph.feature_names == ("f", "c=x", "c missing")
    np.testing.assert_array_equal(features(graph)[9:], [[81, 1, 0], [np.nan, 0, 1], [np.nan, 0, 1]])
    assert "2 nodes were added that only edges name" in graph.remarks
    with pytest.raises(InputError, match=r"does not say what an empty cell of 'f' becomes"):
        load(unknown_nodes="add", categorical="c", missing="category")
    with pytest.raises(InputError, match=r"cannot be used with a column of clients"):
        load(unknown_nodes="add", missing="mean", client="c", label=None)


#: How each of three banks writes its files.
HABITS: dict[str, dict[str, Any]] = {
    "north": {},
    "south": {"separator": ";", "decimal": ",", "date_format": "%d/%m/%Y"},
    "east": {"separator": "\t", "encoding": "latin-1"},
}


def write_banks(habits: dict[str, dict[str, Any]]) -> None:
    """Write the nodes i of bank i % 3 and the edges of their sources, as the banks do."""
    for bank, (name, habit) in enumerate(habits.items()):
        separator, decimal = habit.get("separator", ","), habit.get("decimal", ".")
        form, encoding = habit.get("date_format", "%Y-%m-%d"), habit.get("encoding", "utf-8")
        rows = [["id", "città", "opened", "amount"]]
        rows += [
            [f"{i:03}", "Köln", f"{DAYS[i]:{form}}", f"{i * 0.25:.2f}".replace(".", decimal)]
            for i in range(bank, 12, 3)
        ]
        text = "".join(separator.join(row) + "\n" for row in rows)
        Path(f"{name}.csv").write_text(text, encoding=encoding)
        edges = [["source", "target"], *([f"{i:03}", f"{(i + 1) % 12:03}"] for i in range(bank, 12, 3))]
        Path(f"{name}_edges.csv").write_text("".join(separator.join(row) + "\n" for row in edges))


def load_banks(habits: dict[str, dict[str, Any]]) -> Graph:
    write_banks(habits)
    clients = {
        name: {"nodes": f"{name}.csv", "edges": f"{name}_edges.csv", **habit}
        for name, habit in habits.items()
    }
    described = describe(
        {"clients": clients, "features": ["opened", "amount"], "dates": "opened"}, Path.cwd(), "it"
    )
    again = describe(described.to_json(), Path("/nowhere"), "it")
    assert again == described
    return load_description(again)


def test_three_clients_with_three_habits_have_the_graph_of_clean_files() -> None:
    assert load_banks(HABITS).hash == load_banks({name: {} for name in HABITS}).hash


def test_an_edge_to_a_node_in_another_clients_file_is_a_cross_client_edge() -> None:
    graph = load_banks(HABITS)
    assert graph.num_edges == 12
    assert graph.client_names == ("east", "north", "south")
    parts = partition(graph, "column", None, 0)
    # Every edge joins two banks, and each of the two has it.
    assert len(parts.edge_client) == 0
    assert len(parts.cross_id) == 24


# ---- categories and gaps: equal to scikit-learn on the pooled table ----------------------------------------


RAW = (
    "id,label,Country,income,age\n"
    "0,a,DE,10.5,1\n1,b,FR,,2\n2,a,,3,\n3,b,DE,1e3,4\n4,a,PL,,5\n5,b,DE,-7,\n"
    "6,a,FR,0,7\n7,b,01,2.25,8\n8,a,1,,9\n9,b,,4,1\n10,a,DE,5,2\n11,b,FR,6,3\n"
)


def raw(**more: Any) -> Graph:
    Path("nodes.csv").write_text(RAW)
    return load(categorical="Country", **more)


def pooled() -> tuple[list[str], np.ndarray]:
    """The columns of the table as Python's float and str read them."""
    rows = [line.split(",") for line in RAW.splitlines()[1:]]
    return [row[2] for row in rows], np.array([[float(x or "nan") for x in row[3:]] for row in rows])


def test_categories_are_the_columns_of_scikit_learns_one_hot_encoder() -> None:
    preprocessing = pytest.importorskip("sklearn.preprocessing")
    countries, numbers = pooled()
    graph = raw(missing="mean")
    order = ("01", "1", "DE", "FR", "PL", "")
    assert graph.feature_names == (
        *(f"Country={name}" for name in order[:-1]),
        "Country missing",
        "income",
        "age",
    )
    encoder = preprocessing.OneHotEncoder(categories=[[*order]], sparse_output=False)
    expected = encoder.fit_transform(np.array(countries, dtype=object)[:, None])
    np.testing.assert_array_equal(features(graph)[:, :6], expected)
    np.testing.assert_array_equal(features(graph)[:, 6:], numbers.astype(np.float32))
    assert graph.filled == (6, 7)


def test_indicators_are_those_of_scikit_learns_simple_imputer() -> None:
    impute = pytest.importorskip("sklearn.impute")
    graph = raw(missing={"Country": "category", "income": "indicator", "age": "mean"})
    assert graph.feature_names[6:] == ("income", "income missing", "age")
    expected = impute.MissingIndicator().fit_transform(pooled()[1][:, :1])
    np.testing.assert_array_equal(features(graph)[:, 7], expected[:, 0])


@pytest.mark.parametrize(
    ("key", "message"),
    [
        (
            {"missing": {"income": "mean", "age": "mean"}},
            "column 'Country': the value is empty; fill it in, or write 'missing: category'",
        ),
        (
            {"missing": "category"},
            "'income' (3 empty), 'age' (2 empty); add to the description 'missing: mean'",
        ),
        ({"missing": {"Country": "mean"}}, "says mean for 'Country', a categorical feature; use category"),
        ({"missing": {"income": "category"}}, "says category for 'income', a feature of numbers; use mean"),
        ({"missing": {"incme": "mean"}}, "no column 'incme' (missing); did you mean 'income'"),
        ({"missing": "median"}, "missing"),
        ({"missing": "mean", "dates": "Country"}, "lists 'Country' under 'dates' and 'categorical'"),
        ({"missing": "mean", "dates": "label"}, "column 'label' (dates) of nodes.csv is no feature"),
    ],
)
def test_keys_that_do_not_fit_are_refused(key: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=re.escape(message)):
        raw(**key)


def test_a_column_of_too_many_categories_is_refused() -> None:
    Path("nodes.csv").write_text("id,name\n" + "".join(f"{i},n{i}\n" for i in range(1001)))
    with pytest.raises(InputError, match=r"'name' has 1,001 different values, and at most 1,000"):
        load(categorical="name")


def test_a_node_that_two_clients_add_is_a_node_of_each() -> None:
    write_banks({name: {} for name in HABITS})
    for bank, name in enumerate(HABITS):
        with Path(f"{name}_edges.csv").open("a") as file:
            file.write(f"X,00{bank}\n")
    clients = {name: {"nodes": f"{name}.csv", "edges": f"{name}_edges.csv"} for name in HABITS}
    content = {"clients": clients, "features": ["amount"], "missing": "mean", "unknown_nodes": "add"}
    graph = load_description(describe(content, Path(), "it"))
    names = graph.ids.to_pylist()
    assert [name for name in names if "X" in name] == ["X (north)", "X (south)", "X (east)"]
    assert graph.num_edges == 15
    assert graph.clients is not None
    owner = {name: graph.client_names[client] for name, client in zip(names, graph.clients, strict=True)}
    assert {owner[f"X ({name})"] for name in HABITS} == {*HABITS}
    assert all(owner[f"X ({name})"] == name for name in HABITS)
