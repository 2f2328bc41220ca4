"""What is refused, and what the defaults are."""

import dataclasses
import functools
import os
import re
from pathlib import Path

import numpy as np
import pytest
from deciding import settings_needed

from graphfed.cli import main
from graphfed.data.datasets import load
from graphfed.data.graphs.graph import make_graph
from graphfed.errors import InputError, shown
from graphfed.methods.parts import GRAPH_PARTS
from graphfed.methods.registry import METHODS, get_method
from graphfed.methods.settings import fields_of, values
from graphfed.methods.settings import value as value_of
from graphfed.plain_yaml import dump_yaml
from graphfed.runs.config import checked_training, make_config, read_config
from graphfed.runs.reopen import config_from_json
from graphfed.runs.settings import Setting, changed_settings, parse_settings, settings_of
from graphfed.tasks.base import PRESETS
from graphfed.tasks.registry import get_task
from graphfed.tasks.run_config import default_threads


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"method": "fedavgg"}, "unknown method 'fedavgg'; did you mean 'fedavg'"),
        ({"method": None}, "no method was given"),
        ({"method": 3}, "method=3"),
        ({"data": "coraa"}, "unknown data set 'coraa'; did you mean 'cora'"),
        ({"data": "roads"}, "'roads' is for forecasting; cnfgnn, "),
        ({"partition": "sensors"}, "'sensors' assigns each sensor to a client, and 'digits'"),
        ({"method": "last_value", "data": "cora"}, "forecasts readings of sensors, and 'cora' is a graph"),
        ({"method": "last_value", "partition": "random"}, "'random' is for graphs, and 'roads' holds"),
        ({"method": "last_value", "task": "classification"}, "last_value cannot do task 'classification'"),
        ({"data": 7}, "data of type int"),
        ({"partition": "radnom"}, "unknown partition 'radnom'; did you mean 'random'"),
        ({"clients": 0}, "clients=0 cannot be used: expected a whole number of at least 1"),
        ({"clients": 2.5}, "clients=2.5"),
        ({"clients": True}, "clients=True"),
        ({"rounds": 0}, "rounds=0 cannot be used"),
        ({"rounds": True}, "rounds=True"),
        ({"seed": -1}, "seed=-1"),
        ({"seed": "one"}, "seed='one'"),
        ({"split": None}, "split=None"),
        ({"runtime": "lcal"}, "unknown runtime 'lcal'; did you mean 'local'"),
        ({"workers": 3}, "workers=3 has no use with runtime 'local'"),
        ({"runtime": "nvflare", "workers": 11}, "11 workers cannot hold 10 clients"),
        ({"runtime": "nvflare", "clients": 100}, "at most 64; give the number of workers (--workers)"),
        ({"placement": "stackd"}, "unknown placement 'stackd'; did you mean 'stacked'"),
        ({"device": "gpu"}, "unknown device 'gpu'"),
        ({"device": "cuda:99"}, "device 'cuda:99' is not available"),
        ({"threads": 0}, "threads=0"),
        ({"threads": 99_999_999_999}, "threads=99999999999 cannot be used: expected at most 1024"),
        ({"seed": 10**5000}, "seed=an integer of more than 30 digits"),
        ({"clients": 10**12}, "clients=1000000000000 cannot be used"),
        ({"data_dir": 5}, "data_dir=5 cannot be used: expected text or a path"),
        ({"device": "cuda:99999999999999999999"}, "unknown device"),
        ({"settings": {"hidden": 10**11}}, "hidden=100000000000 cannot be used: expected at most 65536"),
        ({"settings": {"rounds": 10**5000}}, "rounds=an integer of more than 30 digits"),
        ({"settings": {"lr": "x" * 9000}}, "lr='xxx"),
        ({"settings": {"x" * 9000: 1}}, "has no setting 'xxx"),
        ({"settings": {"partition.beta": float("inf")}}, "partition.beta=inf"),
        (
            {"data": "social", "settings": {"data.num_nodes": 10**11}},
            "data.num_nodes=100000000000 cannot be used: expected at most",
        ),
        ({"settings": {"lr": -1}}, "lr=-1 cannot be used: expected a number more than 0 (default 0.01)"),
        ({"settings": {"lr": "fast"}}, "lr='fast'"),
        ({"settings": {"lr": float("nan")}}, "lr=nan"),
        ({"settings": {"weight_decay": float("inf")}}, "weight_decay=inf"),
        ({"settings": {"hidden": 2.5}}, "hidden=2.5"),
        ({"settings": {"hidden": True}}, "hidden=True"),
        (
            {"settings": {"backbone": "gnc"}},
            "backbone='gnc' cannot be used: did you mean 'gcn'? (default gcn)",
        ),
        ({"settings": {"lrr": 1}}, "fedavg has no setting 'lrr'; did you mean 'lr'"),
        ({"settings": {"hops": 1}}, "fedavg has no setting 'hops'; it is a setting of fedgcn"),
        ({"settings": {"mu": 1}}, "mu is a setting of runs with rule fedprox"),
        ({"settings": {"learning_rate": 1}}, "fedavg has no setting 'learning_rate'; choose one of: "),
        ({"settings": {"LR": 1}}, "did you mean 'lr'?"),
        ({"settings": {"local-steps": 1}}, "did you mean 'local_steps'?"),
        ({"settings": {"data-dir": 1}}, "it is an option of its own: --data-dir (in Python: data_dir=...)"),
        ({"settings": {"optimizer": "Adam"}}, "did you mean 'adam'?"),
        ({"settings": {"fraction": 2}}, "expected a number more than 0 and at most 1 (default 1.0)"),
        ({"settings": {"layers": 2.5}}, "layers=2.5 cannot be used: expected a whole number of at least 1"),
        ({"settings": {"patience": "soon"}}, "expected a whole number of at least 1, or none (default 50)"),
        ({"method": "fedgcn", "settings": {"hops": 3}}, "hops=3 cannot be used: expected one of 0, 1, 2"),
        ({"settings": [1]}, "settings of type list cannot be used"),
        ({"device": "cpu:3"}, "device 'cpu:3' cannot be used: there is one 'cpu'"),
        ({"settings": {"seed": 1}}, "seed is an option of its own"),
        ({"settings": {"partition.betta": 1}}, "did you mean 'partition.beta'"),
        ({"settings": {"partition.alpha": 1}}, "it is a setting of the partition label_skew"),
        ({"settings": {"partition.beta": "even"}}, "partition.beta='even'"),
        ({"settings": {"partition_seed": -1}}, "partition_seed=-1"),
        ({"settings": {"split_seed": 0.5}}, "split_seed=0.5"),
        ({"settings": {"data.num_nodes": 10}}, "it is a setting of the data set social"),
        ({"data": "social", "settings": {"data.num_nodes": "many"}}, "data.num_nodes='many'"),
        (
            {"data": "social", "settings": {"data.dense": "maybe"}},
            "data.dense='maybe' cannot be used: expected yes",
        ),
        ({"rounds": 3, "settings": {"rounds": 4}}, "rounds is given twice"),
        ({"method": "central", "settings": {"fraction": 0.5}}, "central has no setting 'fraction'"),
    ],
)
def test_a_value_that_cannot_be_used_is_refused_by_name(options: dict[str, object], message: str) -> None:
    with pytest.raises(InputError) as refusal:
        make_config(**{"method": "fedavg", **options})
    assert message in str(refusal.value)
    assert "\n" not in str(refusal.value)
    assert len(str(refusal.value)) < 500


