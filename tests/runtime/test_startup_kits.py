"""Startup kits: whole or absent, each with a key of its own, and rules that keep a site safe."""

import importlib.util
import json
import stat
from pathlib import Path
from typing import Any

import pytest
from hostile_files import NO_FILE, no_wait, replaced

from graphfed.cli import main
from graphfed.errors import UNUSABLE, InputError
from graphfed.runtime.nvflare import rules
from graphfed.runtime.nvflare.project import Project, Site, write_project
from graphfed.runtime.nvflare.startup_kits import ORGANISATION, check_certificate, load_startup_kit, provision

pytest.importorskip("nvflare", reason="the extra 'deploy' (NVIDIA FLARE) is not installed")

PROJECT = Project("fraud", (Site("bank_a"), Site("hub", 3)))


@pytest.fixture(scope="module")
def startup_kits(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return provision(PROJECT, tmp_path_factory.mktemp("project") / "startup_kits")


def test_every_party_has_a_startup_kit_with_a_key_of_its_own_that_nobody_else_reads(
    startup_kits: dict[str, Path],
) -> None:
    assert set(startup_kits) == {"server", "coordinator", "bank_a", "hub"}
    keys = [key for startup_kit in startup_kits.values() for key in startup_kit.rglob("*.key")]
    assert len(keys) == len({key.read_bytes() for key in keys}) == len(startup_kits)
    private = [*keys, *startup_kits.values(), startup_kits["server"].parent / "authority"]
    assert all(stat.S_IMODE(path.stat().st_mode) & 0o077 == 0 for path in private)


def test_the_authority_s_key_is_in_no_startup_kit(startup_kits: dict[str, Path]) -> None:
    state = json.loads((startup_kits["server"].parent / "authority" / "cert.json").read_text())
    root = state["root_pri_key"]
    assert root.startswith("-----BEGIN")
    assert not any(
        root in file.read_text()
        for startup_kit in startup_kits.values()
        for file in startup_kit.rglob("*")
        if file.is_file()
    )


def test_every_certificate_has_its_party_s_name_which_flare_asks_for(startup_kits: dict[str, Path]) -> None:
    """FLARE's certificates may be used on either side of a connection: it is the name in them that keeps a
    site from passing for the server."""
    from cryptography import x509
    from cryptography.x509.oid import NameOID

    for startup_kit in startup_kits.values():
        (file,) = startup_kit.rglob("*.crt")
        subject = x509.load_pem_x509_certificate(file.read_bytes()).subject
        assert [a.value for a in subject.get_attributes_for_oid(NameOID.COMMON_NAME)] == [
            load_startup_kit(startup_kit).name
        ]


def test_a_startup_kit_knows_whose_it_is_and_the_project(startup_kits: dict[str, Path]) -> None:
    found = {name: load_startup_kit(startup_kit) for name, startup_kit in startup_kits.items()}
    assert {name: startup_kit.kind for name, startup_kit in found.items()} == {
        "server": "server", "coordinator": "coordinator", "bank_a": "site", "hub": "site",
    }  # fmt: skip
    assert all(startup_kit.project == PROJECT for startup_kit in found.values())
    assert found["coordinator"].name == PROJECT.coordinator


def test_nothing_in_a_startup_kit_starts_it_without_our_rules(startup_kits: dict[str, Path]) -> None:
    assert not [file for startup_kit in startup_kits.values() for file in startup_kit.rglob("*.sh")]
    for name in ("server", "bank_a", "hub"):
        assert {file.name for file in (startup_kits[name] / "local").iterdir()} == {
            "resources.json", "authorization.json", "log_config.json", "comm_config.json",
        }  # fmt: skip


def test_startup_kits_are_never_written_over_others(
    startup_kits: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = startup_kits["server"].parent
    before = {file: file.read_bytes() for file in out.rglob("*") if file.is_file()}
    write_project(PROJECT, tmp_path / "p.yaml")
    assert main(["site", "provision", str(tmp_path / "p.yaml"), "--out", str(out)]) == UNUSABLE
    assert "already exists" in capsys.readouterr().err
    assert {file: file.read_bytes() for file in out.rglob("*") if file.is_file()} == before


def test_startup_kits_that_cannot_be_finished_leave_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        raise OSError("no space")

    monkeypatch.setattr(rules, "log_config", fail)
    with pytest.raises(OSError, match="no space"):
        provision(PROJECT, tmp_path / "startup_kits")
    assert not list(tmp_path.iterdir())


def test_making_startup_kits_prints_each_of_them_and_nothing_of_the_provisioner(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_project(PROJECT, tmp_path / "p.yaml")
    assert main(["site", "provision", str(tmp_path / "p.yaml"), "--out", str(tmp_path / "startup_kits")]) == 0
    printed = capsys.readouterr()
    folders = [
        tmp_path / "startup_kits" / name for name in ("server", "coordinator", "bank_a", "hub", "authority")
    ]
    assert [line.split(": ")[0] for line in printed.out.splitlines()] == [str(folder) for folder in folders]
    assert printed.err == ""


@pytest.mark.parametrize("content", [None, "", "[]", "{}", '{"kind": "site", "name": "a", "project": {}}'])
def test_a_folder_that_is_no_startup_kit_is_refused_in_one_line(
    content: str | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if content is not None:
        (tmp_path / "kit.json").write_text(content)
    assert main(["site", "start", str(tmp_path)]) == UNUSABLE
    (line,) = capsys.readouterr().err.splitlines()
    assert str(tmp_path) in line


def test_without_nvflare_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"pip install '\.\[deploy\]'"):
        provision(PROJECT, tmp_path / "startup_kits")
    assert not list(tmp_path.iterdir())


# ---- what a party allows ----


def authorized(startup_kit: Path, right: str, role: str) -> bool:
    """What FLARE makes of a startup kit's authorization.json."""
    from nvflare.fuel.sec.authz import AuthzContext, Person
    from nvflare.security.security import FLAuthorizer

    policy = json.loads((startup_kit / "local" / "authorization.json").read_text())
    who = Person("somebody", ORGANISATION, role)
    return bool(FLAuthorizer(ORGANISATION, policy).authorize(AuthzContext(right, who, who))[0])


def test_the_coordinator_may_start_watch_and_end_runs_and_nothing_else(startup_kits: dict[str, Path]) -> None:
    from nvflare.apis.fl_constant import AdminCommandNames

    commands = {value for key, value in vars(AdminCommandNames).items() if key.isupper()} | {"byoc"}
    for name in ("server", "bank_a"):
        allowed = {command for command in commands if authorized(startup_kits[name], command, rules.ROLE)}
        assert allowed == set(rules.RIGHTS)
        for role in ("project_admin", "org_admin", "member", ""):
            assert not any(authorized(startup_kits[name], command, role) for command in commands)


def component_error(startup_kit: Path, path: str) -> str:
    """What FLARE's own authorizer says to a class that a job names, with the startup kit's resources.json."""
    from nvflare.apis.fl_exception import UnsafeComponentError
    from nvflare.apis.workspace import Workspace
    from nvflare.app_common.widgets.component_path_authorizer import ComponentPathAuthorizer

    workspace = Workspace(str(startup_kit), "bank_a")
    try:
        ComponentPathAuthorizer().authorize_component_config({"path": path, "args": {}}, workspace=workspace)
    except UnsafeComponentError as error:
        return str(error)
    return ""


@pytest.mark.parametrize(
    "path",
    [
        "subprocess.Popen",
        "os.system",
        "builtins.exec",
        "graphfed.files.write_bytes",
        "graphfed.runtime.nvflare_other.Class",
        "nvflare.app_common.executors.script_runner.ScriptRunner",
        "nvflare.collab.runtime.executor.Other",
        "nvflare.app_common.np.np_model_persistor.NPModelPersistor",
    ],
)
def test_a_class_that_is_not_on_the_list_is_refused_by_flare_at_the_server_and_at_sites(
    path: str, startup_kits: dict[str, Path]
) -> None:
    for name in ("server", "bank_a"):
        assert "is not in allow_list" in component_error(startup_kits[name], path)


def test_the_classes_on_the_list_are_let_through_by_flare(startup_kits: dict[str, Path]) -> None:
    for path in rules.ALLOWED_CLASSES:
        assert (
            component_error(startup_kits["bank_a"], path + "module.Class" if path.endswith(".") else path)
            == ""
        )


def test_the_site_s_handlers_that_stay_are_in_this_flare_and_run_no_command() -> None:
    from nvflare.private.fed.client.client_req_processors import ClientRequestProcessors

    from graphfed.runtime.nvflare.child import KEPT_REQUESTS

    found = {type(processor).__name__ for processor in ClientRequestProcessors.request_processors}
    assert set(KEPT_REQUESTS) < found
    assert "ShellCommandProcessor" in found - set(KEPT_REQUESTS)


GOOD = {"config/config_fed_client.json": '{"format_version": 2, "executors": []}'}


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (GOOD, ""),
        (GOOD | {".__nvfl_sig.json": "{}", "config/.__nvfl_submitter.crt": "x"}, ""),
        (GOOD | {"custom/code.py": "1"}, "custom/code.py is not a configuration"),
        (GOOD | {"config/code.py": "1"}, "config/code.py is not a configuration"),
        (GOOD | {"code.json": "{}"}, "code.json is not a configuration"),
        (GOOD | {"config/config_fed_client.conf": "{}"}, "is not a configuration"),
        ({"config/a.json": "{"}, "config/a.json cannot be read"),
        ({"config/a.json": '{"a": ["{$GRAPHFED_CLIENTS_KEY}"]}'}, "a variable or a file of the site"),
        ({"config/a.json": '{"a": "${secret:env:X}"}'}, "a variable or a file of the site"),
        ({"config/a.json": '{"a": "{\\u0024HOME}"}'}, "a variable or a file of the site"),
        ({"config/a.json": '{"{$HOME}": 1}'}, "a variable or a file of the site"),
        ({"config/a.json": "[" * 100_000}, "config/a.json cannot be read"),
    ],
)
def test_a_job_is_json_that_asks_for_nothing_of_the_site(
    files: dict[str, str], message: str, tmp_path: Path
) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    found = rules.job_error(tmp_path)
    assert message in found
    assert (found == "") == (message == "")


def test_a_link_in_a_job_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "a.json").symlink_to("/etc/hostname")
    assert "is not a regular file" in rules.job_error(tmp_path)


