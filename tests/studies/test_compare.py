"""Methods side by side: same splits or no table, the reference rows always, honest statistics."""

import csv
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import graphfed
from graphfed.data.graphs.graph import make_graph
from graphfed.errors import GraphfedError, InputError
from graphfed.methods.references import REFERENCES
from graphfed.runs.run import Result
from graphfed.studies import plan as module
from graphfed.studies.compare import compare
from graphfed.studies.comparison import Comparison, comparison_of
from graphfed.tasks.run_config import RunConfig


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Comparison:
    """fedprox beside the references, two seeds."""
    folder = tmp_path_factory.mktemp("compared") / "table"
    return compare(
        ["fedprox"], clients=3, rounds=2, seeds=(0, 1), settings={"mu": 0.1}, threads=1, out=folder
    )


def shown(comparison: Comparison, width: int = 200) -> str:
    """The table as a terminal of this width shows it."""
    from rich.console import Console

    screen = Console(file=io.StringIO(), width=width)
    screen.print(comparison.table())
    return screen.file.getvalue()


def test_the_reference_rows_are_added_and_said_to_be(table: Comparison) -> None:
    assert [row["label"] for row in table.rows] == ["fedprox", *REFERENCES["classification"]]
    assert table.added == ("central", "isolated", "fedavg")
    assert "added for reference: central, isolated, fedavg" in shown(table)


def test_references_that_were_asked_for_are_not_added_again() -> None:
    asked = compare(["local", "central", "fedavg"], clients=2, rounds=1, seeds=(0,), out=False)
    assert [row["method"] for row in asked.rows] == ["isolated", "central", "fedavg"]
    assert asked.added == ()


def test_mean_and_sample_deviation_are_those_of_the_values(table: Comparison) -> None:
    for row in table.rows:
        for metric in ("accuracy", "macro_f1", "loss"):
            statistic = row["test"][metric]
            assert len(statistic["values"]) == 2
            assert statistic["mean"] == pytest.approx(sum(statistic["values"]) / 2)
            # Two values: the sample deviation is their distance over sqrt(2).
            assert statistic["std"] == pytest.approx(
                abs(statistic["values"][0] - statistic["values"][1]) / np.sqrt(2)
            )


def test_one_seed_has_deviation_zero() -> None:
    one = compare(["fedavg"], clients=2, rounds=1, seeds=[4], out=False)
    assert {row["test"]["accuracy"]["std"] for row in one.rows} == {None}


def test_every_row_has_the_same_hashes_for_each_seed_and_seeds_differ(table: Comparison) -> None:
    first = table.rows[0]["hashes"]
    assert all(row["hashes"] == first for row in table.rows)
    assert len(set(first["data"])) == 1
    assert len(set(first["split"])) == len(set(first["partition"])) == 2


def test_a_row_is_what_the_single_runs_give(table: Comparison) -> None:
    alone = graphfed.run("fedprox", clients=3, rounds=2, seed=1, mu=0.1, out=False)
    row = table.rows[0]
    assert row["test"]["accuracy"]["values"][1] == alone.test["accuracy"]
    assert row["changed_settings"] == alone.details["changed_settings"] == {"rounds": 2, "mu": 0.1}
    assert row["bytes"]["values"][1] == alone.bytes["total"]


def test_the_folder_has_a_whole_run_for_each_row_and_seed_and_the_table(table: Comparison) -> None:
    assert table.folder is not None
    names = {p.name for p in table.folder.iterdir()}
    assert names == {"comparison.json", "manifest.json"} | {
        f"{row['label']}-seed{s}" for row in table.rows for s in (0, 1)
    }
    content = json.loads((table.folder / "comparison.json").read_text())
    assert content == table.to_json()
    for row in content["rows"]:
        assert set(row) >= {"method", "seeds", "test", "hashes", "bytes", "seconds"}
        assert row["seeds"] == [0, 1]