@pytest.mark.parametrize("name", METHODS.own)
def test_every_config_is_valid_as_it_stands_and_in_both_presets_of_every_task(name: str) -> None:
    method = get_method(name)
    assert isinstance(method.configure({}), method.config)
    for task in method.tasks:
        for preset in PRESETS:
            assert isinstance(method.configure({}, get_task(task).settings_of(method, preset)), method.config)


@pytest.mark.parametrize("method", METHODS)
def test_every_method_runs_on_the_defaults_alone(method: str) -> None:
    config = make_config(method)
    kind, data = get_method(method).partition, get_task(config.task).data.default
    assert (config.data, config.partition) == (data, kind)
    assert config.clients == (None if kind in ("ego", "sensors") else 10)
    assert (config.seed, config.partition_seed, config.split_seed, config.settings.run.seed) == (0, 0, 0, 0)
    assert config.threads is None


def test_a_second_thread_is_for_large_graphs() -> None:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    assert default_threads(load("digits")) == 1
    assert default_threads(load("social", num_nodes=60_000)) == cores


def test_an_alias_is_the_method_it_stands_for() -> None:
    assert make_config("local").method is make_config("isolated").method


def test_names_are_taken_in_any_case() -> None:
    config = make_config("FedProx", data="Digits", partition="Louvain")
    assert (config.method.name, config.data, config.partition) == ("fedprox", "digits", "louvain")
    assert make_config("LOCAL").method.name == "isolated"


