"""A table gives the same graph however a program wrote it, or is refused with a fix that works.

The oracle is pandas' behaviour, restated with Python's csv module, where no other is named.
"""

import csv
import gzip
import io
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import graphfed
from graphfed.cli import main
from graphfed.data.feature_checks import feature_remarks
from graphfed.data.graphs.graph import Graph
from graphfed.data.user_files import table_files
from graphfed.data.user_files.graph_description import describe
from graphfed.data.user_files.graph_files import load_description
from graphfed.data.user_files.table_files import MAX_COLUMNS, Numbers, TableFile
from graphfed.errors import InputError

N = 24


def write(path: str, *rows: Any) -> None:
    Path(path).write_text("".join(f"{','.join(map(str, row))}\n" for row in rows))


def nodes(label: Any = lambda i: i % 2, name: Any = str, path: str = "nodes.csv") -> None:
    write(path, ("id", "label", "f"), *((name(i), label(i), i * 0.25) for i in range(N)))


def edges(name: Any = str, path: str = "edges.csv") -> None:
    write(path, ("source", "target"), *((name(i), name((i + 1) % N)) for i in range(N)))


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    nodes()
    edges()
    return tmp_path


def load(**more: Any) -> Graph:
    return load_description(describe({"nodes": "nodes.csv", "edges": "edges.csv", **more}, Path(), "it"))


def inspect(capsys: pytest.CaptureFixture[str], text: str = "") -> dict[str, Any]:
    """What `graphfed data inspect` finds in the files, with more keys of the description."""
    Path("d.yaml").write_text(f"nodes: nodes.csv\nedges: edges.csv\n{text}")
    code = main(["data", "inspect", "d.yaml", "--json"])
    out = capsys.readouterr()
    assert code == 0, out.err
    found: dict[str, Any] = json.loads(out.out)
    return found


def refused(capsys: pytest.CaptureFixture[str], text: str = "") -> str:
    """The one line with which `graphfed data inspect` refuses the files."""
    Path("d.yaml").write_text(f"nodes: nodes.csv\nedges: edges.csv\n{text}")
    assert main(["data", "inspect", "d.yaml"]) == 2
    line = capsys.readouterr().err
    assert line.startswith("error: ")
    assert line.count("\n") == 1
    return line


# ---- a missing value ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("word", ["", " ", "NaN", "nan", "NULL", "null", "NA", "N/A", "None", "<NA>"])
def test_a_label_or_part_that_is_missing_is_unknown_in_every_spelling(
    word: str, capsys: pytest.CaptureFixture[str]
) -> None:
    nodes(lambda i: word if i % 3 == 0 else i % 2)
    assert inspect(capsys)["missing"]["labels"] == 8
    graph = load()
    assert graph.class_names == ("0", "1")
    assert (graph.y < 0).nonzero()[0].tolist() == list(range(0, N, 3))
    nodes(lambda i: word if i % 3 == 0 else "train")
    split = load(label=None, split="label").split
    assert split is not None
    assert split.train.sum() == 16


@pytest.mark.parametrize("missing", [float("nan"), None])
@pytest.mark.parametrize("type_", [pa.float16(), pa.float32(), pa.float64(), pa.string()])
def test_nan_and_null_in_parquet_are_unknown_labels(missing: Any, type_: pa.DataType) -> None:
    labels = [missing if i % 3 == 0 else i % 2 for i in range(N)]
    written = [label if label is None or type_ != pa.string() else str(label) for label in labels]
    if type_ == pa.float16():
        written = pa.array(written, pa.float64()).cast(pa.float16())
    table = pa.table({"id": range(N), "label": pa.array(written, type_), "f": np.arange(N) / 4})
    pq.write_table(table, "nodes.parquet")
    graph = load(nodes="nodes.parquet")
    assert graph.class_names == ("0", "1")
    assert int((graph.y < 0).sum()) == 8


def test_a_word_that_means_unknown_is_remarked_and_the_key_makes_it_unknown(
    capsys: pytest.CaptureFixture[str],
) -> None:
    nodes(lambda i: "unknown" if i % 4 else i % 8)
    found = inspect(capsys)
    (remark,) = found["remarks"]
    assert "class 'unknown' has 18 of 24 labelled nodes" in remark
    fix = re.search(r"'(unknown: .*?)' in the description", remark)
    assert fix is not None
    found = inspect(capsys, fix[1])
    assert (found["missing"]["labels"], len(found["classes"]), found["remarks"]) == (18, 2, [])
    assert "list it under 'unknown'" in refused(capsys, "classes: [4, 0]")
    found = inspect(capsys, "classes: [4, 0]\nunknown: unknown")
    assert [row["name"] for row in found["classes"]] == ["4", "0"]


