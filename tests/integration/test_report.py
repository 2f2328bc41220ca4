"""The report says what the run's files say, needs nothing from elsewhere, and no text becomes markup."""

import functools
import html
import json
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path

import pyarrow.parquet as pq
import pytest

import graphfed
from graphfed.cli import main
from graphfed.data.datasets import load
from graphfed.drawing.canvas import svg_element
from graphfed.errors import InputError
from graphfed.report import charts
from graphfed.report.page import write_report
from graphfed.studies.comparison import comparison_in

SECTIONS = ("result", "data", "cost", "left", "sent", "audit", "how")
VOID = {"meta", "br", "link", "img", "input", "hr"}


class Page(HTMLParser):
    """The page's elements, and whether every one that is opened is closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "style" not in self.open:
            self.text += data


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("report") / "table"
    graphfed.compare(["fedavg", "fedgcn"], clients=3, rounds=4, seeds=(0, 1), out=folder)
    return folder


def page_of(folder: Path) -> tuple[str, Page]:
    text = write_report([folder]).read_text()
    page = Page(text)
    assert page.open == []
    return text, page


@functools.cache
def kept_page(folder: Path) -> tuple[str, Page]:
    """The page of a folder that no test changes, drawn once."""
    return page_of(folder)


def test_a_comparison_has_every_section_chart_and_figure(compared: Path) -> None:
    text, page = kept_page(compared)
    ids = [attributes["id"] for _, attributes in page.tags if attributes.get("id")]
    assert set(SECTIONS) <= set(ids)
    assert len(ids) == len(set(ids))
    titles = [a["aria-label"] for tag, a in page.tags if tag == "svg"]
    assert titles == [
        "accuracy by round", "test accuracy against bytes", "confusion matrix", "accuracy of each client",
        "the graph and its clients", "classes of each client",
        "neighbours of a node", "bytes by link",
    ]  # fmt: skip
    content = json.loads((compared / "comparison.json").read_text())
    for row in content["rows"]:
        described = row["test"]["accuracy"]
        assert f"{100 * described['mean']:.1f} ± {100 * described['std']:.1f}" in page.text
    for row in ("central", "isolated", "fedavg", "fedgcn"):
        assert page.text.count(row) >= 3
    assert "Rows added for reference: central, isolated." in page.text
    assert "none" in text


def test_every_transfer_of_the_ledger_is_named_with_its_description_and_its_bytes(compared: Path) -> None:
    from graphfed.methods.registry import get_method
    from graphfed.runs.progress import human_bytes

    _, page = kept_page(compared / "fedgcn-seed0")
    ledger = json.loads((compared / "fedgcn-seed0/ledger.json").read_text())
    names = {entry["name"] for entry in ledger["entries"]}
    assert "fedgcn/partial_sums" in names
    for name in names:
        assert name in page.text
    for name, text in get_method("fedgcn").sends.messages.items():
        assert (text in page.text) == (name in names)
    sent = sum(e["bytes"] for e in ledger["entries"] if e["from"] == "clients")
    kinds = {entry["name"] for entry in ledger["entries"] if entry["from"] == "clients"}
    statement = f"The 3 clients sent {len(kinds)} kinds of values, {human_bytes(sent)} in total, evaluation"
    assert f"{statement} included. The receiver can read all of them." in page.text


def sent(text: str) -> list[tuple[list[str], list[tuple[str, list[str]]]]]:
    """Return the tables of what each client sent: heads of the columns, then cells by line."""
    tables = []
    for table in re.findall(r'<table class="each">(.*?)</table>', text, re.DOTALL):
        lines = [
            re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", line) for line in re.findall(r"<tr>(.*?)</tr>", table)
        ]
        head, *rows = [
            [html.unescape(re.sub(r"<[^>]+>", "\n", cell)).strip() for cell in line] for line in lines
        ]
        tables.append((head[1:], [(row[0], row[1:]) for row in rows]))
    return tables


def test_each_clients_column_has_the_bytes_that_the_ledger_says_left_it(compared: Path) -> None:
    from graphfed.methods.registry import get_method
    from graphfed.runs.progress import human_bytes

    ((head, rows),) = sent(kept_page(compared / "fedgcn-seed0")[0])
    assert head == ["client 0", "client 1", "client 2"]
    entries = json.loads((compared / "fedgcn-seed0/ledger.json").read_text())["entries"]
    out = [entry for entry in entries if entry["from"] == "clients"]
    assert {name for name, _ in rows} >= {"total"}
    assert len(rows) == len({entry["name"] for entry in out}) + 1
    for entry in out:
        (figures,) = [figures for name, figures in rows if f"\n{entry['name']}\n" in name]
        assert figures == [human_bytes(amount) for amount in entry["sent"]]
    text = get_method("fedgcn").sends.messages["fedgcn/partial_sums"]
    (line,) = [name for name, _ in rows if "fedgcn/partial_sums" in name]
    assert line.startswith(text)
    assert "none: the receiver reads it" in line
    total = [sum(entry["sent"][client] for entry in out) for client in range(3)]
    assert rows[-1] == ("total", [human_bytes(amount) for amount in total])


def test_of_more_than_twelve_clients_the_smallest_the_median_and_the_largest_are_shown(
    tmp_path: Path,
) -> None:
    from statistics import median

    from graphfed.runs.progress import human_bytes

    for clients in (12, 13):
        folder = tmp_path / str(clients)
        settings = {"partition.beta": 1.0}
        graphfed.run("fedgcn", clients=clients, rounds=1, settings=settings, out=folder)
        ((head, rows),) = sent(page_of(folder)[0])
        assert len(head) == (12 if clients == 12 else 3)
    assert head == ["smallest", "median", "largest"]
    entries = json.loads((folder / "ledger.json").read_text())["entries"]
    out = [entry["sent"] for entry in entries if entry["from"] == "clients"]
    total = [sum(each) for each in zip(*out, strict=True)]
    assert len(set(total)) > 3
    assert rows[-1][1] == [human_bytes(f(total)) for f in (min, median, max)]


def test_a_comparison_has_a_table_of_what_each_client_sent_for_each_row_that_sends(compared: Path) -> None:
    assert len(sent(kept_page(compared)[0])) == 3, "isolated, fedavg, fedgcn"
    text, page = kept_page(compared / "central-seed0")
    assert sent(text) == []
    assert page.text.count("all data leaves the clients before training") == 2


def test_an_audit_is_added_to_the_page_and_the_card_of_the_run(
    compared: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    shutil.copytree(compared / "fedgcn-seed0", run)
    assert "No attack was tried." in kept_page(compared / "fedgcn-seed0")[1].text
    assert main(["audit", str(run)]) == 0
    capsys.readouterr()
    page, card = Page((run / "report.html").read_text()), (run / "model_card.md").read_text()
    found = json.loads((run / "audit.json").read_text())["checks"]
    assert {check["check"] for check in found} >= {"membership", "fedgcn_features"}
    for check in found:
        if check["check"] != "plaintext_transfers":
            for text in (check["tests"], check["result"], check["verdict"]):
                assert text in page.text
                assert text in card
    (run / "audit.json").write_text('{"checks": [{"check": "membership"}]}')
    with pytest.raises(InputError, match=r"audit\.json is damaged.*checks\.0 has no 'tests'; write it again"):
        write_report([run])


def test_the_page_asks_for_nothing_and_runs_nothing(compared: Path) -> None:
    text, page = kept_page(compared)
    assert not {tag for tag, _ in page.tags} & {"script", "link", "img", "iframe", "object", "form"}
    for _, attributes in page.tags:
        for name, value in attributes.items():
            assert not name.startswith("on")
            if name in ("href", "src", "xlink:href"):
                assert (value or "").startswith("#")
    assert not re.search(r"url\((?!#)|@import|javascript:", text)


def test_the_same_folder_gives_the_same_bytes(compared: Path) -> None:
    first, _ = kept_page(compared)
    assert write_report([compared]).read_bytes() == first.encode()


def test_several_runs_make_a_comparison_wherever_their_folders_are(compared: Path, tmp_path: Path) -> None:
    moved = [
        Path(shutil.copytree(compared / name, tmp_path / name)) for name in ("fedavg-seed0", "central-seed0")
    ]
    page = Page(write_report(moved, tmp_path / "both.html").read_text())
    assert "Reference rows that are missing: isolated." in page.text
    with pytest.raises(InputError, match=r"give --out FILE\.html"):
        write_report(moved)
    whole = Path(shutil.copytree(compared, tmp_path / "elsewhere"))
    assert "fedgcn" in page_of(whole)[1].text


def test_the_accuracy_of_each_client_is_that_of_the_predictions(compared: Path) -> None:
    from graphfed.report.read import read_subject

    run = read_subject([compared / "fedavg-seed0"]).first
    table = pq.read_table(compared / "fedavg-seed0/predictions.parquet").to_pylist()
    for client, (accuracy, count) in run.client_accuracy.items():
        rows = [row for row in table if row["split"] == "test" and str(row["client"]) == client]
        assert count == len(rows)
        assert accuracy == pytest.approx(sum(r["label"] == r["prediction"] for r in rows) / count)


def test_the_table_can_be_copied_as_latex_and_as_csv(compared: Path) -> None:
    text, comparison = kept_page(compared)[0], comparison_in(compared)
    copied = [html.unescape(part) for part in re.findall(r"<pre>(.*?)</pre>", text, re.DOTALL)]
    assert copied == [comparison.to_latex(), comparison.to_csv()]


def test_text_of_the_files_stays_text(tmp_path: Path) -> None:
    """The name of the data, of a class and of a client, a label and the command: none becomes markup."""
    import dataclasses

    evil = "東京<script>alert(1)</script>\"'&$x_1$"
    graph = load("digits")
    names = tuple(f"{evil}{c}" for c in range(graph.num_classes))
    graph = dataclasses.replace(
        graph,
        name=evil,
        class_names=names,
        clients=graph.y % 3,
        client_names=tuple(f"{evil}{s}" for s in range(3)),
    )
    rows = [{"method": "fedavg", "label": "<b>bold $x_1$"}]
    graphfed.compare(rows, data=graph, rounds=2, seeds=(0,), out=tmp_path / "t", command=f"graphfed {evil}")
    text, page = page_of(tmp_path / "t")
    assert not [tag for tag, _ in page.tags if tag in ("script", "b")]
    assert "<script>" not in text
    assert "<b>bold" not in text
    assert evil in page.text
    ((head, _),) = [table for table in sent(text) if len(table[1]) > 4][:1]
    assert head == [f"{evil}{s}" for s in range(3)]


@pytest.mark.parametrize(
    "broken", ["result.json", "ledger.json", "metrics.jsonl", "predictions.parquet", "manifest.json"]
)
def test_a_damaged_folder_is_refused_and_no_report_is_written(
    broken: str, compared: Path, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(compared / "fedavg-seed0", tmp_path / "run"))
    (folder / "report.html").unlink(missing_ok=True)
    (folder / broken).write_text("{")
    with pytest.raises(
        InputError, match=re.escape(broken.partition(".")[0]) if broken != "metrics.jsonl" else "damaged"
    ):
        write_report([folder])
    assert not (folder / "report.html").exists()


def test_a_class_without_test_nodes_has_dashes_and_not_zero_percent() -> None:
    drawn = svg_element("counts", [[charts.confusion([[3, 1, 0], [0, 0, 0]], ["known", "absent"])]])
    texts = re.findall(r"<text[^>]*>([^<]*)</text>", drawn)
    assert "absent (none)" in texts
    assert "known" in texts
    assert [text for text in texts if text in ("75", "25", "0", "\u2013")] == ["75", "25", "\u2013", "\u2013"]


def test_what_is_no_finished_run_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("empty").mkdir()
    assert main(["report", "empty"]) == 2
    assert "empty is not the folder of a run or a comparison" in capsys.readouterr().err
    assert main(["report", str(tmp_path / "empty" / "nowhere")]) == 2
    assert "there is no folder" in capsys.readouterr().err
    (tmp_path / "file").touch()
    assert main(["report", str(tmp_path / "file")]) == 2
    assert "file is not a folder" in capsys.readouterr().err
    Path("runs/one").mkdir(parents=True)
    Path("runs/one/manifest.json").write_text("{}")
    for command in ("report", "resume", "predict", "audit"):
        assert main([command, "runs"]) == 2
        assert "runs holds runs and is none; name one of them, as in runs/one" in capsys.readouterr().err
    Path("begun").mkdir()
    Path("begun/manifest.json").write_text("{}")
    assert main(["report", "begun"]) == 2
    assert "has not ended; continue it with: graphfed resume begun" in capsys.readouterr().err
    assert main(["report"]) == 2
    assert main(["report", "empty", "--out", "x.txt"]) == 2


def test_run_and_compare_name_their_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    run = ["run", "fedavg", "--rounds", "1", "--clients", "2", "--no-progress"]
    assert main([*run, "--out", "a"]) == 0
    assert capsys.readouterr().out.splitlines()[-2:] == ["files: a", "report: a/report.html"]
    assert Path("a/report.html").exists()
    assert main([*run, "--out", "b", "--no-report"]) == 0
    assert "report" not in capsys.readouterr().out
    assert not Path("b/report.html").exists()
    assert main([*run, "--out", "c", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["method"] == "fedavg"
    assert Path("c/report.html").exists()


def test_a_simulated_protection_is_never_reported_as_real(tmp_path: Path) -> None:
    graphfed.run("sapgnn", clients=2, partition="edges_uniform", rounds=1, out=tmp_path / "run")
    entries = json.loads((tmp_path / "run/ledger.json").read_text())["entries"]
    out = {entry["name"]: entry["protection"] for entry in entries if entry["from"] == "clients"}
    simulated = sum(protection == "simulated" for protection in out.values())
    assert simulated > 0
    text, page = page_of(tmp_path / "run")
    assert f"The protection of {simulated} more is only simulated, so nothing hides them" in page.text
    content = '<span class="warn">simulated: nothing is hidden in this run</span>'
    assert text.count(content) == simulated