#: Values that some setting or other cannot take: texts, fractions, signs, sizes, none, and things.
BAD_VALUES = ("fast", "", "1e", "GCN", -1, 0, 2, 2.5, -0.5, 1.0, 10**6, None, [1], {"a": 1})


@functools.cache
def first_methods() -> dict[Setting, str]:
    """Of every setting that methods share, or have alone, the first method with it."""
    found: dict[Setting, str] = {}
    for name in METHODS:
        for setting in settings_of(get_method(name)):
            found.setdefault(same_everywhere(setting), name)
    return found


def same_everywhere(setting: Setting) -> Setting:
    """The setting without what may be another in another method."""
    return dataclasses.replace(setting, default=None, description="", own=False)


@pytest.mark.parametrize("method", METHODS)
def test_every_setting_of_every_method_is_refused_in_our_own_words(method: str) -> None:
    """A refusal names the setting, the value and what was expected, and repeats no library's words. A setting
    of several methods is tried with the first of them."""
    config = get_method(method)
    for setting in settings_of(config):
        if first_methods()[same_everywhere(setting)] != method:
            continue
        refused, needed = 0, settings_needed(config, setting.name)
        for value in BAD_VALUES:
            try:
                make_config(method, settings={**needed, setting.name: value})
            except InputError as error:
                message = str(error)
                refused += 1
                assert setting.name in message
                # A number may be read as a truth value, and refused with another setting; none is no value.
                assert (
                    value is None
                    or shown(value) in message
                    or f"{setting.name}={value}" in message
                    or f"{setting.name}=True" in message
                )
                assert re.search(
                    "expected|did you mean|choose one of|cannot use|is a setting of runs with|or use|"
                    "omit this setting|needs every client",
                    message,
                )
                assert not re.search("(?i)input should|valid|parse|constraint", message)
                assert "\n" not in message
                assert len(message) < 300
        assert refused >= 3, setting.name


@pytest.mark.parametrize("method", METHODS)
def test_every_setting_is_described_and_its_default_meets_the_description(method: str) -> None:
    for setting in settings_of(get_method(method)):
        assert setting.description
        assert setting.kind != "value"
        if setting.choices:
            assert setting.default in setting.choices


def test_seeds_of_partition_and_split_follow_the_seed_unless_they_are_set() -> None:
    follows = make_config("fedavg", seed=5)
    fixed = make_config("fedavg", seed=5, settings={"partition_seed": 1})
    assert (follows.partition_seed, follows.split_seed) == (5, 5)
    assert (fixed.partition_seed, fixed.split_seed, fixed.settings.run.seed) == (1, 5, 5)


def test_a_whole_number_does_for_a_partition_option_that_is_a_fraction() -> None:
    beta = make_config("fedavg", settings={"partition.beta": 1}).partition_options["beta"]
    assert isinstance(beta, float)


def test_one_client_per_node_needs_no_number_of_clients() -> None:
    assert make_config("fedavg", partition="ego").clients is None


