"""What a coordinator or a server asks for that no honest one does, on real processes: every participant
checks a request by itself before it does anything for it."""

import json
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from hostile_servers import ASKED, LIE, REPORTED, write_startup
from social_sites import write_parts

from graphfed.cli import main
from graphfed.deployment.deploy import request
from graphfed.deployment.rehearsal import loopback_project
from graphfed.errors import DONE, FAILED
from graphfed.methods.registry import get_method
from graphfed.tasks.registry import default_settings

pytest.importorskip("nvflare", reason="deployment needs the extra deploy")

from graphfed.runtime.nvflare.loopback import Loopback
from graphfed.runtime.nvflare.project import Timing

pytestmark = pytest.mark.slow

TIMING = Timing(beat=1.0, give_up=20.0, deadline=60.0, patience=120.0)
SITES = ("site-0", "site-1", "site-2")
#: What a run may take at site-1; the others have more.
MEMORY = "300MB"


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Loopback]:
    """Three sites with data, and a server that lies in runs of some names (`hostile_servers`)."""
    torch.set_default_dtype(torch.float32)
    folder = tmp_path_factory.mktemp("hostile")
    project = loopback_project([1, 1, 1], TIMING)
    data = write_parts(folder, project, 120)
    write_startup(folder / "startup")
    path = os.pathsep.join([str(folder / "startup"), *(path for path in sys.path if path)])
    started = Loopback(
        project,
        folder / "startup_kits",
        data,
        allow=["deployment_programs"],
        check_data=False,
        options={"site-1": ["--memory", MEMORY, "--forbid", "epsilon_x>9"]},
        environment={"server": {"PYTHONPATH": path}},
    )
    with started:
        yield started


def asked_for(federation: Loopback, run: str, **settings: Any) -> dict[str, Any]:
    """A run of fedavg over two rounds."""
    method = get_method("fedavg")
    config = method.configure({"rounds": 2, "hidden": 4, **settings}, default_settings(method))
    return request(federation.project, method, config, run=run, checkpoint_every=60.0)


def outcomes_of(federation: Loopback, runs: Sequence[Mapping[str, Any]], results: Path) -> dict[str, Any]:
    """What became of each run of one job, by its name."""
    with federation.coordinator() as coordinator:
        ended = coordinator.run([dict(run) for run in runs], results=results)
    assert len(ended) == len(runs)
    return {outcome["run"]: outcome for outcome in ended}