def test_a_word_for_a_missing_value_is_a_name_where_the_description_says_so() -> None:
    nodes(lambda i: "None" if i % 2 else "DoS")
    assert load(classes=["None", "DoS"]).y.tolist() == [1, 0] * 12
    assert load(unknown=[]).class_names == ("DoS", "None")
    again = describe(load_described(unknown=[]).to_json(), Path(), "it")
    assert load_description(again).class_names == ("DoS", "None")


def load_described(**more: Any) -> Any:
    return describe({"nodes": "nodes.csv", "edges": "edges.csv", **more}, Path(), "it")


@pytest.mark.parametrize("key", ["id", "client"])
def test_a_missing_id_or_client_is_refused(key: str, capsys: pytest.CaptureFixture[str]) -> None:
    write(
        "nodes.csv",
        (key, "b" if key == "id" else "id", "f"),
        *(("NULL" if i == 3 else i, i, i) for i in range(N)),
    )
    assert f"nodes.csv, line 5, column '{key}': the value is empty, or a word" in refused(capsys)


@pytest.mark.parametrize("word", ["NULL", "NA", "nan"])
def test_a_missing_feature_is_refused_with_its_word_and_line(
    word: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("nodes.csv").write_text(Path("nodes.csv").read_text().replace("3,1,0.75", f"3,1,{word}"))
    assert f"nodes.csv, line 5, column 'f': '{word}' means a missing value; fill it in" in refused(capsys)


def test_a_missing_reading_is_missing_in_every_spelling() -> None:
    Path("r.csv").write_text(
        "time,a\n2024-01-01,1\n2024-01-02,NA\n2024-01-03,null\n2024-01-04,\n2024-01-05,NaN\n"
    )
    _, values = TableFile(Path("r.csv")).read([], Numbers(["a"], gaps=True))
    assert np.isnan(values[:, 0]).tolist() == [False, True, True, True, True]


# ---- a value written in two ways ---------------------------------------------------------------------------

BANKS = "clients:\n  north: {nodes: nodes.csv, edges: edges.csv}\n  south: {nodes: %s, edges: %s}\n"


def shared(capsys: pytest.CaptureFixture[str], nodes: str = "s.csv", edges: str = "se.csv") -> dict[str, str]:
    """The facts that `graphfed data inspect` prints for two banks."""
    Path("d.yaml").write_text(BANKS % (nodes, edges))
    assert main(["data", "inspect", "d.yaml"]) == 0
    out = capsys.readouterr().out
    return dict(re.findall(r"^(\S.*?\S)  +(\S.*?) *$", out, re.MULTILINE))


@pytest.mark.parametrize("form", ["{}", "{}.0", "{}.00", " {}"])
def test_ids_of_two_banks_are_the_same_customers_however_they_are_written(
    form: str, capsys: pytest.CaptureFixture[str]
) -> None:
    nodes(name=form.format, path="s.csv")
    edges(name=form.format, path="se.csv")
    assert shared(capsys)["at several clients"] == f"{N} nodes, {N} edges"


@pytest.mark.parametrize(
    "type_",
    [
        pa.int8(),
        pa.uint64(),
        pa.float32(),
        pa.float64(),
        pa.decimal128(21, 2),
        pa.string(),
        pa.large_string(),
    ],
)
def test_ids_in_parquet_are_the_same_customers_in_every_type(
    type_: pa.DataType, capsys: pytest.CaptureFixture[str]
) -> None:
    ids = pa.array(range(N)).cast(pa.string() if pa.types.is_large_string(type_) else type_).cast(type_)
    labels = pa.array([float(i % 2) if i % 5 else None for i in range(N)])
    pq.write_table(pa.table({"id": ids, "label": labels, "f": np.arange(N) * 0.25}), "s.parquet")
    pq.write_table(pa.table({"source": ids, "target": ids.take(pa.array([*range(1, N), 0]))}), "se.parquet")
    facts = shared(capsys, "s.parquet", "se.parquet")
    assert (facts["at several clients"], facts["classes"]) == (f"{N} nodes, {N} edges", "2")


def test_labels_have_one_class_however_they_are_written() -> None:
    nodes(lambda i: ("0", "1", "0.0", "1.0")[i % 4])
    assert load().class_names == ("0", "1")
    nodes(lambda i: ("True", "false", "TRUE", "False")[i % 4])
    assert load().class_names == ("false", "true")
    assert load(classes=["True", "FALSE"]).class_names == ("true", "false")
    nodes(lambda i: ("caf\u00e9", "cafe\u0301")[i % 2])
    assert load().class_names == ("caf\u00e9",)


@pytest.mark.parametrize(
    ("ids", "row"),
    [
        (np.array([2.0**53 + 2 * i for i in range(N)]), "row 1"),
        (np.array([2.0**24 + 2 * i for i in range(N)], dtype=np.float32), "row 1"),
        (np.where(np.arange(N) == 3, np.inf, np.arange(N)), "row 4"),
    ],
)
def test_ids_whose_digits_are_lost_are_refused_with_their_row(
    ids: np.ndarray, row: str, capsys: pytest.CaptureFixture[str]
) -> None:
    pq.write_table(pa.table({"id": ids, "f": np.arange(N) / 4}), "nodes.parquet")
    Path("d.yaml").write_text("nodes: nodes.parquet\nedges: edges.csv\n")
    assert main(["data", "inspect", "d.yaml"]) == 2
    line = capsys.readouterr().err
    assert line.startswith(f"error: nodes.parquet, {row}, column 'id': ")
    assert line.count("\n") == 1
    if ids.dtype == np.float64:  # a text has all digits of a number in 32 bits
        write("nodes.csv", ("id", "f"), *((value, i / 4) for i, value in enumerate(ids.tolist())))
        assert f"line {int(row[4:]) + 1}, column 'id': " in refused(capsys)


# ---- the first line ----------------------------------------------------------------------------------------


def without_header(separator: str = ",", path: str = "e.txt", before: str = "") -> None:
    Path(path).write_text(before + "".join(f"{i}{separator}{(i + 1) % N}\n" for i in range(N)))


@pytest.mark.parametrize("separator", [",", ";", "\t", " "])
@pytest.mark.parametrize("keys", ["", "source: '0'\ntarget: '1'\n"])
def test_a_first_line_of_values_is_refused_and_the_fix_reads_every_edge(
    separator: str, keys: str, capsys: pytest.CaptureFixture[str]
) -> None:
    without_header(separator)
    Path("d.yaml").write_text("nodes: nodes.csv\nedges: e.txt\n" + keys)
    assert main(["data", "inspect", "d.yaml"]) == 2
    message = capsys.readouterr().err
    assert "e.txt: the first line has values (numbers or times) and no names" in message
    fix = re.search(r"write '(.*?)' in the description", message)
    assert fix is not None
    Path("d.yaml").write_text("nodes: nodes.csv\nedges: e.txt\n" + fix[1])
    assert main(["data", "inspect", "d.yaml", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["edges"] == N


def test_a_file_of_nodes_without_names_is_read_by_the_numbers_of_its_columns() -> None:
    rows = Path("nodes.csv").read_text().split("\n", 1)[1]
    Path("bare.csv").write_text(rows)
    with pytest.raises(InputError, match="no_header: nodes"):
        load(nodes="bare.csv")
    graph = load(nodes="bare.csv", no_header="nodes", label=2)
    whole = load()
    assert (graph.hash, graph.ids, graph.feature_names) == (whole.hash, whole.ids, ("3",))
    again = describe(load_described(nodes="bare.csv", no_header=["nodes"], label="2").to_json(), Path(), "it")
    assert load_description(again).hash == whole.hash


def test_the_message_about_texts_in_place_of_names_gives_no_value_as_an_example(
    capsys: pytest.CaptureFixture[str],
) -> None:
    nodes(name=lambda i: f"Gene::{i}")
    Path("edges.csv").write_text("".join(f"Gene::{i},Gene::{(i + 1) % N}\n" for i in range(N)))
    message = refused(capsys)
    assert "as in 'source: COLUMN'" in message
    assert inspect(capsys, "no_header: edges")["edges"] == N


def test_comments_before_the_first_line_are_no_names(capsys: pytest.CaptureFixture[str]) -> None:
    comments = f"# Directed graph: mini\n# Nodes: {N} Edges: {N}\n"
    without_header("\t", "edges.csv", comments + "# FromNodeId\tToNodeId\n")
    assert "the columns are 'FromNodeId', 'ToNodeId'" in refused(capsys)
    assert inspect(capsys, "source: FromNodeId\ntarget: ToNodeId\n")["edges"] == N
    without_header("\t", "edges.csv", comments)
    assert "no_header: edges" in refused(capsys)
    assert inspect(capsys, "no_header: edges")["edges"] == N
    Path("edges.csv").write_text(comments + "source;target\n0;1\n1;2\n")
    assert inspect(capsys)["edges"] == 2


def test_columns_that_are_called_by_numbers_in_order_are_names() -> None:
    write("nodes.csv", range(4), *((i, i % 2, i / 2, i / 4) for i in range(N)))
    assert load(id=0, label=1).feature_names == ("2", "3")


@pytest.mark.parametrize(
    ("text", "columns"),
    [
        ('"a;b;c;d","e"\n1,2\n', ["a;b;c;d", "e"]),
        ('"x,y";"z,w";v\n"1,2";"3,4";5\n', ["x,y", "z,w", "v"]),
        ("id;amount\n1;0,5\n2;1,5\n", ["id", "amount"]),
        ('id,"amount\nin EUR"\n1,2\n', ["id", "amount\nin EUR"]),
        ("full name\nAda Lovelace\n", ["full name"]),
        ("a\tb c\n1\t2\n", ["a", "b c"]),
    ],
)
def test_the_separator_is_found_outside_quotes(text: str, columns: list[str]) -> None:
    Path("t.csv").write_text(text)
    file = TableFile(Path("t.csv"))
    assert file.columns == columns
    dialect = ";" if ";" in text and '"a;' not in text else "\t" if "\t" in text else ","
    rows = list(csv.reader(io.StringIO(text), delimiter=dialect))[1:]
    assert list(zip(*(file.read(columns)[0][name].to_pylist() for name in columns), strict=True)) == [
        *map(tuple, rows)
    ]


def test_every_id_of_a_list_without_a_name_is_predicted(tmp_path: Path) -> None:
    graphfed.run(
        "central", data=yaml(), split="random:0.5,0.25,0.25", clients=2, rounds=1, out=tmp_path / "run"
    )
    for text in ("5\n7\n9\n", "id\n5\n7\n9\n", "id,f\n5.0,1\n7.0,1\n9.0,1\n"):
        Path("ids.csv").write_text(text)
        assert (
            main(["predict", str(tmp_path / "run"), "--nodes", "ids.csv", "--out", f"p{len(text)}.csv"]) == 0
        )
        with Path(f"p{len(text)}.csv").open() as file:
            assert [row["id"] for row in csv.DictReader(file)] == ["5", "7", "9"]
    Path("ids.csv").write_text("99\n7\n")
    with pytest.raises(InputError, match="node '99' is not in"):
        graphfed.predict(tmp_path / "run", nodes=Path("ids.csv"))


def yaml() -> str:
    Path("nodes.yaml").write_text("nodes: nodes.csv\nedges: edges.csv\n")
    return "nodes.yaml"


# ---- the form of CSV ---------------------------------------------------------------------------------------

CELL = st.text(st.characters(codec="utf-8", exclude_characters="\0", exclude_categories=["Cs"]), max_size=8)


@settings(max_examples=60)
@given(
    rows=st.lists(st.tuples(CELL, CELL), min_size=1, max_size=12),
    end=st.sampled_from(["\n", "\r\n", "\r"]),
    delimiter=st.sampled_from(",;\t"),
    mark=st.booleans(),
    packed=st.booleans(),
)
def test_csv_is_read_as_pythons_csv_module_reads_it(
    rows: list[tuple[str, str]], end: str, delimiter: str, mark: bool, packed: bool
) -> None:
    text = io.StringIO(newline="")
    csv.writer(text, delimiter=delimiter, lineterminator=end, quoting=csv.QUOTE_ALL).writerows(
        [("k", "v"), *rows]
    )
    content = b"\xef\xbb\xbf" * mark + text.getvalue().encode()
    path = Path("q.csv.gz" if packed else "q.csv")
    path.write_bytes(gzip.compress(content) if packed else content)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(table_files, "_BLOCK_BYTES", 256)
        file = TableFile(path, missing=())
        # Times are read without conversion.
        found, _ = file.read([], times=["k", "v"])
    assert list(zip(found["k"].to_pylist(), found["v"].to_pylist(), strict=True)) == rows


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("blank", ["", "\n"])
def test_a_message_names_the_line_at_which_a_row_starts(
    end: str, blank: str, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = "".join(f'{i},{i % 2},"Street\nTown",{"x" if i == 20 else i}\n{blank}' for i in range(N))
    text = f"id,label,address,amount\n{rows}"
    Path("nodes.csv").write_bytes(text.replace("\n", end).encode())
    line = next(i for i, line in enumerate(text.split("\n"), 1) if line.startswith("20,"))
    assert f"nodes.csv, line {line}, column 'amount': 'x' is no number" in refused(
        capsys, "features: [amount]"
    )
    ragged = text.replace(",x\n", ",1,2\n")
    Path("nodes.csv").write_bytes(ragged.replace("\n", end).encode())
    assert f"nodes.csv, line {line}: 5 values, and the first line has 4" in refused(capsys)


@pytest.mark.parametrize(
    ("written", "number"),
    [
        ("0,5", 0.5),
        ("1.234,5", 1234.5),
        ("1,234.5", 1234.5),
        ("1'234.5", 1234.5),
        ("1 234,5", 1234.5),
        ("1.234.567,25", 1234567.25),
        ("-1234,56", -1234.56),
        ("1,5e3", 1500),
    ],
)
def test_a_number_of_another_country_is_read_where_it_has_one_meaning(written: str, number: float) -> None:
    Path("nodes.csv").write_text("id;label;f\n" + "".join(f"{i};{i % 2};{written}\n" for i in range(N)))
    x = load().x
    assert isinstance(x, np.ndarray)
    assert np.unique(x).tolist() == [np.float32(number)]


def test_a_number_with_two_meanings_is_refused_and_the_key_decides(
    capsys: pytest.CaptureFixture[str],
) -> None:
    Path("nodes.csv").write_text("id;label;f\n" + "".join(f"{i};{i % 2};1,234\n" for i in range(N)))
    message = refused(capsys)
    assert "nodes.csv, line 2, column 'f': '1,234' is no number; write 'decimal: \",\"'" in message
    for sign, number in ((",", 1.234), (".", 1234)):
        x = load(decimal=sign).x
        assert isinstance(x, np.ndarray)
        assert x[0, 0] == np.float32(number)


def test_a_point_that_is_no_separator_of_thousands_is_refused_among_decimal_commas(
    capsys: pytest.CaptureFixture[str],
) -> None:
    rows = "".join(f"{i};{i % 2};{i},5\n" for i in range(N))
    Path("nodes.csv").write_text(f"id;label;f\n{rows}x;0;12.5\n")
    assert f"nodes.csv, line {N + 2}, column 'f': '12.5' is no number" in refused(capsys)


def test_a_separator_is_asked_for_where_two_are_possible(capsys: pytest.CaptureFixture[str]) -> None:
    Path("nodes.csv").write_text("".join(f"{i};{i % 2};{i},{i % 10}\n" for i in range(N)))
    Path("d.yaml").write_text("nodes: nodes.csv\nedges: edges.csv\nno_header: nodes\nlabel: 2\n")
    assert main(["data", "inspect", "d.yaml"]) == 2
    assert """state the separator in the description, as in 'separator: ";"'""" in capsys.readouterr().err
    Path("edges.csv").write_text("source;target\n0;1\n")
    graph = load(no_header="nodes", label=2, separator=";")
    assert graph.num_features == 1
    assert graph.class_names == ("0", "1")


@pytest.mark.parametrize("encoding", ["latin-1", "cp1252", "utf-16", "cp850"])
def test_a_file_in_another_encoding_is_the_same_graph(encoding: str) -> None:
    nodes(lambda i: "Österreich" if i % 2 else "Besançon")
    expected = load()
    Path("nodes.csv").write_text(Path("nodes.csv").read_text(), encoding=encoding)
    found = load(**({} if encoding == "utf-16" else {"encoding": encoding}))
    assert found.class_names == expected.class_names == ("Besançon", "Österreich")
    assert found.hash == expected.hash


def test_bytes_that_are_not_of_the_stated_encoding_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    Path("nodes.csv").write_bytes(b"id,label,f\na\x81,0,1\n")
    assert "nodes.csv is not cp1252" in refused(capsys, "encoding: cp1252")
    assert "no encoding that Python knows" in refused(capsys, "encoding: latin-99")


# ---- columns that are no features --------------------------------------------------------------------------


def test_a_column_that_numbers_the_rows_is_remarked_when_a_run_starts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(
        "nodes.csv", ("Unnamed: 0", "id", "label", "amount", "key"),
        *((i, f"a{i}", i % 2, i % 7 / 2, (7 * i) % N + 100) for i in range(N)),
    )  # fmt: skip
    edges(name=lambda i: f"a{i}")
    graphfed.run(
        "central",
        data=yaml(),
        split="random:0.5,0.25,0.25",
        clients=2,
        rounds=1,
        out=tmp_path / "run",
        progress=True,
    )
    err = capsys.readouterr().err
    assert "nodes: 3 features ('Unnamed: 0', 'amount', 'key')" in err
    (remark,) = json.loads((tmp_path / "run" / "manifest.json").read_text())["data"]["remarks"]
    assert remark.startswith("2 features ('Unnamed: 0', 'key'), of columns that number the rows")
    assert remark in err
    assert inspect(capsys, "features: [amount]")["remarks"] == []


@pytest.mark.parametrize(
    "name", ["Unnamed: 0", "index", "__index_level_0__", "RowID", "val_mask", "pos_x", "color"]
)
def test_a_column_is_remarked_by_its_name(name: str) -> None:
    x = np.random.default_rng(0).random((N, 2))
    (remark,) = feature_remarks((name, "amount"), x)
    assert remark.startswith(f"1 feature ('{name}'), of columns that")
    assert feature_remarks(("amount", "indexed", "rows"), x[:, :1].repeat(3, 1)) == ()
    assert feature_remarks(("amount",), np.array([[3.4e38], [-3.4e38]] * N, np.float32)) == (), "no overflow"


@pytest.mark.parametrize(
    ("names", "remarked"),
    [("ab", 0), ("xa", 0), ("xy", 2), ("yxa", 2), ("rgb", 3), ("rg", 0), (["size", "a"], 0)],
)
def test_single_letters_are_positions_or_colours_only_together(names: Sequence[str], remarked: int) -> None:
    x = np.random.default_rng(0).random((N, len(names)))
    found = feature_remarks([*names], x)
    assert [remark.split()[0] for remark in found] == [str(remarked)] * (remarked > 0)


@pytest.mark.parametrize("val", ["val_mask", "valid_mask"])
@pytest.mark.parametrize(("no", "yes"), [("0", "1"), ("False", "True"), ("", "1.0")])
def test_three_columns_of_masks_are_the_split(val: str, no: str, yes: str) -> None:
    masks = [[yes if i % 4 == part else no for part in range(3)] for i in range(N)]
    write(
        "nodes.csv",
        ("id", "label", "train_mask", val, "test_mask", "f"),
        *((i, i % 2, *masks[i], i) for i in range(N)),
    )
    graph = load()
    assert graph.feature_names == ("f",)
    assert graph.split is not None
    for part, mask in enumerate((graph.split.train, graph.split.val, graph.split.test)):
        assert mask.nonzero()[0].tolist() == list(range(part, N, 4))
    assert load(split=None).split is None
    again = describe(load_described().to_json(), Path(), "it")
    assert load_description(again).split.hash == graph.split.hash  # type: ignore[union-attr]
    named = load(masks=["test_mask", val, "train_mask"]).split
    assert named is not None
    assert (named.train == graph.split.test).all()


def test_masks_that_overlap_are_refused_with_their_line(capsys: pytest.CaptureFixture[str]) -> None:
    write(
        "nodes.csv",
        ("id", "train_mask", "val_mask", "test_mask", "f"),
        *((i, 1, int(i == 4), 0, i) for i in range(N)),
    )
    assert "nodes.csv, line 6, column 'test_mask': the value puts the node into a second part" in refused(
        capsys
    )
    write(
        "nodes.csv", ("id", "train_mask", "val_mask", "test_mask", "f"), *((i, 2, 0, 0, i) for i in range(N))
    )
    assert "line 2, column 'train_mask': '2' is no value of a mask; use 0 or 1" in refused(capsys)


# ---- numbers in 32 bits ------------------------------------------------------------------------------------


def test_a_feature_whose_values_become_equal_in_32_bits_is_remarked(
    capsys: pytest.CaptureFixture[str],
) -> None:
    write("nodes.csv", ("id", "label", "cents"), *((i, i % 2, 67108864 + i % 2) for i in range(N)))
    (remark,) = inspect(capsys)["remarks"]
    assert remark.startswith(
        "feature 'cents': its 2 different values are only 1 in 32 bits; use features=scaled"
    )
    write("nodes.csv", ("id", "label", "day"), *((i, i % 2, 2459000.5 + i % 2 / 1000) for i in range(N)))
    (remark,) = inspect(capsys)["remarks"]
    assert remark.startswith(
        "feature 'day': its 2 different values are only 1 in 32 bits; subtract a constant"
    )
    write("nodes.csv", ("id", "label", "cents"), *((i, i % 2, i % 2) for i in range(N)))
    assert inspect(capsys)["remarks"] == [], "after the fix"
    write("nodes.csv", ("id", "label", "f"), *((i, i % 2, 0.1 + i % 3 / 7) for i in range(N)))
    assert inspect(capsys)["remarks"] == []


def test_large_numbers_that_32_bits_would_change_are_kept_and_nothing_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In blocks of few rows, of which only some have such a number."""
    monkeypatch.setattr(table_files, "_BLOCK_BYTES", 64)
    cents = [67108864 + (i == N - 1) for i in range(N)]
    write("nodes.csv", ("id", "cents", "f"), *((i, cents[i], 0.1 + i) for i in range(N)))
    x = load().x
    assert isinstance(x, np.ndarray)
    assert x.dtype == np.float64
    assert x[:, 0].tolist() == cents
    rounded = np.array([0.1 + i for i in range(N)]).astype(np.float32)
    assert (x[:, 1] == rounded).all(), "as in a file without a large number"
    write("nodes.csv", ("id", "cents", "f"), *((i, 67108864, 0.1 + i) for i in range(N)))
    assert load().x.dtype == np.float32


def test_a_large_feature_carries_the_class_through_a_run(capsys: pytest.CaptureFixture[str]) -> None:
    """In one process, in several, and in a prediction for the same nodes in another file; not if features
    are raw."""
    rows = [(i, i % 2, f"client{i // 20}", 67108864 + i % 2) for i in range(60)]
    write("nodes.csv", ("id", "label", "client", "cents"), *rows)
    write("edges.csv", ("source", "target"), *((i, i // 20 * 20 + (i + 2) % 20) for i in range(60)))
    write("new.csv", ("id", "cents"), *(row[::3] for row in reversed(rows)))
    Path("d.yaml").write_text("nodes: nodes.csv\nedges: edges.csv\n")
    Path("new.yaml").write_text("nodes: new.csv\nedges: edges.csv\n")
    options = {"data": "d.yaml", "split": "random:0.5,0.25,0.25", "rounds": 20, "settings": {"dropout": 0}}
    one = graphfed.run("fedavg", **options, out="one")
    apart = graphfed.run("fedavg", **options, out="apart", runtime="processes", workers=2)
    raw = graphfed.run("fedavg", **{**options, "settings": {"features": "raw"}})
    assert one.test["accuracy"] == apart.test["accuracy"] == 1
    assert raw.test["accuracy"] < 0.7
    written = pq.read_table("one/predictions.parquet")
    for found in (pq.read_table("apart/predictions.parquet"), graphfed.predict("one")):
        np.testing.assert_allclose(found["probability_1"], written["probability_1"], atol=1e-5)
    elsewhere = graphfed.predict("one", data="new.yaml")["probability_1"].to_numpy()[::-1]
    np.testing.assert_allclose(elsewhere, written["probability_1"], atol=1e-5)


# ---- bounds ------------------------------------------------------------------------------------------------


def test_a_table_of_very_many_columns_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    Path("nodes.csv").write_text("id," + ",".join(f"f{i}" for i in range(300_000)) + "\n")
    assert f"at most {MAX_COLUMNS:,} columns are read" in refused(capsys)
    Path("nodes.csv").write_text("id," + ",".join(f"f{i}" for i in range(MAX_COLUMNS)) + "\n")
    assert f"has {MAX_COLUMNS + 1:,} columns, and at most {MAX_COLUMNS:,} are read" in refused(capsys)
    wide = pa.table({f"f{i}": [0] for i in range(MAX_COLUMNS + 1)})
    pq.write_table(wide, "nodes.parquet")
    Path("d.yaml").write_text("nodes: nodes.parquet\nedges: edges.csv\n")
    assert main(["data", "inspect", "d.yaml"]) == 2
    assert f"nodes.parquet has {MAX_COLUMNS + 1:,} columns" in capsys.readouterr().err


def test_a_small_file_of_very_many_equal_rows_is_refused_before_it_is_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows = 11_000_000
    pq.write_table(
        pa.table({"source": np.zeros(rows, np.int8), "target": np.ones(rows, np.int8)}), "e.parquet"
    )
    read = []
    monkeypatch.setattr(pq.ParquetFile, "iter_batches", lambda *_, **__: read.append(1))
    with pytest.raises(InputError, match=r"e\.parquet has at least 11,000,000 rows in [\d,]+ bytes"):
        load(edges="e.parquet")
    assert read == []


def test_a_packed_file_of_very_many_equal_rows_is_refused_while_it_is_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(table_files, "FREE_ROWS", 1000)
    monkeypatch.setattr(table_files, "_BLOCK_BYTES", 1 << 12)
    Path("e.csv.gz").write_bytes(gzip.compress(b"source,target\n" + b"0,1\n" * 1_000_000))
    with pytest.raises(InputError, match=r"e\.csv\.gz has at least [\d,]+ rows in [\d,]+ bytes") as caught:
        load(edges="e.csv.gz")
    assert int(str(caught.value).split(" rows")[0].split()[-1].replace(",", "")) < 200_000


def test_a_table_that_needs_more_memory_than_there_is_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_files, "memory_bytes", lambda: (100, 200))
    with pytest.raises(InputError, match=r"need more than the 0\.0 GiB of memory that are available"):
        load()


def test_a_quotation_mark_that_is_never_closed_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_files, "_BLOCK_BYTES", 256)
    Path("edges.csv").write_text('source,target\n0,1\n1,"2\n' + "3,4\n" * 200)
    with pytest.raises(InputError, match="has a row of more than 256 bytes; add the closing quotation mark"):
        load()


@pytest.mark.parametrize(
    "values", [[[1]] * N, [{"a": 1}] * N, [[("a", 1)]] * N], ids=["lists", "structs", "maps"]
)  # fmt: skip
def test_a_column_of_a_nested_type_is_no_id_and_no_feature(values: list[Any]) -> None:
    type_ = (
        pa.map_(pa.string(), pa.int64())
        if isinstance(values[0], list) and isinstance(values[0][0], tuple)
        else None
    )
    nested = pa.array(values, type_)
    pq.write_table(
        pa.table({"id": range(N), "label": [0, 1] * 12, "f": np.arange(N) / 4, "n": nested}), "n.parquet"
    )
    with pytest.raises(InputError, match=r"n\.parquet, column 'n' has type .*, and numbers are expected"):
        load(nodes="n.parquet")
    with pytest.raises(InputError, match=r"n\.parquet, column 'n': .* cannot be read as text"):
        load(nodes="n.parquet", label="n", features=["f"])
    assert load(nodes="n.parquet", features=["f"]).num_nodes == N


def test_a_file_of_thousands_of_row_groups_is_read() -> None:
    ids = [str(i) for i in range(3000)]
    pq.write_table(pa.table({"id": ids, "f": np.arange(3000) % 7 / 2}), "n.parquet", row_group_size=1)
    write("edges.csv", ("source", "target"), (0, 1))
    assert load(nodes="n.parquet").num_nodes == 3000


def test_a_long_text_that_a_small_file_repeats_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_files, "_MAX_EXPANDED", 1 << 20)
    rows = 5000
    labels = pa.DictionaryArray.from_arrays(pa.array([0, 1] * (rows // 2), pa.int32()), ["x" * 1000, "y"])
    write("edges.csv", ("source", "target"), (0, 1))
    pq.write_table(pa.table({"id": range(rows), "label": labels, "f": np.arange(rows) % 7 / 2}), "n.parquet")
    with pytest.raises(InputError, match=r"column 'label': the texts of 5,000 rows have 2,502,500 bytes"):
        load(nodes="n.parquet")
    monkeypatch.setattr(table_files, "_MAX_EXPANDED", 1 << 30)
    assert len(load(nodes="n.parquet").class_names) == 2
