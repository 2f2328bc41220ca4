"""Start-up kits: what the server, each site and the coordinator start with, made by FLARE's own provisioner.

A kit is a folder: `startup/` (certificate, key, addresses), `local/` (what this party allows), `kit.json`
(whose it is, and the project). Each goes to its party by a safe way and stays there: its key is its identity.

`authority/`, beside the kits, holds the key that signs all certificates, and copies of all others. Whoever
has it can pass for the server, for any site and for the coordinator: keep it off the machines that take part.
"""

import dataclasses
import json
import shutil
import tempfile
from pathlib import Path

from graphfed.errors import GraphfedError, InputError
from graphfed.files import write_json
from graphfed.runtime.nvflare import need_nvflare, rules
from graphfed.runtime.nvflare.project import Project, make_project

__all__ = ["AUTHORITY", "Kit", "load_kit", "provision"]

AUTHORITY = "authority"
KIT_FILE = "kit.json"
ORGANISATION = "graphfed"


@dataclasses.dataclass(frozen=True)
class Kit:
    """A start-up kit. kind: "server", "site" or "coordinator"; name: as FLARE knows its owner."""

    folder: Path
    kind: str
    name: str
    project: Project


def load_kit(folder: Path) -> Kit:
    """A kit by its folder. InputError where it is none."""
    file = folder / KIT_FILE
    try:
        content = json.loads(file.read_text())
        kind, name = str(content["kind"]), str(content["name"])
        project = make_project(content["project"], f"the kit {file}")
    except FileNotFoundError:
        raise InputError(
            f"{folder} is no start-up kit: it has no {KIT_FILE}; name one of the folders that "
            "'graphfed site provision' made"
        ) from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"the kit {file} cannot be read: {error}; copy the kit again") from None
    return Kit(folder.resolve(), kind, name, project)


def provision(project: Project, out: Path) -> dict[str, Path]:
    """Make the kits of a project: `out`/server, `out`/coordinator and one folder for each site.

    Gives each kit's folder by its name. All kits are there, or nothing is. InputError where `out` is there
    already: keys are never overwritten."""
    need_nvflare()
    if out.exists():
        raise InputError(f"{out} is there already; remove it, or name another folder (the keys will be new)")
    out.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(dir=out.parent, prefix=f".{out.name}."))  # private: mode 700
    try:
        made = _make(project, temporary / "flare")
        kits = temporary / "kits"
        kits.mkdir()
        parties = {"server": ("server", "server"), "coordinator": ("coordinator", project.coordinator)}
        parties |= {site.name: ("site", site.name) for site in project.sites}
        for folder, (kind, name) in parties.items():
            kit = Path(shutil.move(made / name, kits / folder))
            _adjust(kit, kind, project)
            write_json(kit / KIT_FILE, {"kind": kind, "name": name, "project": project.to_json()})
            kit.chmod(0o700)
        authority = Path(shutil.move(made.parent / "state", kits / AUTHORITY))
        authority.chmod(0o700)
        kits.rename(out)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return {folder: out / folder for folder in parties}


def _make(project: Project, root: Path) -> Path:
    """Run FLARE's provisioner; the folder of its kits, each under the name of its party."""
    from nvflare.lighter.constants import CtxKey, PropKey
    from nvflare.lighter.entity import Participant
    from nvflare.lighter.entity import Project as FlareProject
    from nvflare.lighter.impl.cert import CertBuilder
    from nvflare.lighter.impl.static_file import StaticFileBuilder
    from nvflare.lighter.impl.workspace import WorkspaceBuilder
    from nvflare.lighter.provisioner import Provisioner

    server = {PropKey.FED_LEARN_PORT: project.port, PropKey.DEFAULT_HOST: project.host}
    participants = [
        Participant("server", "server", ORGANISATION, server),
        *(Participant("client", site.name, ORGANISATION) for site in project.sites),
        Participant("admin", project.coordinator, ORGANISATION, {PropKey.ROLE: rules.ROLE}),
    ]
    builders = [
        WorkspaceBuilder(),
        StaticFileBuilder(config_folder="config", scheme="tcp"),
        CertBuilder(),
    ]
    provisioner = Provisioner(str(root), builders)
    log = _Log()
    ctx = provisioner.provision(FlareProject(project.name, "", participants), logger=log)
    if ctx.get(CtxKey.BUILD_ERROR):
        raise GraphfedError(f"FLARE's provisioner failed: {'; '.join(log.errors)}")
    return Path(ctx[CtxKey.CURRENT_PROD_DIR])


class _Log:
    """Where the provisioner says what it does; errors are kept."""

    def __init__(self) -> None:
        self.errors: list[str] = []

    def debug(self, message: str) -> None: ...

    def info(self, message: str) -> None: ...

    def warning(self, message: str) -> None: ...

    def error(self, message: str) -> None:
        self.errors.append(message)


#: What FLARE's provisioner adds for people who work without graphfed: start scripts that would leave our
#: rules out, and texts about them.
_LEFT_OUT = (
    "readme.txt", "startup/readme.txt", "startup/start.sh", "startup/sub_start.sh", "startup/stop_fl.sh",
    "startup/fl_admin.sh", "startup/system_info.ipynb",
)  # fmt: skip


def _adjust(kit: Path, kind: str, project: Project) -> None:
    """Make FLARE's kit ours: its rules are `rules`, and nothing in it starts it without them."""
    for name in _LEFT_OUT:
        (kit / name).unlink(missing_ok=True)
    if kind != "coordinator":
        for file in (kit / "local").iterdir():
            file.unlink()
        write_json(kit / "local" / "resources.json", rules.resources(kind, len(project.sites)))
        write_json(kit / "local" / "authorization.json", rules.authorization())
        write_json(kit / "local" / "log_config.json", rules.log_config())
        # No connections between sites, past the server; the processes of runs connect here by loopback only.
        write_json(
            kit / "local" / "comm_config.json",
            {
                "allow_adhoc_conns": False,
                "internal": {"scheme": "tcp", "resources": {"host": "127.0.0.1", "listen_host": "127.0.0.1"}},
            },
        )
    if kind == "server":
        file = kit / "startup" / "fed_server.json"
        content = json.loads(file.read_text())
        content["servers"][0]["service"]["target"] = f"{project.listen}:{project.port}"
        write_json(file, content)
