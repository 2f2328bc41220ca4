"""What a coordinator or a server asks for that no honest one does, on real processes: every participant
checks a request by itself before it does anything for it."""

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from graphfed.data.datasets import load
from graphfed.data.graphs.splits import make_split
from graphfed.data.partitions.partition import partition
from graphfed.deployment.deploy import request
from graphfed.deployment.rehearsal import loopback_project
from graphfed.federation.cohort import make_cohort, save_cohort
from graphfed.methods.registry import get_method
from graphfed.runtime.interrupts import StopRequest
from graphfed.tasks.registry import default_settings

pytest.importorskip("nvflare", reason="deployment needs the extra deploy")

from graphfed.runtime.nvflare.loopback import Loopback
from graphfed.runtime.nvflare.project import Timing

pytestmark = pytest.mark.slow

TIMING = Timing(beat=1.0, give_up=20.0, deadline=60.0, patience=120.0)
#: What a run may take at site-1; site-0 and the server have more.
MEMORY = "300MB"


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Loopback]:
    """Two sites with data, and a server."""
    torch.set_default_dtype(torch.float32)
    folder = tmp_path_factory.mktemp("hostile")
    graph = load("social", None, num_nodes=120)
    split = make_split(graph, "random:0.5,0.25,0.25", 0)
    partitioned = partition(graph, "random", 2, 0)
    project = loopback_project([1, 1], TIMING)
    data = {site.name: folder / f"{site.name}.safetensors" for site in project.sites}
    for k, path in enumerate(data.values()):
        save_cohort(make_cohort(graph, split, partitioned, [k]), path)
    started = Loopback(
        project,
        folder / "startup_kits",
        data,
        allow=["deployment_programs"],
        check_data=False,
        options={"site-1": ["--memory", MEMORY]},
    )
    with started:
        yield started


def asked_for(federation: Loopback, run: str, **settings: Any) -> dict[str, Any]:
    """A run of fedavg over two rounds."""
    method = get_method("fedavg")
    config = method.config(**{**default_settings(method), "rounds": 2, "hidden": 4, **settings})
    return request(federation.project, method, config, run=run, checkpoint_every=60.0)


def outcomes_of(federation: Loopback, runs: Sequence[Mapping[str, Any]], results: Path) -> dict[str, Any]:
    """What became of each run of one job, by its name."""
    with federation.coordinator() as coordinator:
        ended = coordinator.run(
            [dict(run) for run in runs],
            on_event=lambda *_: None,
            on_message=lambda _: None,
            stop_request=StopRequest(),
            results=results,
        )
    assert len(ended) == len(runs)
    return {outcome["run"]: outcome for outcome in ended}


def test_no_participant_does_anything_for_a_request_of_another_form(
    federation: Loopback, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The coordinator's own check is off. The job's folder of results would have brought any folder that the
    server can read: here that of the authority, two folders above its runs."""
    monkeypatch.setattr("graphfed.runtime.nvflare.coordinator.read_request", lambda *_: None, raising=False)
    server = federation.startup_kits["server"]
    (server / "runs").mkdir(exist_ok=True)
    assert (server / "runs" / "../../authority").is_dir()
    (server / "runs" / "linked").symlink_to(federation.startup_kits["server"].parent / "authority")
    names = ["../../authority", "..", "a/b", "", "a" * 200, "linked"]
    plain = {"program": "deployment_programs:nothing", "workers": [[0], [1]]}
    runs: list[dict[str, Any]] = [{**plain, "run": name, "arguments": {"run": name}} for name in names]
    changed: dict[str, dict[str, Any]] = {
        "other-name": {"arguments": {"run": "../../authority"}},
        "no-arguments": {"arguments": None},
        "many-clients": {"workers": [[0], list(range(1, 1_000_000))]},
        "negative-client": {"workers": [[0], [-1]]},
        "text-for-clients": {"workers": [["0"], [1]]},
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
    for site in ("site-0", "site-1"):
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
