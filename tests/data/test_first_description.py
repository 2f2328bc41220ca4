"""The description that graphfed writes of tables is accepted, and says what the tables were made of."""

from collections.abc import Callable
from pathlib import Path

import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from graphfed.cli import main
from graphfed.data.graphs.graph import Graph
from graphfed.data.user_files.first_description import first_description
from graphfed.data.user_files.graph_description import Description, describe_file
from graphfed.data.user_files.graph_files import load_description

N = 30


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(
    head: str = "key,amount,is_fraud",
    row: Callable[[int], str] = lambda i: f"{i * 0.5},{i % 2}",
    edges_head: str = "payer,payee",
    path: str = "{}.csv",
    encoding: str = "utf-8",
) -> list[Path]:
    """A table of N nodes, a ring of edges, and their paths."""
    nodes, edges = Path(path.format("nodes")), Path(path.format("edges"))
    nodes.parent.mkdir(exist_ok=True)
    lines = [head] * bool(head) + [f"n{i},{row(i)}" for i in range(N)]
    nodes.write_text("\n".join(lines) + "\n", encoding=encoding)
    lines = [edges_head] * bool(edges_head) + [f"n{i},n{(i + 1) % N}" for i in range(N)]
    edges.write_text("\n".join(lines) + "\n", encoding=encoding)
    return [edges, nodes]


def described(paths: list[Path]) -> tuple[Description, Graph]:
    """The description that graphfed writes, and the graph that it describes."""
    Path("d.yaml").write_text(first_description(paths, Path()), encoding="utf-8")
    description, _ = describe_file(Path("d.yaml"))
    graph = load_description(description)
    assert graph.num_nodes == N
    return description, graph


def test_nodes_edges_ids_and_labels_are_found_whatever_the_order_of_files() -> None:
    for paths in (write(), write()[::-1]):
        description, graph = described(paths)
        assert (description.id, description.label) == ("key", "is_fraud")
        assert (description.source, description.target) == ("payer", "payee")
        assert (graph.feature_names, graph.num_edges) == (("amount",), N)


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "latin-1", "cp1252"])
def test_a_file_in_any_usual_encoding_is_described(encoding: str) -> None:
    paths = write("key,città,is_fraud", lambda i: f"{('Köln', 'Málaga')[i % 2]},{i % 2}", encoding=encoding)
    assert described(paths)[1].feature_names == ("città=Köln", "città=Málaga")


def test_files_without_a_line_of_names_are_described() -> None:
    Path("nodes.csv").write_text("".join(f"{i},{i * 0.5},7\n" for i in range(N)))
    Path("edges.txt").write_text("# an edge list\n" + "".join(f"{i} {(i + 1) % N}\n" for i in range(N)))
    description, graph = described([Path("nodes.csv"), Path("edges.txt")])
    assert description.no_header == ("nodes", "edges")
    assert (description.id, description.label, graph.num_edges) == ("1", None, N)


def test_codes_with_leading_zeros_are_categories_and_texts_of_all_kinds_are_left_out() -> None:
    paths = write("key,branch,remark,is_fraud", lambda i: f"0{i % 3},about {i * 7919 % 1000} {i},{i % 2}")
    Path("nodes.csv").write_text(
        Path("nodes.csv").read_text() + "".join(f"m{i},01,other {i},0\n" for i in range(30))
    )
    Path("d.yaml").write_text(text := first_description(paths, Path()))
    assert load_description(describe_file(Path("d.yaml"))[0]).feature_names == tuple(
        f"branch=0{i}" for i in range(3)
    )
    assert "# not used, because of their many different texts: remark" in text


@pytest.mark.parametrize(
    ("column", "row", "line"),
    [
        ("opened", lambda i: f"0{1 + i % 9}/02/2024", 'date_format: "%d/%m/%Y"'),
        ("opened", lambda i: f"{i + 1:02}/12/2024" if i < 29 else "", "missing: indicator"),
        ("date", lambda i: f"202401{i + 1:02}", "dates: [date]"),
        ("code", lambda i: f"202401{i + 1:02}", "features: [code]"),
        ("amount", lambda i: '"1,234"', 'decimal: "."'),
        ("amount", lambda i: '"1,25"', "features: [amount]"),
        ("weight", lambda i: "yes" if i % 2 else "no", "categorical: [weight]"),
        ("a: b", str, 'features: ["a: b"]'),
        ("yes", str, 'features: ["yes"]'),
        ("# of pets", str, 'features: ["# of pets"]'),
        ("12", str, 'features: ["12"]'),
        ("split", str, "split:"),
        ("part", lambda i: ("train", "val", "test")[i % 3] + "," + str(i), "split: part"),
    ],
)
def test_a_column_of_any_kind_is_described_so_that_the_file_is_read(
    column: str, row: Callable[[int], str], line: str
) -> None:
    more = ",f" if column == "part" else ""
    paths = write(f"key,{column}{more},is_fraud", lambda i: f"{row(i)},{i % 2}")
    described(paths)
    assert any(each.startswith(line) for each in Path("d.yaml").read_text().splitlines())


