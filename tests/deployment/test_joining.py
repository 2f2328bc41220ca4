"""What sites say of themselves before a deployed run, and what does not go together."""

import copy
import dataclasses
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from fake_plugins import METHOD, forget_plugins, install, write
from hypothesis import given
from hypothesis import strategies as st

from graphfed.data.datasets import load
from graphfed.data.graphs.splits import make_split
from graphfed.data.partitions.partition import partition
from graphfed.data.sensors.windows import TimeSplit
from graphfed.deployment import participant
from graphfed.deployment.deploy import deploy, request
from graphfed.deployment.participant import _accept_agreed, _accepted, _agree, _check_same, _data_digest
from graphfed.errors import InputError
from graphfed.federation import Federation
from graphfed.federation.cohort import make_cohort, save_cohort
from graphfed.federation.series import Network
from graphfed.files import write_json
from graphfed.methods.registry import get_method
from graphfed.nn.edges import make_edges
from graphfed.plugins import code_digest
from graphfed.runs.config import make_config
from graphfed.runs.folder import open_folder
from graphfed.runs.run import load_inputs
from graphfed.runtime.nvflare.place import Place, this_place
from graphfed.runtime.nvflare.project import Project, Site
from graphfed.tasks.graphs.client_data import ClientData
from graphfed.tasks.graphs.kind import GRAPHS
from graphfed.tasks.graphs.schema import Schema
from graphfed.tasks.sensors.kind import SENSORS, schema_of

__all__ = ["forget_plugins"]

SITES = ("north", "south")
SCHEMA = Schema(("age", "income"), ("no", "yes"), False, "id", "column")


def reports(**changed: Any) -> list[dict[str, Any]]:
    """What two sites say; `changed` is what the second one says otherwise."""
    said = {
        "versions": participant.versions("fedavg"),
        "python": "3.11",
        "clients": 1,
        "declared": {"train": [5], "val": [2], "test": [3]},
        "schema": SCHEMA.to_json(),
        "config": "c",
        "data": "d",
        "clock": 0.1,
        "rounds": [],
    }
    return [copy.deepcopy(said), copy.deepcopy({**said, **changed})]


def agree(arguments: list[dict[str, Any]], first: tuple[int, ...] = ()) -> dict[str, Any]:
    return _agree(arguments, SITES, (1, 1), participant.versions("fedavg"), "c", first, GRAPHS.agree, None)


@pytest.mark.parametrize(
    ("method", "task", "said"),
    [
        ("fedavg", "forecasting", "fedavg cannot do task 'forecasting'; choose cnfgnn"),
        ("fedavg", "clasification", "unknown task 'clasification'; did you mean 'classification'"),
        ("lumos", "link_prediction", "link prediction cannot be deployed"),
    ],
)
def test_a_task_that_is_not_trained_is_refused(method: str, task: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=said):
        deploy(method, task=task, startup_kit=tmp_path)