def test_no_participant_does_anything_for_a_request_of_another_form(
    federation: Loopback, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The coordinator's own check is off. The job's folder of results would have brought any folder that the
    server can read: here that of the authority, two folders above its runs."""
    monkeypatch.setattr("graphfed.runtime.nvflare.signed.read_request", lambda *_: None)
    server = federation.startup_kits["server"]
    (server / "runs").mkdir(exist_ok=True)
    assert (server / "runs" / "../../authority").is_dir()
    (server / "runs" / "linked").symlink_to(federation.startup_kits["server"].parent / "authority")
    names = ["../../authority", "..", "a/b", "", "a" * 200, "linked"]
    plain = {"program": "deployment_programs:nothing", "workers": [[0], [1], [2]]}
    runs: list[dict[str, Any]] = [{**plain, "run": name, "arguments": {"run": name}} for name in names]
    changed: dict[str, dict[str, Any]] = {
        "other-name": {"arguments": {"run": "../../authority"}},
        "no-arguments": {"arguments": None},
        "many-clients": {"workers": [[0], [1], list(range(2, 1_000_000))]},
        "negative-client": {"workers": [[0], [1], [-1]]},
        "text-for-clients": {"workers": [["0"], [1], [2]]},
        "unknown-field": {"environment": {"PATH": "/tmp"}},
        "path-for-program": {"program": "/bin/sh"},
        "module-with-dots": {"program": "..deployment_programs:nothing"},
        "huge-number": {"arguments": {"run": "huge-number", "hidden": 10**40}},
        "text-for-flag": {"simulated": "yes"},
    }
    for name, change in changed.items():
        runs.append({**plain, "run": name, "arguments": {"run": name}, **change})
    ended = outcomes_of(federation, runs, tmp_path / "results")
    for name, outcome in ended.items():
        assert outcome["kind"] == "input", (name, outcome)
    assert "must be the name of a folder" in ended["../../authority"]["text"]
    assert "outside the folder" in ended["linked"]["text"]
    assert "unknown key 'environment'" in ended["unknown-field"]["text"]
    assert "more than 64 bits" in ended["huge-number"]["text"]
    brought = [path.name for path in tmp_path.rglob("*") if path.is_file()]
    assert brought == []
    for site in SITES:
        assert not (federation.startup_kits[site] / "runs").exists()


#: Settings, and what is said of them. The last one passes the bounds from its settings and data, which are
#: lower ones: the process ends the run at its limit.
TOO_LARGE: dict[str, tuple[dict[str, Any], str]] = {
    "hidden": ({"hidden": 3_000_000}, r"site-1 refuses the run: .* needs at least [\d.]+ GB"),
    "layers": ({"layers": 10**9, "hidden": 1}, r"refuses the run: .* needs at least 16.0 GB"),
    "both": ({"hidden": 4000, "layers": 4}, r"site-1 refuses the run: .*, and 300 MB are allowed"),
    "heads": ({"backbone": "gat", "heads": 10**6}, r"refuses the run: .* needs at least [\d.]+ GB"),
    "at the limit": ({"hidden": 90_000}, "site-1 ended the run, because it needs more than the 0.3 GB"),
}


def test_a_run_that_needs_more_memory_than_a_site_allows_is_refused_before_it_takes_it(
    federation: Loopback, tmp_path: Path
) -> None:
    runs = [
        asked_for(federation, name.replace(" ", "-"), **settings) for name, (settings, _) in TOO_LARGE.items()
    ]
    ended = outcomes_of(federation, [*runs, asked_for(federation, "honest")], tmp_path)
    for name, (_, said) in TOO_LARGE.items():
        outcome = ended[name.replace(" ", "-")]
        assert re.search(said, outcome["text"]), outcome
        assert "graphfed site start --memory" in outcome["text"]
        assert outcome["kind"] == ("failed" if name == "at the limit" else "input")
    assert ended["honest"]["kind"] == "done", ended["honest"]


# ---- a server that asks for something else -----------------------------------------------------------------

#: What is said of each request that the server sends the sites, and of each report.
SAID = {
    "plaintext": "arguments.config.aggregation is 'plaintext' instead of 'secure'",
    "method": "arguments.method is 'fedprox' instead of 'fedavg'",
    "rounds": "arguments.config.rounds is 1 instead of 2",
    "name": "run is 'another-name' instead of 'name'",
    "later": "time is ",
    "own-key": "has not signed the request: 'server' has, in the role ''",
    "unsigned": "has not signed the request in this form",
    "repeated": "the request is not newer than one that was accepted here before",
    "other-ledger": "and the ledger that the server reports says 'aggregate'",
    "no-statement": "the server has passed on no statement of site-1 about what it ran",
    "other-statement": "site-1 has not signed the statement: 'site-0' has",
    "altered-statement": "site-1 has not signed the statement in this form",
    "earlier-statement": "site-1 states that it ran another request than the coordinator's last one",
}


def test_the_server_cannot_ask_the_sites_for_anything_else_nor_report_anything_else(
    federation: Loopback, tmp_path: Path
) -> None:
    assert {*SAID, "keep-statement"} == {*ASKED, *REPORTED}
    secure = {"aggregation": "secure"}
    runs = [asked_for(federation, "first", **secure), asked_for(federation, "keep-statement")]
    runs += [asked_for(federation, name, **(secure if name in ASKED else {})) for name in SAID]
    ended = outcomes_of(federation, [*runs, asked_for(federation, "last", **secure)], tmp_path)
    for name, said in SAID.items():
        outcome = ended[name]
        assert outcome["kind"] == "failed", outcome
        assert said in outcome["text"], outcome
        if name in ASKED:
            assert "site-" in outcome["text"]
            for site in SITES:
                runs_of_site = federation.startup_kits[site] / "runs"
                assert not (runs_of_site / name).exists()
                assert not (runs_of_site / "another-name").exists()
    for name in ("first", "last"):
        assert ended[name]["kind"] == "done", ended[name]
        assert ended[name]["verified"]["sites"] == list(SITES)
        for site in SITES:
            ledger = json.loads((federation.startup_kits[site] / "runs" / name / "ledger.json").read_text())
            sent = {
                entry["name"]: entry["protection"]
                for entry in ledger["entries"]
                if entry["phase"] == "train" and entry["from"] == "clients"
            }
            assert sent["gradient/masked"] == "aggregate"
            assert "plaintext" not in sent.values()


def test_the_command_ends_with_one_error_and_a_result_names_the_sites_that_verified_it(
    federation: Loopback, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["run", "fedavg", "--startup-kit", str(federation.startup_kits["coordinator"]), "--no-progress"]
    command += ["--rounds", "2", "--set", "aggregation=secure", "--out", str(tmp_path / "out")]
    lie = federation.startup_kits["server"] / LIE
    lie.write_text("plaintext")
    try:
        assert main(command) == FAILED
    finally:
        lie.unlink()
    refusal = capsys.readouterr().err
    assert "refuses the run: coordinator@graphfed.example has not signed the request in this form" in refusal
    assert SAID["plaintext"] in refusal
    assert not (tmp_path / "out" / "result.json").exists()
    assert main([*command[:-1], str(tmp_path / "again")]) == DONE
    result = json.loads((tmp_path / "again" / "result.json").read_text())
    assert result["details"]["verified"]["sites"] == list(SITES)
    run = result["details"]["run"]
    manifest = json.loads((federation.startup_kits["site-0"] / "runs" / run / "manifest.json").read_text())
    assert '"aggregation":"secure"' in json.loads(manifest["request"])["content"]


# ---- what hides nothing ------------------------------------------------------------------------------------


def test_a_site_s_own_program_refuses_what_hides_nothing_and_counts_earlier_noise(
    federation: Loopback, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The coordinator's program is left out: these requests are signed, and asked of real sites."""

    def asked(run: str, method: str, **settings: Any) -> dict[str, Any]:
        chosen = get_method(method)
        config = chosen.configure({"rounds": 1, "hidden": 4, **settings}, default_settings(chosen))
        return request(federation.project, chosen, config, run=run, checkpoint_every=60.0)

    simulated = asked("simulated", "fedavg", aggregation="secure", protocols="simulated")
    runs = [
        simulated,
        {
            **simulated,
            "run": "flag",
            "simulated": False,
            "arguments": {**simulated["arguments"], "run": "flag"},
        },
        asked("seeded", "lpgnn", noise_seed=5),
        asked("above", "lpgnn", epsilon_x=9.5),
        {
            "run": "program",
            "program": "os:system",
            "arguments": {"run": "program"},
            "workers": [[0], [1], [2]],
        },
        asked("noised-1", "lpgnn", epsilon_x=2.0),
        asked("noised-2", "lpgnn", epsilon_x=1.0),
        asked("plain", "fedavg"),
    ]
    ended = outcomes_of(federation, runs, tmp_path)
    for name, said in {
        "simulated": "hide nothing from real participants; choose protocols=real",
        "flag": "protocols=simulated hides nothing from real participants",
        "seeded": "noise_seed hides nothing from real participants",
        "above": "site-1 refuses runs with epsilon_x>9: its operator forbids this value",
        "program": "does not run the program 'os:system'",
    }.items():
        assert ended[name]["kind"] == "input", ended[name]
        assert said in ended[name]["text"]
    for name in ("noised-1", "noised-2", "plain"):
        assert ended[name]["kind"] == "done", ended[name]
    site = str(federation.startup_kits["site-0"])
    assert main(["site", "sent", site, "noised-2"]) == DONE
    text = " ".join(capsys.readouterr().out.split())
    assert "noised values of the same data in other runs of this site: 1 runs (noised-1: ldp(" in text
    assert main(["site", "sent", site, "plain"]) == DONE
    assert "noised values" not in capsys.readouterr().out