def test_the_changed_settings_are_exactly_those_that_differ_from_the_defaults() -> None:
    assert changed_settings(make_config("fedavg", seed=3)) == {}
    assert changed_settings(make_config("fedavg", rounds=300)) == {}
    assert changed_settings(make_config("fedavg", rounds=7, settings={"lr": 0.1})) == {"rounds": 7, "lr": 0.1}
    assert changed_settings(make_config("fedprox", settings={"mu": 0.3})) == {"mu": 0.3}


#: What a changed setting can only be used with.
BESIDE = {
    "rescale": {"decode": "unbiased"},
    "unsent_value": {"feature_low": -1.0},
    "policy_file": {"policy": "ddpg"},
}


@pytest.mark.parametrize("method", METHODS)
def test_the_changed_settings_show_every_setting_of_a_method_s_own_that_was_changed(method: str) -> None:
    default = values(make_config(method).settings)
    names = set(get_method(method).tree.names) & set(default)
    own = names - {name for part in GRAPH_PARTS for name in fields_of(part)}
    assert own.isdisjoint(changed_settings(make_config(method)))
    for key in own:
        (setting,) = [s for s in settings_of(get_method(method)) if s.name == key]
        if setting.choices == (default[key],):
            continue  # the method leaves no choice of what another one offers
        if setting.choices:
            other = next(name for name in setting.choices if name != default[key])
        elif isinstance(default[key], bool):
            other = not default[key]
        elif setting.kind == "text":
            other = "some.file"
        else:
            # None stands for no limit, or for a fraction that is not given.
            none = 0.5 if setting.expected.startswith("a number") else 3
            other = none if default[key] is None else default[key] - 1 or 2
            other = other if isinstance(other, int) or default[key] is None else default[key] / 2 or -0.5
        assert (
            changed_settings(make_config(method, settings={key: other, **BESIDE.get(key, {})}))[key] == other
        )


def test_what_a_method_declares_as_its_default_for_its_own_setting_is_no_deviation() -> None:
    config = make_config("fedprox", settings={"mu": 0.3})
    strict = dataclasses.replace(config.method, defaults={"mu": 0.3})
    assert changed_settings(dataclasses.replace(config, method=strict)) == {}


def test_processes_of_sites_compute_with_one_thread_unless_set() -> None:
    assert make_config("fedavg", runtime="processes").client_threads == 1
    assert make_config("fedavg", runtime="processes", threads=3).client_threads == 3


def test_a_pyg_graph_is_taken_as_data() -> None:
    torch_geometric = pytest.importorskip("torch_geometric.data")
    import torch

    data = torch_geometric.Data(
        x=torch.eye(3), y=torch.tensor([0, 1, 1]), edge_index=torch.tensor([[0, 1], [1, 2]])
    )
    assert make_config("fedavg", data=data).data_name == "custom"


def test_a_graph_is_used_as_it_is() -> None:
    graph = make_graph("custom", np.eye(3, dtype=np.float32), np.array([0, 1, 1]), np.array([[0, 1], [1, 2]]))
    assert make_config("fedavg", data=graph).data is graph


#: Ten short lines that stand for a list of 9^9 values.
BOMB = b"a0: &a0 [x, x, x, x, x, x, x, x, x]\n" + b"".join(
    f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n".encode() for i in range(1, 10)
)

# ---- texts -------------------------------------------------------------------------------------------------


def test_settings_are_read_as_numbers_none_or_text() -> None:
    pairs = ["lr=1e-2", "hidden=32", "patience=none", "backbone=gat", "partition.kind = hsu", "a=b=c"]
    assert parse_settings(pairs) == {
        "lr": 0.01,
        "hidden": 32,
        "patience": None,
        "backbone": "gat",
        "partition.kind": "hsu",
        "a": "b=c",
    }


