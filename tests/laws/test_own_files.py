"""A deployed run, in which every client reads its own files alone, is the run of one party that has all of
them: the same weights, predictions and bytes, with dropout on, for every method of the registry that can use
them.

The clients are processes of `graphfed site start`, each with a description of its own tables; the party with
all files calls `graphfed.run` with a description of them all."""

import csv
import dataclasses
import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from methods_under_law import SHIPPED
from own_files import SITES, write_clients_that_share_customers, write_clients_with_edges_between_them

import graphfed
from graphfed.deployment.deploy import request
from graphfed.federation import Ledger
from graphfed.files import read_tensors
from graphfed.methods.base import Method
from graphfed.methods.common.entity_alignment import OWNER_MESSAGES
from graphfed.methods.registry import get_method
from graphfed.methods.settings import only_those
from graphfed.runs.config import checked_training

pytest.importorskip("nvflare", reason="deployment needs the extra deploy")

from graphfed.runtime.nvflare.loopback import Loopback, free_port
from graphfed.runtime.nvflare.project import Project, Site, Timing
from graphfed.tasks.registry import first_task

pytestmark = pytest.mark.slow

#: What joins a deployment and nothing else.
JOINING = {"join", "agreed"}
KEY = "5a" * 32
SETTINGS = {"rounds": 3, "dropout": 0.5, "hidden": 8, "patience": None}


def cannot_use(method: Method) -> str:
    """What the method declares that three clients' tables of many nodes are not; "" where it can use them."""
    if method.pooled:
        return "all data at one participant"
    if method.requires.nodes_per_client == "one":
        return "one node at every client"
    return "nodes numbered from 0" if method.requires.numbered else ""


USABLE = [name for name in SHIPPED if not cannot_use(get_method(name))]
#: Whose clients may have nodes in common; and with SAPGNN's pooling by a protocol between two of the parties.
SHARING = [name for name in USABLE if "node_ids" in get_method(name).tree.names]
SECURE = "sapgnn_secure"


def method_of(name: str) -> Method:
    return get_method(name.removesuffix("_secure"))


def settings_of(name: str) -> dict[str, Any]:
    """Those of every run, and what makes a method's noise and names the same at both."""
    own = {"noise_seed": 3, "feature_low": -5.0, "feature_high": 5.0, "node_ids": "keyed"}
    own |= {"pooling": "secure"} if name == SECURE else {}
    return SETTINGS | only_those(method_of(name).tree.names, own)


@dataclasses.dataclass(frozen=True)
class Places:
    """The folder of each place of a deployed run by its name, and of the same run on all files."""

    places: Mapping[str, Path]
    together: Path


def deployed(federation: Loopback, names: list[str], label: str, files: Path, out: Path) -> dict[str, Places]:
    """Every method deployed and on all files, by its name."""
    project, asked = federation.project, []
    for name in names:
        method, config, _ = checked_training(method_of(name).name, settings_of(name), None, 0)
        run = f"{label}-{name}"
        asked.append(request(project, method, config, run=run, checkpoint_every=3600.0))
    with federation.coordinator() as coordinator:
        outcomes = coordinator.run(asked, results=out / f"{label}-kept")
    assert [(o["run"], o["kind"]) for o in outcomes] == [(a["run"], "done") for a in asked], outcomes
    found = {}
    for name in names:
        together = out / f"{label}-{name}"
        options = {"data": files / "all.yaml", "out": together, "threads": 1, **settings_of(name)}
        graphfed.run(method_of(name).name, **options)
        startup_kits = {
            place: federation.startup_kits[place] / "runs" / f"{label}-{name}" for place in ("server", *SITES)
        }
        found[name] = Places(startup_kits, together)
    return found


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Places]]:
    """One federation, whose clients' files are first the one kind of tables, then the other."""
    out = tmp_path_factory.mktemp("own_files")
    write = {"between": write_clients_with_edges_between_them, "shared": write_clients_that_share_customers}
    files = out / "files"
    timing = Timing(beat=1.0, give_up=20.0, deadline=120.0, patience=240.0)
    project = Project("own", tuple(Site(name) for name in SITES), port=free_port(), timing=timing)
    data = {name: files / f"{name}.yaml" for name in SITES}
    files.mkdir()
    write["between"](files)
    found = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GRAPHFED_CLIENTS_KEY", KEY)
        with Loopback(project, out / "startup_kits", data, check_data=False, rehearsal=True) as federation:
            found["between"] = deployed(federation, USABLE, "between", files, out)
            shutil.rmtree(files)
            files.mkdir()
            write["shared"](files)
            found["shared"] = deployed(federation, [*SHARING, SECURE], "shared", files, out)
    return found


CASES = [*(("between", name) for name in USABLE), *(("shared", name) for name in (*SHARING, SECURE))]
each = pytest.mark.parametrize(("files", "name"), CASES)