def test_weights_that_are_no_weights_are_not_used() -> None:
    paths = write()
    paths[0].write_text("payer,payee,weight\n" + "".join(f"n{i},n{(i + 1) % N},{i}\n" for i in range(N)))
    assert described(paths)[1].edge_weight is None


def test_files_of_clients_are_paired_by_their_names_or_folders_or_else_by_their_ids() -> None:
    for paths in (
        [*write(path="north_{}.csv"), *write(path="south_{}.csv")],
        [*write(path="north/{}.csv"), *write(path="south/{}.csv")],
    ):
        assert [*described(paths)[0].clients] == ["north", "south"]
    north, south = (Path(f"{name}_nodes.csv") for name in ("north", "south"))
    lines = north.read_text().splitlines()
    north.write_text("\n".join(lines[:16]))
    south.write_text("\n".join([lines[0], *lines[16:]]))
    lines = Path("north_edges.csv").read_text().splitlines()
    Path("a.csv").write_text("\n".join([lines[0], *lines[16:]]))
    Path("b.csv").write_text("\n".join(lines[:16]))
    description, _ = described([north, south, Path("a.csv"), Path("b.csv")])
    assert {name: files.edges.name for name, files in description.clients.items()} == {
        "north": "b.csv", "south": "a.csv"
    }  # fmt: skip


def test_parquet_is_described() -> None:
    paths = write()
    for path in paths:
        pq.write_table(pyarrow.csv.read_csv(path), path.with_suffix(".parquet"))
    assert described([path.with_suffix(".parquet") for path in paths])[1].num_edges == N


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (1, "the 1 files have 1 different sets of columns"),
        (3, "there are 2 files of nodes ('nodes.csv', 'more.csv') and 1 of edges"),
        (0, "no column of edges.csv or nodes.csv has ids that two columns of the other file name"),
    ],
)
def test_files_that_are_no_nodes_and_edges_are_refused(
    files: int, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = write()
    if files == 0:
        Path("nodes.csv").write_text("key,f\n" + "".join(f"x{i},{i}\n" for i in range(N)))
    if files == 3:
        Path("more.csv").write_text(Path("nodes.csv").read_text())
        paths.append(Path("more.csv"))
    assert main(["data", "describe", *map(str, paths[: files or 2]), "--out", "d.yaml"]) == 2
    assert message in capsys.readouterr().err
    assert not Path("d.yaml").exists()


CELLS = st.one_of(
    st.integers(-5, 5000).map(str), st.floats(-9, 9).map(lambda x: f"{x:.3f}"), st.dates().map(str),
    st.sampled_from(["", "NA", "007", "a", "b", "true", "yes"]),
)  # fmt: skip


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(CELLS, min_size=N, max_size=N), st.lists(CELLS, min_size=N, max_size=N), st.booleans())
def test_the_description_of_any_two_columns_is_accepted(
    one: list[str], two: list[str], semicolon: bool
) -> None:
    paths = write("key,one,two,f", lambda i: f"{one[i]},{two[i]},{i}")
    if semicolon:
        for path in paths:
            path.write_text(path.read_text().replace(",", ";").replace(".", ","))
    described(paths)


def test_amounts_and_times_of_edges_are_kept_with_their_direction_and_texts_are_not() -> None:
    nodes = write()[1]
    rows = (
        f"n{i},n{(i + 1) % N},{i}.5,2024-01-{i % 28 + 1:02d} 08:00,{'SEPA' if i else ''}" for i in range(N)
    )
    Path("edges.csv").write_text("\n".join(["payer,payee,amount,booked,channel", *rows]) + "\n")
    description, graph = described([Path("edges.csv"), nodes])
    assert (description.directed, description.edge_features, description.time) == (
        True,
        ("amount",),
        "booked",
    )
    assert graph.directed is not None
    assert graph.directed.names == ("amount", "elapsed days", "hour", "weekday")
    assert sorted(graph.directed.attributes[:, 0]) == [i + 0.5 for i in range(N)]
    assert any("channel" in phrase for phrase in graph.dropped)


def test_clients_that_share_nodes_get_no_direction_because_they_could_not_keep_it() -> None:
    for name in ("north", "south"):
        write(edges_head="payer,payee", path=name + "_{}.csv")
        edges = Path(f"{name}_edges.csv")
        first, *rows = edges.read_text().splitlines()
        edges.write_text("\n".join([f"{first},amount", *(f"{row},1.5" for row in rows)]) + "\n")
    paths = sorted(Path().glob("*.csv"))
    description, graph = described(paths)
    assert (description.directed, graph.directed, len(description.clients)) == (False, None, 2)
