"""The project file: read back as it was written, and refused in one line where it cannot be used."""

import string
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from graphfed.cli import main
from graphfed.errors import DONE, UNUSABLE, InputError
from graphfed.runtime.nvflare.project import (
    COORDINATOR,
    RESERVED,
    Project,
    Site,
    load_project,
    make_project,
    write_project,
)

NAMES = st.text(string.ascii_letters + string.digits + "-_", min_size=1, max_size=64).filter(
    lambda name: name.lower() not in RESERVED
)
SITES = st.lists(
    st.builds(Site, NAMES, st.integers(1, 1000)),
    min_size=1,
    max_size=5,
    unique_by=lambda site: site.name.lower(),
)
PROJECTS = st.builds(
    Project,
    name=NAMES,
    sites=SITES.map(tuple),
    host=st.sampled_from(["localhost", "fl.example.org", "10.0.0.7", "a-b.c"]),
    port=st.integers(1, 65535),
    listen=st.ip_addresses(v=4).map(str),
)
PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["name", "server", "sites", "host", "port", "clients", "x"]), inner)
    ),
)


@given(PROJECTS)
@example(Project("0E0", (Site("1e5", 1),)))
def test_a_project_is_read_back_as_it_was_written(tmp_path_factory: Any, project: Project) -> None:
    path = tmp_path_factory.mktemp("project") / "project.yaml"
    write_project(project, path)
    assert load_project(path) == project


@given(PROJECTS)
def test_the_sites_clients_are_numbered_one_after_the_other_in_the_order_of_the_file(
    project: Project,
) -> None:
    assert [k for worker in project.workers for k in worker] == list(
        range(sum(s.clients for s in project.sites))
    )
    assert [len(worker) for worker in project.workers] == [site.clients for site in project.sites]


@given(PLAIN)
def test_whatever_a_file_holds_is_a_project_or_is_refused(content: Any) -> None:
    try:
        found = make_project(content, "it")
    except InputError:
        return
    assert found.sites


def project(**changes: Any) -> dict[str, Any]:
    return {"name": "p", "sites": ["a", "b"], **changes}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (project(sites=["a", "a"]), "'a' is named twice"),
        (project(sites=["Bank", "bank"]), "'bank' is named twice"),
        (project(sites=["bank a"]), "'bank a' cannot be used; write letters, digits"),
        (project(sites=["bank/../a"]), "cannot be used"),
        (project(sites=["server"]), "'server' is the name of another folder"),
        (project(sites=[]), "name at least one"),
        (project(sites="a,b"), "name at least one"),
        (project(sites=["a" * 65]), "at most 64"),
        (project(sites=[{"name": "hub", "client": 3}]), "no key 'client'; did you mean 'clients'?"),
        (project(sites=[{"name": "hub", "clients": 0}]), "hub, clients: 0 cannot be used"),
        (project(sites=[{"name": "hub", "clients": True}]), "cannot be used; give a number"),
        (project(name=None), "name: None cannot be used"),
        (project(server={"port": 0}), "port: 0 cannot be used; give a number from 1 to 65535"),
        (project(server={"port": "8002"}), "port: '8002' cannot be used"),
        (
            project(server={"host": "[2001:db8::5]"}),
            "looks like an IPv6 address, and the server listens at IPv4",
        ),
        (project(server={"host": "::1"}), "give the name or the IPv4 address of the host"),
        (project(server={"host": "my host"}), "host: 'my host' cannot be used"),
        (project(server={"listen": "localhost"}), "'localhost' is not an IPv4 address; give 127.0.0.1"),
        (project(server={"lsten": "0.0.0.0"}), "did you mean 'listen'?"),
        (project(coordinator="me"), "coordinator: 'me' cannot be used; write as name@example.org"),
        (project(site=["a"]), "no key 'site'; did you mean 'sites'?"),
        (["a"], "must have the keys name, server, sites"),
    ],
)
def test_a_project_that_cannot_be_used_is_refused_with_the_value_and_the_fix(
    content: Any, message: str
) -> None:
    with pytest.raises(InputError) as caught:
        make_project(content, "p.yaml")
    assert message in str(caught.value)


def test_what_is_left_out_means_this_machine_only(tmp_path: Path) -> None:
    path = tmp_path / "p.yaml"
    path.write_text("name: fraud\nsites: [bank_a, {name: hub, clients: 3}]\n")
    found = load_project(path)
    assert (found.address, found.listen, found.coordinator) == ("localhost:8002", "127.0.0.1", COORDINATOR)
    assert found.workers == [(0,), (1, 2, 3)]


def test_init_writes_a_project_that_provision_reads_and_never_over_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["site", "init", "--sites", "a, b,c", "--server", "fl.example.org:9000", "--listen", "0.0.0.0"]
    assert main(words) == DONE
    found = load_project(Path("graphfed-project.yaml"))
    assert [site.name for site in found.sites] == ["a", "b", "c"]
    assert (found.address, found.listen) == ("fl.example.org:9000", "0.0.0.0")
    assert main(["site", "init", "--sites", "x"]) == UNUSABLE
    assert "already exists" in capsys.readouterr().err
    assert load_project(Path("graphfed-project.yaml")) == found


@pytest.mark.parametrize("server", ["8002", "host", "host:", "host:x", ":", "host:-1"])
def test_a_server_without_host_or_port_is_refused(
    server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["site", "init", "--sites", "a", f"--server={server}"]) == UNUSABLE
    assert len(capsys.readouterr().err.splitlines()) == 1
    assert not list(tmp_path.iterdir())