def test_the_law_is_about_every_method_of_the_registry_that_can_use_tables_of_several_clients() -> None:
    left_out = {name: cannot_use(get_method(name)) for name in SHIPPED if name not in USABLE}
    assert left_out == {
        "central": "all data at one participant",
        "own_features": "all data at one participant",
        "lumos": "one node at every client",
        "naive_fedgnn": "nodes numbered from 0",
    }
    for name, reason in left_out.items():
        assert reason in first_task(get_method(name)).requirements(get_method(name))
    assert SHARING == ["sapgnn", "ppgnn"]


def test_a_method_that_numbers_the_nodes_still_runs_where_one_party_has_all_files(tmp_path: Path) -> None:
    write_clients_with_edges_between_them(tmp_path)
    settings = {"feature_low": -5.0, "feature_high": 5.0, "noise_seed": 3, **SETTINGS, "rounds": 1}
    graphfed.run("naive_fedgnn", data=tmp_path / "all.yaml", out=tmp_path / "run", threads=1, **settings)
    table = pq.read_table(tmp_path / "run" / "predictions.parquet")
    found = {*zip(table["client_name"].to_pylist(), table["id"].to_pylist(), strict=True)}
    with (tmp_path / "all_nodes.csv").open() as file:
        assert found == {(row["bank"], row["customer"]) for row in csv.DictReader(file)}


@each
def test_a_deployed_run_has_the_weights_of_the_run_on_all_files(
    files: str, name: str, runs: dict[str, dict[str, Places]]
) -> None:
    run = runs[files][name]
    together, _ = read_tensors(run.together / "model.safetensors")
    seen = set()
    for place, folder in run.places.items():
        weights, _ = read_tensors(folder / "model.safetensors")
        for key, weight in weights.items():
            expected = together[key]
            if expected.shape != weight.shape:  # a client's own among those of all clients
                expected = expected[[SITES.index(place)]]
            np.testing.assert_allclose(weight, expected, rtol=0, atol=1e-6, err_msg=f"{key} at {place}")
        seen |= {*weights}
    assert seen == {*together}


@each
def test_a_deployed_run_predicts_what_the_run_on_all_files_predicts_for_each_of_the_users_ids(
    files: str, name: str, runs: dict[str, dict[str, Places]]
) -> None:
    run = runs[files][name]
    together = {
        (row["client_name"], row["id"]): row
        for row in pq.read_table(run.together / "predictions.parquet").to_pylist()
    }
    apart = {
        (client, row["id"]): row
        for client in SITES
        for row in pq.read_table(run.places[client] / "predictions.parquet").to_pylist()
    }
    assert {*apart} == {*together}
    for at, row in apart.items():
        assert row["probability_1"] == pytest.approx(together[at]["probability_1"], abs=1e-5)
        assert (row["split"], row["label"]) == (together[at]["split"], together[at]["label_name"])


def transfers(ledger: Ledger) -> dict[tuple[str, ...], dict[str, Any]]:
    """Everything but the scores, which are text, of as many characters as their numbers have digits."""
    return {
        tuple(entry[key] for key in ("phase", "name", "from", "to", "protection")): entry
        for entry in ledger.to_json()["entries"]
        if entry["kind"] != "control" and entry["name"] not in JOINING
    }


def ledger_in(folder: Path) -> Ledger:
    return Ledger.from_json(json.loads((folder / "ledger.json").read_text()))


@each
def test_every_transfer_of_a_deployed_run_has_the_bytes_of_the_run_on_all_files(
    files: str, name: str, runs: dict[str, dict[str, Places]]
) -> None:
    """What the server counts, and what the clients count of transfers between them. Clients that share
    customers find out first who else has a customer's label, which is known to the party with all files."""
    run = runs[files][name]
    ledger = ledger_in(run.places["server"])
    for client in SITES:
        ledger.add_remote(ledger_in(run.places[client]))
    apart, together = transfers(ledger), transfers(ledger_in(run.together))
    if files == "shared":
        assert {key[1] for key in apart} - {key[1] for key in together} == {*OWNER_MESSAGES}
        apart = {key: entry for key, entry in apart.items() if key[1] not in OWNER_MESSAGES}
    assert apart == together


@pytest.mark.parametrize("files", ["between", "shared"])
def test_dropout_changes_the_weights_of_these_runs(
    files: str, runs: dict[str, dict[str, Places]], tmp_path: Path
) -> None:
    """Without it the law would say nothing of draws."""
    settings = {**settings_of("sapgnn"), "dropout": 0.0}
    path = tmp_path / "own"
    path.mkdir()
    {"between": write_clients_with_edges_between_them, "shared": write_clients_that_share_customers}[files](
        path
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GRAPHFED_CLIENTS_KEY", KEY)
        graphfed.run("sapgnn", data=path / "all.yaml", out=tmp_path / "run", threads=1, **settings)
    without, _ = read_tensors(tmp_path / "run" / "model.safetensors")
    dropped, _ = read_tensors(runs[files]["sapgnn"].together / "model.safetensors")
    assert any(abs(without[key] - dropped[key]).max() > 1e-3 for key in dropped)