def test_sites_that_go_together_agree_on_the_form_of_the_data() -> None:
    expected = {"num_features": 2, "num_classes": 2, "owners_known": False, "start": None}
    expected |= {"edge_features": 0, "directed": False}
    assert agree(reports()) == expected


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (
            {"versions": {**participant.versions("fedavg"), "graphfed": "9.9"}},
            "south has graphfed 9.9 and the server",
        ),
        (
            {"versions": {**participant.versions("fedavg"), "torch": "1.0"}},
            "south has torch 1.0 and the server",
        ),
        ({"versions": {}}, "south has graphfed None and the server"),
        ({"config": "other"}, "south understands the settings of the run differently"),
        ({"clock": -3600.0}, "the clock of south differs by -3600 s from that of the server"),
        ({"clients": 2}, "south holds 2 clients and the project says 1"),
        (
            {"schema": Schema(("age",), ("no", "yes"), False, "id", "column").to_json()},
            "client 'north' has 2 features and client 'south' has 1",
        ),
        (
            {"schema": Schema(("age", "income"), ("yes", "no"), False, "id", "column").to_json()},
            "the classes are [no, yes] at client 'north' and [yes, no] at client 'south'",
        ),
        ({"schema": {"feature_names": ["age"]}}, "the schema that south sent must have"),
        *[
            (
                {key: value},
                f"the report with which south joined cannot be used: {key!r} is missing or has the wrong",
            )
            for key, value in (
                ("versions", ["9.9"]),
                ("declared", {"train": [-1]}),
                ("declared", {"train": [1, 1]}),
                ("declared", {"train": [1e30]}),
                ("declared", {"everything": [1]}),
                ("schema", "none"),
                ("config", None),
                ("data", "d" * 2000),
                ("clock", "late"),
                ("rounds", [True]),
                ("rounds", "all"),
            )
        ],
    ],
)
def test_what_does_not_go_together_is_named(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as refusal:
        agree(reports(**changed))
    assert message in str(refusal.value)


def test_readings_that_do_not_go_together_are_named() -> None:
    split = TimeSplit("time", 4, 3, 1, 10, 2, 4, np.ones(2, dtype=bool))
    edges = make_edges(sp.identity(2, format="csr", dtype=np.float32))
    network = Network(edges, 0, 5, split)
    said = schema_of(network, 22).to_json()
    agreed = {"owners_known": True, "readings": said}
    for server in (network, edges):
        assert SENSORS.agree({"north": said, "south": dict(said)}, server) == agreed
    content = SENSORS.server_part(edges, agreed)
    assert (schema_of(content, 22).to_json(), content.split.observed.all()) == (said, True)
    for key, value in {"steps": 21, "first_minute": 5, "lags": 3, "test": 5}.items():
        with pytest.raises(
            InputError, match=f"{key} of the readings is {value} at south and .* at the server"
        ):
            SENSORS.agree({"north": said, "south": {**said, key: value}}, network)
    with pytest.raises(InputError, match="step_minutes of the readings is 10 at north and 5 at the server"):
        SENSORS.agree({"north": {**said, "step_minutes": 10}}, network)
    with pytest.raises(InputError, match="start of the readings is '2024' at south and '' at north"):
        SENSORS.agree({"north": said, "south": {**said, "start": "2024"}}, edges)
    for wrong in ({}, {"steps": "many"}, {**said, "steps": "many"}):
        with pytest.raises(InputError, match="the description of readings that north sent cannot be used"):
            SENSORS.agree({"north": wrong}, network)


def test_a_site_refuses_an_agreement_that_does_not_say_where_the_run_begins() -> None:
    report = reports(rounds=[0])[1]
    agreed = agree(reports())
    assert _accept_agreed(GRAPHS, report, agreed) == ""
    del agreed["start"]
    assert "no 'start' where a round" in _accept_agreed(GRAPHS, report, agreed)


@given(st.sets(st.integers(1, 9)), st.sets(st.integers(1, 9)), st.sets(st.integers(1, 9)))
def test_all_places_go_on_from_the_newest_round_that_all_have(
    server: set[int], north: set[int], south: set[int]
) -> None:
    content = reports(rounds=sorted(south, reverse=True))
    content[0]["rounds"] = sorted(north, reverse=True)
    common = server & north & south
    assert agree(content, tuple(server))["start"] == (max(common) if common else None)


def test_a_method_of_another_module_runs_only_where_its_operator_allows_it(tmp_path: Path) -> None:
    asked = {"method": "evil", "plugin": {"module": "os", "version": "1"}}
    with pytest.raises(InputError, match=r"north does not run methods of 'os'.*--allow os"):
        _accepted(asked, Place("north", tmp_path))
    method, config = _accepted(asked_for("fedavg"), Place("north", tmp_path))
    assert (method.name, config.run.rounds) == ("fedavg", 7)


def test_a_plug_in_s_method_runs_only_where_the_operator_names_it_or_its_module(tmp_path: Path) -> None:
    """A refusal comes before any code of the plug-in runs, and says what the operator can do."""
    write("mild_method", METHOD.format(name="mild"))
    install("graphfed-mild", "1.5", methods={"mild": "mild_method:METHOD"})
    plugin = {"distribution": "graphfed-mild", "version": "1.5", "sha256": code_digest("mild_method")}
    asked = {**asked_for("mild"), "plugin": plugin}
    with pytest.raises(
        InputError, match=r"north does not run the method 'mild' of .*graphfed-mild 1\.5"
    ) as refusal:
        _accepted(asked, Place("north", tmp_path, methods=("fedavg",), allow=("mild",)))
    assert "site start ... --methods mild', or the whole plug-in with --allow mild_method" in str(
        refusal.value
    )
    assert "mild_method" not in sys.modules
    assert _accepted(asked, Place("north", tmp_path, methods=("mild",)))[0].name == "mild"
    assert _accepted(asked, Place("north", tmp_path, allow=("mild_method",)))[0].name == "mild"
    with pytest.raises(InputError, match="north refuses runs of 'mild': its operator allows only fedavg"):
        _accepted(asked, Place("north", tmp_path, methods=("fedavg",), allow=("mild_method",)))


#: A rule, and two methods with it: one in the same module, one that names it from another module.
RULE = """
import dataclasses
import graphfed.method as gm
RULE = dataclasses.replace(gm.RULES["fedavg"], name="sly")
METHOD = dataclasses.replace(gm.FEDAVG, name="slyavg", offers={"rule": ("sly",)})
"""
BORROWER = """
import dataclasses
import graphfed.method as gm
METHOD = dataclasses.replace(gm.FEDAVG, name="borrower", offers={"rule": ("sly",)})
"""


def test_a_rule_of_a_plug_in_runs_only_as_a_method_of_the_same_module(tmp_path: Path) -> None:
    """No code of the plug-in runs for a request that names its rule, nor for any other."""
    write("sly_rule", RULE)
    write("borrower_method", BORROWER)
    install("graphfed-sly", rules={"sly": "sly_rule:RULE"}, methods={"slyavg": "sly_rule:METHOD"})
    install("graphfed-borrower", methods={"borrower": "borrower_method:METHOD"})
    borrower = {
        "distribution": "graphfed-borrower",
        "version": "1.0",
        "sha256": code_digest("borrower_method"),
    }
    place = Place("north", tmp_path, methods=("fedgcn", "borrower"))
    for asked in (asked_for("fedgcn", rule="sly"), {**asked_for("borrower"), "plugin": borrower}):
        for allowed in (place, dataclasses.replace(place, rehearsal=True)):
            with pytest.raises(
                InputError, match=r"north refuses the run: rule='sly' .*a method of the same module"
            ):
                _accepted(asked, allowed)
    with pytest.raises(InputError, match=r"rule='none_such' cannot be used: choose one of: fedavg, .*"):
        _accepted(asked_for("fedgcn", rule="none_such"), place)
    with pytest.raises(InputError, match="rule=list cannot be used: expected the name of a rule"):
        _accepted(asked_for("fedgcn", rule=["sly"]), place)
    method, config = _accepted(asked_for("fedgcn", rule="fedprox", mu=0.5), place)
    assert method.tree.listed(config)["mu"] == 0.5
    assert "sly_rule" not in sys.modules

    asked = {**asked_for("slyavg"), "plugin": {**borrower, "sha256": code_digest("sly_rule")}}
    method, config = _accepted(asked, Place("north", tmp_path, methods=("slyavg",)))
    assert (method.name, config.rule) == ("slyavg", "sly")
    with pytest.raises(InputError, match=r"rule='sly' .* write in sly_rule: METHOD = dataclasses.replace"):
        deploy("fedgcn", startup_kit=tmp_path, rule="sly")


def test_a_site_without_a_plug_in_says_which_to_install(tmp_path: Path) -> None:
    asked = {**asked_for("mild"), "plugin": {"distribution": "graphfed-mild", "version": "1.5"}}
    place = Place("north", tmp_path, methods=("mild",), allow=("graphfed",))
    with pytest.raises(
        InputError, match=r"north has no method 'mild'; its operator can install the plug-in"
    ) as refusal:
        _accepted(asked, place)
    assert "'graphfed-mild 1.5'" in str(refusal.value)


def test_a_module_of_the_operator_s_own_runs_under_the_name_that_it_declares(tmp_path: Path) -> None:
    """A coordinator cannot give it another name, nor its name to another module."""
    write("mild_method", METHOD.format(name="mild"))
    sys.path.append(str(Path("modules").resolve()))
    given = {"module": "mild_method", "version": "sha256:0", "sha256": code_digest("mild_method")}
    place = Place("north", tmp_path, allow=("mild_method",))
    assert _accepted({**asked_for("mild"), "plugin": given}, place)[0].name == "mild"
    with pytest.raises(
        InputError, match=r"north has no method 'wild'; .* the plug-in 'mild_method sha256:0'"
    ):
        _accepted({**asked_for("wild"), "plugin": given}, place)
    # A method of graphfed's own is graphfed's, whatever the message says of it.
    method, _ = _accepted({**asked_for("fedavg"), "plugin": given}, place)
    assert method.name == "fedavg"


def test_the_version_of_a_plug_in_is_compared_when_sites_join(tmp_path: Path) -> None:
    install("graphfed-mild", "1.5", methods={"mild": "mild_method:METHOD"})
    here = participant.versions("mild")
    assert here == participant.versions("fedavg") | {"graphfed-mild": "1.5"}
    content = reports(versions={**here, "graphfed-mild": "1.4"})
    content[0]["versions"] = here
    with pytest.raises(
        InputError, match=r"south has graphfed-mild 1\.4 and the server 1\.5; install the same"
    ):
        _agree(content, SITES, (1, 1), here, "c", (), GRAPHS.agree, None)


def asked_for(name: str, **settings: Any) -> dict[str, Any]:
    return {
        "method": name,
        "plugin": None,
        "config": {"rounds": 7, **settings},
        "split": "default",
        "rehearsal": False,
    }


def test_a_site_takes_part_only_in_runs_that_its_operator_accepts(tmp_path: Path) -> None:
    careful = Place("north", tmp_path, methods=("sapgnn",), forbid=("maps=identity", "node_ids=plain"))
    with pytest.raises(InputError, match="north refuses runs of 'fedavg': its operator allows only sapgnn"):
        _accepted(asked_for("fedavg"), careful)
    with pytest.raises(InputError, match="north refuses runs with maps=identity"):
        _accepted(asked_for("sapgnn", maps="identity"), careful)
    with pytest.raises(InputError, match="north refuses runs with node_ids=plain"):
        _accepted(asked_for("sapgnn", node_ids="plain"), careful)
    assert _accepted(asked_for("sapgnn", node_ids="keyed"), careful)[0].name == "sapgnn"


@pytest.mark.parametrize(
    ("name", "settings", "said"),
    [
        ("fedavg", {"aggregation": "secure", "protocols": "simulated"}, "protocols=simulated hides nothing"),
        ("sapgnn", {}, "node_ids=simulated hides nothing"),
        ("lumos", {}, "protocols=simulated hides nothing"),
        ("fedgat_ldp", {"noise_seed": 5}, "noise_seed hides nothing"),
        ("lpgnn", {"noise_seed": 0}, "noise_seed hides nothing"),
        ("central", {}, "central needs the data of all clients in one place"),
    ],
)
def test_a_site_refuses_by_itself_what_hides_nothing_unless_it_was_started_for_a_rehearsal(
    name: str, settings: dict[str, Any], said: str, tmp_path: Path
) -> None:
    asked = asked_for(name, **settings)
    with pytest.raises(InputError, match=f"north refuses the run: {said}"):
        _accepted(asked, Place("north", tmp_path))
    assert _accepted(asked, Place("north", tmp_path, rehearsal=True))[0].name == name


def test_a_site_refuses_a_rehearsal_and_a_split_that_no_participant_can_make(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="north refuses a rehearsal"):
        _accepted({**asked_for("fedavg"), "rehearsal": True}, Place("north", tmp_path))
    with pytest.raises(InputError, match="north refuses the run: split 'inductive' sorts"):
        _accepted({**asked_for("fedavg"), "split": "inductive"}, Place("north", tmp_path))


@pytest.mark.parametrize(
    ("rule", "epsilon", "refused"),
    [("epsilon>1", 1.5, True), ("epsilon>1", 1, False), ("epsilon<1", 0.5, True)],
)
def test_an_operator_limits_a_number(rule: str, epsilon: float, refused: bool, tmp_path: Path) -> None:
    place, asked = Place("north", tmp_path, forbid=(rule,)), asked_for("fedgat_ldp", epsilon=epsilon)
    if refused:
        with pytest.raises(InputError, match=f"north refuses runs with {rule}: its operator forbids"):
            _accepted(asked, place)
    else:
        assert _accepted(asked, place)[0].name == "fedgat_ldp"
    assert _accepted(asked_for("fedavg"), place)[0].name == "fedavg"


def test_a_plug_in_with_other_code_than_the_coordinator_s_is_refused(tmp_path: Path) -> None:
    write("mild_method", METHOD.format(name="mild"))
    install("graphfed-mild", "1.5", methods={"mild": "mild_method:METHOD"})
    plugin = {"distribution": "graphfed-mild", "version": "1.5", "sha256": code_digest("mild_method")}
    place = Place("north", tmp_path, methods=("mild",))
    assert len(plugin["sha256"]) == 64
    assert "mild_method" not in sys.modules
    with pytest.raises(InputError, match=r"north has other code of the plug-in graphfed-mild 1\.5 than"):
        _accepted({**asked_for("mild"), "plugin": {**plugin, "sha256": "0" * 64}}, place)
    assert "mild_method" not in sys.modules
    assert _accepted({**asked_for("mild"), "plugin": plugin}, place)[0].name == "mild"


def test_a_run_of_the_same_name_with_other_arguments_is_refused(tmp_path: Path) -> None:
    asked = {**asked_for("fedavg", aggregation="secure"), "run": "run-1", "wait": 30.0}
    _check_same(tmp_path / "run-1", asked)
    write_json(tmp_path / "run-1" / "manifest.json", {"asked": asked})
    _check_same(tmp_path / "run-1", {**asked, "wait": 5.0, "stamp": "1"})
    with pytest.raises(InputError, match="dtype is 'float64' instead of None; start a new run"):
        _check_same(tmp_path / "run-1", {**asked, "dtype": "float64"})
    with pytest.raises(InputError, match=r"config\.aggregation is 'plaintext' instead of 'secure'; start"):
        _check_same(tmp_path / "run-1", {**asked, **asked_for("fedavg", aggregation="plaintext")})


@pytest.mark.parametrize(
    ("rule", "setting", "forbidden"),
    [
        ("lr=.250", {"lr": 0.25}, True),
        ("lr=.250", {"lr": 0.5}, False),
        ("hidden=016", {"hidden": 16}, True),
        ("optimizer=ADAM", {"optimizer": "adam"}, True),
        ("patience=none", {"patience": None}, True),
        ("patience=none", {"patience": 3}, False),
        ("maps=none", {}, False),  # which fedavg lacks
        ("protocols=simulated", {"aggregation": "secure", "protocols": "simulated"}, True),
        ("protocols=simulated", {"aggregation": "secure"}, False),
    ],
)
def test_a_forbidden_value_is_compared_as_a_value_and_not_as_a_text(
    rule: str, setting: dict[str, Any], forbidden: bool, tmp_path: Path
) -> None:
    place = Place("north", tmp_path, forbid=(rule,))
    if not forbidden:
        assert _accepted(asked_for("fedavg", **setting), place)[0].name == "fedavg"
        return
    with pytest.raises(InputError, match=f"north refuses runs with {rule}"):
        _accepted(asked_for("fedavg", **setting), place)


def one_site(folder: Path) -> tuple[dict[str, Any], Place]:
    """What is asked of a site with all clients of a project, and the site, which is the server too."""
    save_cohort(site_data().cohort, folder / "data.safetensors")
    method, project = get_method("fedavg"), Project("banks", (Site("north"),))
    config = method.configure({"rounds": 1, "lr": 0.1})
    asked = request(project, method, config, run="run-1", checkpoint_every=0.0, rehearsal=True)
    return asked["arguments"], Place("north", folder, data=folder / "data.safetensors", rehearsal=True)


def ignore(event: dict[str, Any]) -> None:
    pass


def test_a_prediction_without_a_finished_run_leaves_no_folder(tmp_path: Path) -> None:
    asked, place = one_site(tmp_path)
    with pytest.raises(InputError, match="north has no finished run 'run-1'; train the model first"):
        participant.predict_place(Federation([[0]]), {**asked, "stamp": "1"}, ignore, place)
    assert not place.runs.exists()


def test_a_rehearsal_whose_folder_cannot_be_removed_keeps_its_outcome(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("nvflare", reason="deployment needs the extra deploy")
    from graphfed.deployment import rehearsal

    (tmp_path / "elsewhere").mkdir()
    (tmp_path / rehearsal.FEDERATION).symlink_to(tmp_path / "elsewhere")
    monkeypatch.setattr(rehearsal, "Loopback", lambda *given, **more: ExitStack())
    monkeypatch.setattr(rehearsal, "run_on_loopback", lambda *given, **more: ("outcome", "ledger"))
    config = make_config("fedavg", clients=2, runtime="nvflare", data="social")
    assert rehearsal.train_run(config, load_inputs(config), [], tmp_path) == ("outcome", "ledger")
    assert f"{rehearsal.FEDERATION} could not be removed" in capsys.readouterr().err


def test_a_request_that_waits_for_a_new_run_of_its_name_is_compared_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, place = one_site(tmp_path)
    first = ExitStack()
    folder = first.enter_context(open_folder(place.runs / "run-1"))

    def end_first(seconds: float) -> None:
        write_json(folder / "manifest.json", {"asked": asked})
        first.close()

    monkeypatch.setattr(participant.time, "sleep", end_first)
    second = {**asked, "config": {**asked["config"], "lr": 0.2}}
    with pytest.raises(InputError, match=r"'run-1' was asked for with other .*config\.lr is 0\.2 instead"):
        participant.run_place(Federation([[0]]), second, ignore, place)


def site_data(label: int | None = None) -> ClientData:
    graph = load("social", None, num_nodes=40)
    if label is not None:
        graph.y[0] = label
    split = make_split(graph, "random:0.5,0.25,0.25", 0)
    return ClientData(make_cohort(graph, split, partition(graph, "random", 1, 0), [0]), SCHEMA)


def test_a_sites_digest_distinguishes_data_and_reveals_nothing_without_its_secret(tmp_path: Path) -> None:
    here, there = Place("north", tmp_path / "a"), Place("north", tmp_path / "b")
    first = _data_digest(GRAPHS.arrays(site_data()), here)
    assert first == _data_digest(GRAPHS.arrays(site_data()), here)
    other = (int(site_data().cohort.y[0]) + 1) % 2
    assert first != _data_digest(GRAPHS.arrays(site_data(other)), here)
    assert first != _data_digest(GRAPHS.arrays(site_data()), there), (
        "equal data at two sites is not to be seen"
    )
    secret = here.startup_kit / "digest.key"
    assert len(secret.read_bytes()) == 32
    assert secret.stat().st_mode & 0o077 == 0


@given(
    st.text(min_size=1, max_size=8),
    st.one_of(st.none(), st.just("/data/bank.yaml")),
    st.integers(1, 64),
    st.lists(st.sampled_from(["a", "b.c"]), max_size=2),
)
def test_a_process_of_a_run_knows_its_place_from_its_environment(
    name: str, data: str | None, threads: int, allow: list[str]
) -> None:
    place = Place(name, Path("/startup_kits/north"), data and Path(data), threads, "cpu", tuple(allow))  # type: ignore[arg-type]
    with pytest.MonkeyPatch.context() as patch:
        for key, value in place.to_environment().items():
            patch.setenv(key, value)
        read = this_place()
    assert {**vars(read), "stop_request": None} == {**vars(place), "stop_request": None}
