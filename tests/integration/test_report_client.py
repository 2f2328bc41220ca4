"""The report on one client agrees with the ledger and with the per-client statistics, and stays small however
many clients there are."""

import html
import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import graphfed
from graphfed.cli import main
from graphfed.drawing.canvas import svg_element
from graphfed.errors import InputError
from graphfed.methods.registry import METHODS, get_method
from graphfed.report import charts
from graphfed.report.page import describe_client, write_card, write_report
from graphfed.runs.progress import human_bytes

pytestmark = pytest.mark.slow

SETTINGS: dict[str, Any] = {"data.num_nodes": 60, "data.average_degree": 5}
OPTIONS: dict[str, Any] = {"data": "social", "split": "random:0.5,0.25,0.25", "rounds": 3}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("client") / "run"
    graphfed.run("lumos", **OPTIONS, settings=SETTINGS, out=folder)
    return folder


def section(folder: Path) -> str:
    """The page's part on one client."""
    text = (folder / "report.html").read_text()
    return text[text.index('<section id="client">') : text.index('<section id="audit">')]


def rows(folder: Path) -> dict[str, list[str]]:
    """The table's cells by the name of the transfer."""
    lines = re.findall(r"<tr>(.*?)</tr>", section(folder), re.DOTALL)[1:]
    cells = [[html.unescape(re.sub(r"<[^>]+>", " ", c)) for c in re.findall("<td.*?</td>", x)] for x in lines]
    return {line[1].split()[0]: [cell.strip() for cell in line] for line in cells}


def statistics(folder: Path) -> dict[str, np.ndarray]:
    table = pq.read_table(folder / "clients.parquet")
    return {name: table[name].to_numpy() for name in table.column_names}


def ledger(folder: Path) -> list[dict[str, Any]]:
    entries: list[dict[str, Any]] = json.loads((folder / "ledger.json").read_text())["entries"]
    return entries


def test_every_byte_that_left_the_client_is_in_the_table_under_its_name(run: Path) -> None:
    for client in (0, 17, 59):
        write_report([run], client=client)
        cells_of = rows(run)
        sent: dict[str, int] = {}
        for entry in ledger(run):
            if entry["from"] == "clients" and entry["sent"][client]:
                sent[entry["name"]] = sent.get(entry["name"], 0) + entry["sent"][client]
        assert {"lumos/leaf_embeddings", "model/grad"} <= set(sent)
        assert {name: cells[3] for name, cells in cells_of.items()} == {
            name: human_bytes(amount) for name, amount in sent.items()
        }


def test_receivers_and_messages_are_those_of_the_clients_statistics(run: Path) -> None:
    """Noised bits are sent once to the receivers, embeddings in three rounds to the neighbours in the tree;
    evaluation and prediction send more."""
    columns = statistics(run)
    client = int(np.flatnonzero((columns["receivers"] > 1) & (columns["kept"] > 1))[0])
    write_report([run], client=client)
    cells_of, kept, receivers = rows(run), columns["kept"][client], columns["receivers"][client]
    assert cells_of["lumos/feature_bits"][2] == f"the {receivers} neighbours that have it in their trees"
    assert cells_of["lumos/feature_bits"][4] == str(receivers)
    assert cells_of["lumos/feature_bits"][5] == "ldp(eps=2)"
    assert cells_of["lumos/leaf_embeddings"][2] == f"the {kept} neighbours in its tree"
    times = sum(e["transfers"] for e in ledger(run) if e["name"] == "lumos/leaf_embeddings")
    assert cells_of["lumos/leaf_embeddings"][4] == f"{times * kept}"
    # 64 numbers of 4 bytes in each
    assert cells_of["lumos/leaf_embeddings"][3] == human_bytes(times * kept * 256)
    assert cells_of["lumos/leaf_embeddings/grad"][4] == f"{3 * receivers}"
    assert cells_of["balance/offers"][4].startswith("at most ")
    assert cells_of["model/grad"][2:5:2] == ["the server", "3"]


def test_the_sentences_have_the_figures_of_the_statistics(run: Path) -> None:
    columns = statistics(run)
    for client in (3, 20, 41):
        text = " ".join(describe_client(run, client))
        figures = {name: column[client].item() for name, column in columns.items()}
        assert f"Client {client} has {figures['neighbours']} neighbour" in text
        assert f"Its tree contains {figures['kept']} of them, and the trees of " in text
        assert f" and the trees of {figures['receivers']} of them contain it." in text
        assert f"{figures['comparisons']} comparisons" in text
        assert f"sends {figures['embeddings']} embedding" in text
        if figures["receivers"]:
            assert f"It sent {figures['feature_bits']} noised bits of its features" in text
            epsilons = figures["epsilon"], figures["epsilon_colluding"]
            sentence = "epsilon is {:g} against each receiver alone and {:g} against all receivers together."
            assert sentence.format(*epsilons) in text
    alone = int(np.flatnonzero(columns["receivers"] == 0)[0])
    assert "No neighbour has it in its tree, so it sent no bit" in " ".join(describe_client(run, alone))