@pytest.mark.parametrize(
    ("method", "pair"), [("fedgraph", "sent_embeddings=none"), ("lumos", "balancer=none")]
)
def test_none_on_the_command_line_is_the_choice_of_that_name_where_there_is_one(
    method: str, pair: str
) -> None:
    config = make_config(method, settings=parse_settings([pair]))
    assert value_of(config.settings, pair.partition("=")[0]) == "none"
    with pytest.raises(InputError, match="cannot be used"):
        make_config(method, settings=parse_settings(["optimizer=none"]))


@pytest.mark.parametrize(
    ("pairs", "message"), [(["lr"], "key=value"), (["=1"], "key=value"), (["a=1", "a=2"], "twice")]
)
def test_a_setting_without_name_or_value_or_given_twice_is_refused(pairs: list[str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        parse_settings(pairs)


def test_a_config_file_has_the_names_of_the_options(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text("method: fedavg\nclients: 3\nrounds: null\nset:\n  lr: 0.1\n  partition.beta: 1.0\n")
    assert read_config(path) == {"method": "fedavg", "clients": 3, "set": {"lr": 0.1, "partition.beta": 1.0}}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"clinets: 3\n", "unknown key 'clinets'; did you mean 'clients'"),
        (b"lr: 0.1\n", "unknown key 'lr'; lr is a setting: write it under 'set:'"),
        (b"lr: 0.1\n", "lr is a setting: write it under 'set:'"),
        (b"mu: 0.1\n", "mu is a setting: write it under 'set:'"),
        (b"partition.beta: 0.1\n", "partition.beta is a setting: write it under 'set:'"),
        (b"- fedavg\n", "must be a mapping"),
        (b"", "must be a mapping"),
        (b"a: [1\n", "is not YAML"),
        (b"a: \xff\n", "is not YAML"),
        (b"set: 3\n", "'set' must map names to single values"),
        (b"set: {partition: {beta: 1}}\n", "'set' must map names to single values"),
        (b"set: {1: 2}\n", "'set' must map names to single values"),
        (b"seed: 2020-99-99\n", "seed='2020-99-99' cannot be used"),
        (b"\nseed: " + b"9" * 5001, "line 2: this value cannot be read"),
        (b"seed: 0x" + b"f" * 5001, None),
        (b"set: {lr: 0x" + b"f" * 5001 + b"}", None),
        (b"set: " + b"[" * 3000 + b"]" * 3000, "line 1: more than 12 levels"),
        (BOMB, "line 1: anchors and aliases (& and *) are not read"),
        (b"clients: *a\n", "line 1: anchors and aliases"),
        (b"clients: 3\nrounds: 1\nclients: 4\n", "line 3: 'clients' is given twice"),
        (b"set: {lr: 1, lr: 2}\n", "'lr' is given twice"),
        (b"clients: !!int ''\n", "line 1: tags (!) are not read"),
        (b"seed: !!timestamp x\n", "line 1: tags (!) are not read"),
        (b"? [a, b]\n: 1\n", "a key must be text"),
        (b"0x" + b"f" * 900 + b": 1\n", "unknown key an integer of more than 30 digits"),
        (b"<<: {clients: 3}\n", "unknown key '<<'"),
        (b"data: caf\xe9\n", "is not YAML in UTF-8 (byte 9)"),
        ("method: fedavg".encode("utf-16"), "is not YAML in UTF-8"),
        (b"# " + b"x" * 200_000, "more than 100000 bytes"),
        (b"out: 5\n", "out=5 cannot be used: expected text"),
        (b"out: false\n", "out=False cannot be used: expected text"),
        (b"data_dir: 5\n", "data_dir=5 cannot be used: expected text or a path"),
        (b"data: [a]\n", "data=list cannot be used: expected text"),
        (b"clients: true\n", "clients=True cannot be used: expected a whole number"),
        (b"threads: 1.5\n", "threads=1.5 cannot be used: expected a whole number"),
    ],
)
def test_a_config_file_that_cannot_be_used_is_refused_in_one_line(
    tmp_path: Path, content: bytes, message: str | None
) -> None:
    path = tmp_path / "run.yaml"
    path.write_bytes(content)

    def use() -> None:
        # A number may be one for YAML and too large for the option.
        options = read_config(path)
        make_config("fedavg", settings=options.pop("set"), **options)

    with pytest.raises(InputError) as refusal:
        use()
    assert (message or "more than 30 digits") in str(refusal.value)
    assert "\n" not in str(refusal.value)
    assert len(str(refusal.value).replace(str(path), "")) < 500