def test_flare_s_handlers_are_checked_before_a_site_runs_without_some(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A version that names them otherwise is refused, not run with all of them."""
    from nvflare.private.fed.client.client_req_processors import ClientRequestProcessors

    from graphfed.runtime.nvflare import child

    found: list[Any] = ClientRequestProcessors.request_processors
    monkeypatch.setattr(ClientRequestProcessors, "request_processors", found[1:])
    with pytest.raises(RuntimeError, match="ClientStatusProcessor"):
        child._forget_requests()


@pytest.mark.parametrize("kind", NO_FILE)
def test_what_is_no_regular_file_in_a_startup_kit_is_refused_at_once(
    kind: str, startup_kits: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    """FLARE opens some of the files itself: before it starts, each is looked at."""
    startup_kit = startup_kits["bank_a"]
    found = [path for path in sorted(startup_kit.rglob("*")) if path.is_file()]
    assert {"kit.json", "client.crt", "client.key", "rootCA.pem", "fed_client.json"} <= {
        p.name for p in found
    }
    for path in found:
        with replaced(path, kind), no_wait():
            refused: list[InputError] = []
            try:
                check_certificate(load_startup_kit(startup_kit))
            except InputError as error:
                refused.append(error)
            assert len(refused) == 1 or kind == "a folder", path
    with replaced(startup_kit / "startup" / "client.crt", kind), no_wait():
        assert main(["site", "start", str(startup_kit)]) == UNUSABLE
    assert len(capsys.readouterr().err.splitlines()) == 1