def test_unless_one_is_asked_for_the_client_protected_least_is_shown(run: Path) -> None:
    columns = statistics(run)
    write_report([run])
    (shown,) = (int(x) for x in re.findall(r"<p>Client (\d+) has", section(run)))
    most = columns["epsilon_colluding"].max()
    assert columns["epsilon_colluding"][shown] == most
    assert columns["neighbours"][shown] == columns["neighbours"][columns["epsilon_colluding"] == most].max()
    assert "features are protected least" in section(run)
    worst = f"at most 2 against one receiver, and at most {most:g} against all its receivers together"
    assert worst in section(run)
    assert worst in write_card(run).read_text()
    assert section(run).count("<svg") == 2


def test_seeded_noise_is_reported_as_no_protection(run: Path, tmp_path: Path) -> None:
    seeded = tmp_path / "run"
    graphfed.run("lumos", **OPTIONS, settings={**SETTINGS, "noise_seed": 1}, out=seeded)
    client = int(statistics(seeded)["receivers"].argmax())
    text = " ".join(describe_client(seeded, client))
    assert "The noise comes from a seed, so it is simulated and protects nothing" in text
    assert "a seed" not in " ".join(describe_client(run, client))
    write_report([seeded], client=client)
    assert rows(seeded)["lumos/feature_bits"][5] == "simulated: nothing is hidden in this run"


def test_a_client_that_is_not_there_is_refused_and_nothing_is_written(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "page.html"
    for wrong in ("60", "-1"):
        assert main(["report", str(run), "--client", wrong, "--out", str(out)]) == 2
        text = capsys.readouterr().err
        assert text == f"error: the run in {run} has no client {wrong}; give one from 0 to 59\n"
    graphfed.run("fedavg", clients=2, rounds=1, out=tmp_path / "other")
    assert main(["report", str(tmp_path / "other"), "--client", "0", "--out", str(out)]) == 2
    assert "has no statistics of single clients (clients.parquet)" in capsys.readouterr().err
    assert not out.exists()
    assert '<section id="client">' not in write_report([tmp_path / "other"]).read_text()
    assert main(["report", str(run), "--client", "7", "--out", str(out)]) == 0
    text = capsys.readouterr().out.splitlines()
    assert text[0].startswith("Client 7 has ")
    assert text[-1] == f"report: {out}"


def test_statistics_that_are_damaged_or_of_another_run_are_refused(run: Path, tmp_path: Path) -> None:
    copy = tmp_path / "run"
    shutil.copytree(run, copy)
    whole = pq.read_table(copy / "clients.parquet")
    names = pa.array([str(k) for k in range(60)])
    for wrong in (whole.slice(1), whole.drop_columns(["client"]), whole.append_column("name", names)):
        pq.write_table(wrong, copy / "clients.parquet")
        with pytest.raises(InputError, match="a row of numbers for each of 60 clients"):
            write_report([copy])
    (copy / "clients.parquet").write_bytes(b"x" * 99)
    with pytest.raises(InputError, match=r"clients\.parquet cannot be read"):
        write_report([copy])


def test_a_comparison_shows_the_client_of_its_rows_that_have_statistics(tmp_path: Path) -> None:
    folder = tmp_path / "table"
    graphfed.compare(
        ["lumos", "isolated"], **{**OPTIONS, "rounds": 1}, settings=SETTINGS, seeds=(0,), out=folder
    )
    write_report([folder], client=5)
    assert re.findall(r"<p>Client (\d+) has", section(folder)) == ["5"]
    assert describe_client(folder, 5)[0].startswith("Client 5 has ")


def test_the_page_of_three_thousand_clients_is_hardly_larger_than_that_of_sixty(
    run: Path, tmp_path: Path
) -> None:
    graphfed.run(
        "lumos", **{**OPTIONS, "rounds": 1}, settings={"data.num_nodes": 3000}, out=tmp_path / "many"
    )
    sizes = [write_report([folder]).stat().st_size for folder in (run, tmp_path / "many")]
    assert sizes[1] < 2 * sizes[0]
    assert "accuracy of each site" not in (tmp_path / "many/report.html").read_text()


def test_charts_of_many_clients_draw_a_limited_number_of_points() -> None:
    random = np.random.default_rng(0)
    small, large = (
        svg_element("title", [[charts._cumulative({"one": random.exponential(size=n)}, "x")]])
        for n in (charts.POINTS, 100_000)
    )
    assert len(large) < 1.5 * len(small)
    dots = [
        svg_element("title", [[charts._client_dots({"one": {str(k): (0.5, k) for k in range(n)}})]])
        for n in (charts.DOTS, 20 * charts.DOTS)
    ]
    assert len(dots[1]) < 1.1 * len(dots[0])


@pytest.mark.parametrize("name", METHODS)
def test_the_recipients_of_a_method_are_columns_of_its_statistics_and_of_transfers_that_it_has(
    name: str,
) -> None:
    method = get_method(name)
    assert set(method.sends.recipients) <= set(method.sends.messages)
    assert method.client_statistics is not None or not method.sends.recipients
    assert set(method.sends.recipients.values()) <= {"neighbours", "kept", "receivers"}