def test_a_missing_config_file_and_a_folder_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"none\.yaml cannot be read"):
        read_config(tmp_path / "none.yaml")
    with pytest.raises(InputError, match="cannot be read: Is a directory"):
        read_config(tmp_path)


def test_numbers_of_a_config_file_are_read_as_on_the_command_line(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_bytes(b"\xef\xbb\xbfset: {lr: 1e-3, a: -2.E+4, b: 1.5, c: 7, d: null, e: 1e3x, f: 'no'}\n")
    assert read_config(path)["set"] == {
        "lr": 0.001, "a": -20000.0, "b": 1.5, "c": 7, "d": None, "e": "1e3x", "f": "no",
    }  # fmt: skip


# ---- a run as a config file --------------------------------------------------------------------------------


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize(
    ("method", "task"), [(name, task) for name in METHODS for task in get_method(name).tasks]
)
def test_the_options_of_every_run_make_the_same_run_from_a_file(
    method: str, task: str, preset: str, tmp_path: Path
) -> None:
    run = make_config(method, task=task, seed=3, settings={"preset": preset})
    (tmp_path / "run.yaml").write_text(dump_yaml(run.to_options()))
    options = read_config(tmp_path / "run.yaml")
    again = make_config(options.pop("method"), settings=options.pop("set"), **options)
    assert again.to_json() == run.to_json()
    assert config_from_json(run.to_json(), tmp_path).to_json() == run.to_json()


def test_shown_choices_are_those_of_the_command_and_of_its_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = [
        "run",
        "fedprox",
        "--rounds",
        "7",
        "--set",
        "mu=0.5",
        "--set",
        "partition.beta=2",
        "--clients",
        "4",
    ]
    assert main([*asked, "--show-config"]) == 0
    shown = capsys.readouterr().out
    (tmp_path / "shown.yaml").write_text(shown)
    assert main(["run", "--config", str(tmp_path / "shown.yaml"), "--show-config"]) == 0
    assert capsys.readouterr().out == shown
    options = read_config(tmp_path / "shown.yaml")
    assert {key: options[key] for key in ("method", "rounds", "clients")} == {
        "method": "fedprox",
        "rounds": 7,
        "clients": 4,
    }
    assert {options["set"][key] for key in ("mu", "partition.beta")} == {0.5, 2.0}


def test_a_description_s_files_are_found_from_wherever_the_shown_choices_are_read(tmp_path: Path) -> None:
    (tmp_path / "bank.yaml").write_text("nodes: nodes.csv\nedges: edges.csv\nid: id\nlabel: kind\n")
    (tmp_path / "nodes.csv").write_text("id,kind,x\na,0,1.0\nb,1,2.0\n")
    (tmp_path / "edges.csv").write_text("source,target\na,b\n")
    run = make_config("fedavg", data=tmp_path / "bank.yaml")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "run.yaml").write_text(dump_yaml(run.to_options()))
    options = read_config(tmp_path / "elsewhere" / "run.yaml")
    again = make_config(options.pop("method"), settings=options.pop("set"), **options)
    assert again.to_json()["data_source"] == run.to_json()["data_source"]


def test_data_in_python_has_no_name_for_a_file() -> None:
    graph = load("digits")
    with pytest.raises(InputError, match="is a Python object"):
        make_config("fedavg", data=graph).to_options()


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("name", METHODS.own)
def test_a_deployment_has_the_settings_of_a_run_on_one_machine(name: str, preset: str) -> None:
    deployed = checked_training(name, {"preset": preset}, None, 3)[1]
    assert deployed == make_config(name, seed=3, settings={"preset": preset}).settings