def test_the_table_on_screen_shows_every_row_its_spread_and_its_cost(table: Comparison) -> None:
    text = shown(table)
    for row in table.rows:
        accuracy = row["test"]["accuracy"]
        assert row["label"] in text
        assert f"{100 * accuracy['mean']:.1f} ± {100 * accuracy['std']:.1f}" in text
    for column in ("bytes", "time", "2 rounds", "macro f1"):
        assert column in text
    assert "every row differs from the default settings in rounds=2 " in text
    assert "fedprox*" in text
    assert "\n* fedprox: mu=0.1" in text
    assert "fedavg*" not in text


@pytest.mark.parametrize("labels", [("fedprox",), ("a label that is longer than any screen would like",)])
def test_the_table_fits_80_columns_with_every_number_whole(table: Comparison, labels: tuple[str]) -> None:
    rows = [{**row, "label": labels[0] + str(i), "rounds": [i, 100]} for i, row in enumerate(table.rows)]
    text = shown(table.model_copy(update={"rows": tuple(rows)}), width=80)
    assert max(len(line) for line in text.splitlines()) <= 80
    assert "…" not in text
    assert "0-100" in text
    for row in rows:
        accuracy = row["test"]["accuracy"]
        assert f"{100 * accuracy['mean']:.1f} ± {100 * accuracy['std']:.1f}" in text


def test_no_row_is_marked_where_all_share_the_default_settings(table: Comparison) -> None:
    rows = tuple({**row, "changed_settings": {}} for row in table.rows)
    assert "*" not in shown(table.model_copy(update={"rows": rows}))


def test_a_setting_goes_to_the_methods_that_have_it() -> None:
    mixed = compare(
        [{"method": "fedgcn", "label": "one hop", "settings": {"hops": 1}}, "fedgcn"],
        clients=2,
        rounds=1,
        seeds=(0,),
        settings={"fedavg.lr": 0.1, "fraction": 1.0, "dropout": 0.2},
        out=False,
    )
    changed = {row["label"]: row["changed_settings"] for row in mixed.rows}
    assert changed["one hop"] == {"rounds": 1, "dropout": 0.2, "hops": 1}
    assert changed["fedgcn"] == {"rounds": 1, "dropout": 0.2}
    assert changed["fedavg"] == {"rounds": 1, "dropout": 0.2, "lr": 0.1}


# ---- refusals ----


