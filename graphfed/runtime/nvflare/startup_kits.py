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
from datetime import UTC, datetime
from pathlib import Path

from graphfed.errors import GraphfedError, InputError, shown
from graphfed.files import parse_json, read_regular, write_json
from graphfed.runtime.nvflare import need_nvflare, rules
from graphfed.runtime.nvflare.project import Project, make_project

__all__ = ["AUTHORITY", "StartupKit", "check_certificate", "load_startup_kit", "provision"]

AUTHORITY = "authority"
STARTUP_KIT_FILE = "kit.json"
ORGANISATION = "graphfed"


@dataclasses.dataclass(frozen=True)
class StartupKit:
    """A start-up kit. kind: "server", "site" or "coordinator"; name: as FLARE knows its owner."""

    folder: Path
    kind: str
    name: str
    project: Project


def load_startup_kit(folder: Path) -> StartupKit:
    """A kit by its folder. InputError where it is none."""
    file = folder / STARTUP_KIT_FILE
    try:
        content = parse_json(read_regular(file))
        kind, name = str(content["kind"]), str(content["name"])
        project = make_project(content["project"], f"the kit {file}")
    except FileNotFoundError:
        raise InputError(
            f"{folder} is no start-up kit: it has no {STARTUP_KIT_FILE}; name one of the folders that "
            "'graphfed site provision' made"
        ) from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"the kit {file} cannot be read: {error}; copy the kit again") from None
    return StartupKit(folder.resolve(), kind, name, project)


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
        startup_kits = temporary / "startup_kits"
        startup_kits.mkdir()
        parties = {"server": ("server", "server"), "coordinator": ("coordinator", project.coordinator)}
        parties |= {site.name: ("site", site.name) for site in project.sites}
        for folder, (kind, name) in parties.items():
            startup_kit = Path(shutil.move(made / name, startup_kits / folder))
            _adjust(startup_kit, kind, project)
            write_json(
                startup_kit / STARTUP_KIT_FILE, {"kind": kind, "name": name, "project": project.to_json()}
            )
        shutil.move(made.parent / "state", startup_kits / AUTHORITY)
        _make_private(startup_kits)
        startup_kits.rename(out)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return {folder: out / folder for folder in parties}


def check_certificate(startup_kit: StartupKit) -> None:
    """Check that a kit's certificate is its owner's, is valid now, and goes with the key beside it.

    A server refuses any other one. FLARE would only go on trying, and say nothing.

    Args:
        kit: The kit.

    Raises:
        InputError: it is another party's, is not valid today, has another key, or cannot be read.
    """
    from cryptography import x509
    from cryptography.hazmat.primitives.serialization import load_pem_private_key
    from cryptography.x509.oid import NameOID

    stem = startup_kit.folder / "startup" / ("server" if startup_kit.kind == "server" else "client")
    file, key_file = stem.with_suffix(".crt"), stem.with_suffix(".key")
    try:
        certificate = x509.load_pem_x509_certificate(file.read_bytes())
        key = load_pem_private_key(key_file.read_bytes(), None)
    except (OSError, ValueError, TypeError) as error:
        raise InputError(
            f"the certificate in {file.parent} cannot be read: {error}; copy the kit again"
        ) from None
    names = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    owner = ", ".join(str(name.value) for name in names)
    if owner != startup_kit.name:
        raise InputError(
            f"the certificate in {file} is of {shown(owner)}, and the kit of {startup_kit.name!r}; copy "
            f"the kit of "
            f"{startup_kit.name} again, as a whole"
        )
    if certificate.public_key() != key.public_key():
        raise InputError(f"{key_file} is not the key of the certificate beside it; copy the kit again")
    now = datetime.now(UTC)
    start, end = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    if not start <= now <= end:
        raise InputError(
            f"the certificate in {file} is valid from {start:%Y-%m-%d} to {end:%Y-%m-%d}, and today is "
            f"{now:%Y-%m-%d}; set the clock, or make new kits for all"
        )


def _make_private(root: Path) -> None:
    """Let nobody but their owner read the files below a folder, or look into it."""
    for path in (root, *root.rglob("*")):
        path.chmod(0o700 if path.is_dir() else 0o600)


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


def _adjust(startup_kit: Path, kind: str, project: Project) -> None:
    """Make FLARE's kit ours: its rules are `rules`, and nothing in it starts it without them."""
    for name in _LEFT_OUT:
        (startup_kit / name).unlink(missing_ok=True)
    if kind != "coordinator":
        for file in (startup_kit / "local").iterdir():
            file.unlink()
        write_json(startup_kit / "local" / "resources.json", rules.resources(kind, len(project.sites)))
        write_json(startup_kit / "local" / "authorization.json", rules.authorization())
        write_json(startup_kit / "local" / "log_config.json", rules.log_config())
        # No connections between sites, past the server; the processes of runs connect here by loopback only.
        write_json(
            startup_kit / "local" / "comm_config.json",
            {
                "allow_adhoc_conns": False,
                "internal": {"scheme": "tcp", "resources": {"host": "127.0.0.1", "listen_host": "127.0.0.1"}},
            },
        )
    if kind == "server":
        file = startup_kit / "startup" / "fed_server.json"
        content = json.loads(file.read_text())
        content["servers"][0]["service"]["target"] = f"{project.listen}:{project.port}"
        write_json(file, content)