@pytest.mark.parametrize(
    ("methods", "options", "message"),
    [
        ([], {}, "no method was given"),
        ("fedavg", {}, "give a list"),
        (["fedavgg"], {}, "did you mean 'fedavg'"),
        (["local", "isolated"], {}, "two rows are called 'isolated'"),
        ([{"method": "fedavg", "lable": "x"}], {}, "did you mean 'label'"),
        ([{"method": "fedavg", "label": "../x"}], {}, "cannot name a folder"),
        ([{"method": "fedavg", "label": "x" * 201}], {}, "cannot name a folder"),
        ([{"method": "fedavg", "label": "a\nb"}], {}, "cannot name a folder"),
        ([{"label": "x"}], {}, "needs a method"),
        ([{"method": ["fedavg"]}], {}, "needs a method"),
        (5, {}, "give a list"),
        (["fedavg"], {"seeds": "0,1"}, "seeds='0,1' cannot be used"),
        (["fedavg"], {"seeds": ["0"]}, "seed='0' cannot be used"),
        (["fedavg"], {"seeds": [0.5]}, "seed=0.5 cannot be used"),
        (["fedavg"], {"seed": 0}, "give seeds=[0, 1, 2] instead of seed"),
        ([5], {}, "a row of type int cannot be used"),
        ([None], {}, "a row of type NoneType cannot be used"),
        ({"fedavg"}, {}, "methods=set cannot be used; give a list"),
        (["fedavg"], {"settings": 5}, "settings of type int cannot be used"),
        (["fedavg"], {"settings": {"data-dir": 3}}, "it is an option of its own: --data-dir"),
        (["fedavg"], {"lr": 1, "settings": {"lr": 1}}, "lr is given twice"),
        (["fedavg"], {"out": 5}, "out of type int cannot be used"),
        (["fedavg"], {"seeds": 5}, "seeds=5 cannot be used; give a list of whole numbers"),
        (["fedavg"], {"seeds": ([n] for n in range(2))}, "cannot be used; give a list of whole numbers"),
        (["fedavg"], {"seeds": ["one"]}, "seed='one'"),
        (["fedavg"], {"seeds": ()}, "no seed"),
        (["fedavg"], {"seeds": (1, 1)}, "twice"),
        (["fedavg"], {"seeds": (-1,)}, "seed=-1"),
        (["fedavg"], {"settings": {"hops": 1}}, "no method of this comparison has a setting 'hops'"),
        (["fedavg"], {"settings": {"mu": 1}}, "mu=1 cannot be used with rule=fedavg"),
        (["fedavg"], {"settings": {"fedprox.mu": 1}}, "fedprox is not in this comparison"),
        (["fedavg"], {"settings": {"fedavg.mu": 1}}, "mu=1 cannot be used with rule=fedavg"),
        (["fedavg"], {"settings": {"fedavg.hops": 1}}, "fedavg has no setting 'hops'"),
        (["fedavg"], {"clients": 5000}, "cannot be partitioned among 5000 clients"),
        (["fedavg", {"method": "fedgcn", "clients": 4}], {"clients": 3}, "partition hashes differ"),
        (["fedavg", {"method": "fedgcn", "partition": "random"}], {}, "partition hashes differ"),
        (["fedavg", {"method": "fedgcn", "split": "random:0.5,0.2,0.3"}], {}, "split hashes differ"),
        (
            ["fedavg", {"method": "fedgcn", "data": "social", "split": "random:0.5,0.2,0.3"}],
            {"split": "random:0.5,0.2,0.3"},
            "data hashes differ",
        ),
    ],
)
def test_a_table_that_cannot_be_is_refused_before_anything_runs(
    methods: Any, options: dict[str, Any], message: str, own_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("graphfed.studies.plan.execute", None)
    with pytest.raises(InputError) as refusal:
        compare(methods, **{"rounds": 1, **options})
    assert message in str(refusal.value)
    assert list(own_folder.iterdir()) == []


@pytest.mark.parametrize("failure", [InputError, RuntimeError, KeyboardInterrupt])
def test_a_failure_in_a_later_run_leaves_the_finished_runs_whole_and_nothing_half_written(
    failure: type[BaseException], own_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = module.execute

    def second_fails(*args: Any, **kwargs: Any) -> Result:
        if list(own_folder.rglob("result.json")):
            (own_folder / "table" / "foreign").write_text("x")
            raise failure("stop")
        return real(*args, **kwargs)

    monkeypatch.setattr(module, "execute", second_fails)
    with pytest.raises(failure):
        compare(["fedavg"], clients=2, rounds=1, seeds=(0, 1), out=own_folder / "table")
    assert {p.name for p in (own_folder / "table").iterdir()} == {"fedavg-seed0", "foreign", "manifest.json"}
    assert Result.read(own_folder / "table" / "fedavg-seed0").method == "fedavg"


def test_a_run_that_fails_is_named_and_the_others_go_on(
    own_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = module.execute

    def fedavg_fails(config: RunConfig, *args: Any, **kwargs: Any) -> Result:
        if config.method.name == "fedavg":
            raise GraphfedError(f"training diverged in run {config.seed}")
        return real(config, *args, **kwargs)

    options: dict[str, Any] = {"clients": 2, "rounds": 1, "seeds": (0, 1), "out": own_folder / "table"}
    with monkeypatch.context() as patch:
        patch.setattr(module, "execute", fedavg_fails)
        with pytest.raises(
            GraphfedError, match=r"^fedavg, seed 0 failed: training diverged in run 0"
        ) as error:
            compare(["fedavg"], **options)
    assert str(error.value).endswith("; these failed, too: fedavg, seed 1")
    assert len(list(own_folder.rglob("result.json"))) == 4
    assert not (own_folder / "table/comparison.json").exists()
    assert len(graphfed.resume(own_folder / "table").rows) == 3


def test_a_failure_in_the_first_run_leaves_no_folder(
    own_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise InputError("stop")

    monkeypatch.setattr(module, "execute", fail)
    for out in (None, "deep/table"):
        with pytest.raises(InputError, match="stop"):
            compare(["fedavg"], clients=2, rounds=1, out=out)
    assert list(own_folder.iterdir()) == []


def test_two_comparisons_never_share_a_folder_and_the_first_keeps_its_runs(
    own_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = module.execute
    refused = []

    def run_another_meanwhile(*args: Any, **kwargs: Any) -> Result:
        with monkeypatch.context() as patch:
            patch.setattr(module, "execute", real)
            with pytest.raises(InputError, match="has not ended") as refusal:
                compare(["fedprox"], clients=2, rounds=1, seeds=(0,), out=own_folder / "table")
        refused.append(refusal)
        return real(*args, **kwargs)

    monkeypatch.setattr(module, "execute", run_another_meanwhile)
    compare(["fedavg"], clients=2, rounds=1, seeds=(0,), out=own_folder / "table")
    assert len(refused) == 3
    runs = {"fedavg-seed0", "central-seed0", "isolated-seed0"}
    assert {p.name for p in (own_folder / "table").iterdir()} == {"comparison.json", "manifest.json", *runs}


def test_a_name_in_square_brackets_is_shown_as_it_is(table: Comparison) -> None:
    rows = tuple({**row, "label": f"[/{row['label']}]"} for row in table.rows)
    text = shown(table.model_copy(update={"dataset": "[/red]", "rows": rows}))
    assert "[/red]: 3 clients" in text
    assert "[/fedprox]*" in text


# ---- finished runs ----


def test_finished_runs_make_the_same_table_as_compare(table: Comparison) -> None:
    assert table.folder is not None
    again = comparison_of(sorted(p for p in table.folder.iterdir() if p.is_dir()))
    assert {row["label"]: row for row in again.rows} == {row["label"]: row for row in table.rows}
    assert again.missing == ()


def test_runs_with_different_partitions_are_refused_and_both_hashes_named(finished: Result) -> None:
    other = finished.model_copy(
        update={"method": "fedgcn", "hashes": {**finished.hashes, "partition": "0123456789abcdef"}}
    )
    with pytest.raises(InputError) as refusal:
        comparison_of([finished, other])
    assert finished.hashes["partition"][:12] in str(refusal.value)
    assert "0123456789ab" in str(refusal.value)


def test_a_table_of_finished_runs_says_which_references_it_lacks(finished: Result) -> None:
    few = comparison_of([finished])
    assert few.missing == ("central", "isolated")
    assert "reference rows missing here: central, isolated" in shown(few)


def test_runs_of_one_method_with_other_settings_get_rows_of_their_own(finished: Result) -> None:
    other = finished.model_copy(update={"details": {**finished.details, "changed_settings": {"lr": 0.1}}})
    rows = comparison_of([finished, other]).rows
    assert [row["label"] for row in rows] == ["fedavg (rounds=3)", "fedavg (lr=0.1)"]


def test_rows_with_other_seeds_and_runs_given_twice_are_refused(finished: Result) -> None:
    other = finished.model_copy(update={"method": "fedgcn", "seed": 7})
    with pytest.raises(InputError, match="the same seeds in every row"):
        comparison_of([finished, other])
    other = finished.model_copy(update={"seed": 7, "test": {**finished.test, "more": 0.5}})
    with pytest.raises(InputError, match=r"have different test metrics \('more'\)"):
        comparison_of([finished, other])
    with pytest.raises(InputError, match="is given twice"):
        comparison_of([finished, finished])
    with pytest.raises(InputError, match="nothing was given to compare"):
        comparison_of([])


def test_a_folder_that_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"result\.json cannot be read"):
        comparison_of([tmp_path])
    (tmp_path / "result.json").write_text("{}")
    with pytest.raises(InputError, match="it has no 'method'"):
        comparison_of([tmp_path])


@pytest.mark.parametrize("methods", [["fedgcn", "fedavg"], ["fedavg", "fedgcn"]])
def test_a_row_whose_method_cannot_use_the_partition_is_refused_wherever_it_stands(
    methods: list[str],
) -> None:
    with pytest.raises(InputError, match="fedgcn needs every node at exactly one client"):
        graphfed.compare(methods, clients=3, partition="edges_uniform", rounds=1, seeds=(0,), out=False)


def test_csv_and_latex_have_every_row_and_names_are_escaped(table: Comparison, tmp_path: Path) -> None:
    row = {**table.rows[0], "label": "a_b & <c>\\%"}
    named = table.model_copy(update={"rows": (row, *table.rows[1:])})
    text = named.to_csv()
    assert text is not None
    lines = list(csv.DictReader(io.StringIO(text)))
    assert [line["label"] for line in lines] == [row["label"] for row in named.rows]
    assert float(lines[0]["accuracy.mean"]) == row["test"]["accuracy"]["mean"]
    assert float(lines[0]["accuracy.std"]) == row["test"]["accuracy"]["std"]
    assert named.to_csv(tmp_path / "table.csv") is None
    assert (tmp_path / "table.csv").read_text() == text
    latex = named.to_latex().splitlines()
    assert (latex[1], latex[3], latex[-2]) == (r"\toprule", r"\midrule", r"\bottomrule")
    assert len(latex) == 6 + len(named.rows)
    assert latex[4].startswith(r"a\_b \& \textless{}c\textgreater{}\textbackslash{}\%")
    # Every line has the cells that the tabular declares.
    columns = len(latex[0].removeprefix(r"\begin{tabular}{").removesuffix("}"))
    assert {line.replace(r"\&", "").count("&") + 1 for line in (latex[2], *latex[4:-2])} == {columns}
    assert "<c>" not in named._repr_html_()
    # The caption on the screen has one more.
    assert shown(table).count("±") == table.to_latex().count(r"$\pm$") + 1


def test_a_plot_shows_mean_and_deviation_of_every_row(table: Comparison) -> None:
    (axes,) = table.plot().axes
    assert [
        line.get_xdata()[0] for line in axes.lines if len(line.get_xdata()) == 1 and line.get_marker() != "|"
    ] == [row["test"]["accuracy"]["mean"] for row in table.rows]
    with pytest.raises(InputError, match="no test metric 'acc'"):
        table.plot("acc")


@pytest.mark.slow
def test_runs_in_several_processes_give_the_table_and_the_files_of_runs_in_one(
    table: Comparison, tmp_path: Path
) -> None:
    several = compare(
        ["fedprox"], clients=3, rounds=2, seeds=(0, 1), settings={"mu": 0.1}, threads=1, jobs=2,
        out=tmp_path / "table",
    )  # fmt: skip
    for one, other in zip(table.rows, several.rows, strict=True):
        assert (one["label"], one["test"], one["hashes"]) == (other["label"], other["test"], other["hashes"])
    assert table.folder is not None
    assert {path.name for path in (tmp_path / "table").iterdir()} == {
        path.name for path in table.folder.iterdir()
    }


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"jobs": 0}, "jobs=0 cannot be used"),
        ({"jobs": 2, "out": False}, "jobs needs a folder"),
        ({"jobs": 2, "data": make_graph("own", np.eye(4), np.arange(4) % 2, np.zeros((2, 0)))}, "an object"),
    ],
)
def test_processes_that_could_not_make_the_runs_are_refused_before_anything_is_written(
    asked: dict[str, Any], message: str, own_folder: Path
) -> None:
    with pytest.raises(InputError, match=message):
        compare(["fedavg"], clients=2, rounds=1, **asked)
    assert not [*own_folder.iterdir()]
