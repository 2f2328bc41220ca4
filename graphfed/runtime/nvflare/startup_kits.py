"""Startup kits: the folders with which the server, each site and the coordinator start.

FLARE's own provisioner makes them. A startup kit has `startup/` (certificate, key, addresses), `local/` (what
this participant allows) and `kit.json` (the participant and the project). Each is sent to its participant
over a secure channel and stays there: its key is the identity of the participant.

`authority/`, next to the startup kits, has the key that signs all certificates, and copies of all other keys.
Anybody who has it can impersonate the server, every site and the coordinator: keep it away from the machines
that take part.
"""

import dataclasses
import json
import shutil
import tempfile
from datetime import UTC, datetime
from pathlib import Path

from graphfed.errors import GraphfedError, InputError, shown
from graphfed.files import check_regular, parse_json, read_regular, write_json
from graphfed.runtime.nvflare import need_nvflare, rules
from graphfed.runtime.nvflare.project import Project, make_project

AUTHORITY = "authority"
STARTUP_KIT_FILE = "kit.json"
ORGANISATION = "graphfed"


@dataclasses.dataclass(frozen=True)
class StartupKit:
    """A startup kit of the kind "server", "site" or "coordinator"; `name` is its participant's in FLARE."""

    folder: Path
    kind: str
    name: str
    project: Project


def load_startup_kit(folder: Path) -> StartupKit:
    """Load a startup kit; InputError if the folder is none, or it is damaged."""
    file = folder / STARTUP_KIT_FILE
    try:
        content = parse_json(read_regular(file))
        kind, name = str(content["kind"]), str(content["name"])
        project = make_project(content["project"], f"the startup kit {file}")
        # FLARE opens these files itself, and waits for ever at a named pipe.
        for part in (folder, folder / "startup", folder / "local"):
            for path in part.iterdir() if part.is_dir() else ():
                if not path.is_dir():
                    check_regular(path)
    except FileNotFoundError:
        raise InputError(
            f"{folder} is not a startup kit: it has no {STARTUP_KIT_FILE}; give one of the folders that "
            "'graphfed site provision' made"
        ) from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"the startup kit {file} cannot be read: {error}; copy the startup kit again"
        ) from None
    return StartupKit(folder.resolve(), kind, name, project)


def provision(project: Project, out: Path) -> dict[str, Path]:
    """Make the startup kits of a project, `out`/server, `out`/coordinator and one folder for each site, or
    none.

    The result has the folder of each startup kit by its name.

    Raises:
        InputError: `out` exists; keys are never overwritten.
        GraphfedError: FLARE's provisioner failed.
    """
    need_nvflare()
    if out.exists():
        raise InputError(f"{out} already exists; remove it, or give another folder (new keys will be made)")
    out.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(dir=out.parent, prefix=f".{out.name}."))  # private: mode 700
    try:
        provisioned = _run_provisioner(project, temporary / "flare")
        startup_kits = temporary / "startup_kits"
        startup_kits.mkdir()
        participants = {"server": ("server", "server"), "coordinator": ("coordinator", project.coordinator)}
        participants |= {site.name: ("site", site.name) for site in project.sites}
        for folder, (kind, name) in participants.items():
            startup_kit = Path(shutil.move(provisioned / name, startup_kits / folder))
            _adjust(startup_kit, kind, project)
            write_json(
                startup_kit / STARTUP_KIT_FILE, {"kind": kind, "name": name, "project": project.to_json()}
            )
        # The key of the authority is in no startup kit.
        shutil.move(provisioned.parent / "state", startup_kits / AUTHORITY)
        _make_private(startup_kits)
        # A rename is one step: the kits are all there or none.
        startup_kits.rename(out)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return {folder: out / folder for folder in participants}


def check_certificate(startup_kit: StartupKit) -> None:
    """Raise InputError unless the certificate of a startup kit has its name, is valid now and matches its
    key.

    A server refuses any other certificate, and FLARE would only retry without a message.
    """
    from cryptography import x509
    from cryptography.hazmat.primitives.serialization import load_pem_private_key
    from cryptography.x509.oid import NameOID

    stem = startup_kit.folder / "startup" / ("server" if startup_kit.kind == "server" else "client")
    file, key_file = stem.with_suffix(".crt"), stem.with_suffix(".key")
    try:
        certificate = x509.load_pem_x509_certificate(read_regular(file))
        key = load_pem_private_key(read_regular(key_file), None)
    except (OSError, ValueError, TypeError) as error:
        raise InputError(
            f"the certificate in {file.parent} cannot be read: {error}; copy the startup kit again"
        ) from None
    names = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    owner = ", ".join(str(name.value) for name in names)
    if owner != startup_kit.name:
        raise InputError(
            f"the certificate in {file} belongs to {shown(owner)}, but the startup kit belongs to "
            f"{startup_kit.name!r}; copy the whole startup kit of {startup_kit.name} again"
        )
    if certificate.public_key() != key.public_key():
        raise InputError(f"{key_file} does not match the certificate next to it; copy the startup kit again")
    now = datetime.now(UTC)
    start, end = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    if not start <= now <= end:
        raise InputError(
            f"the certificate in {file} is valid from {start:%Y-%m-%d} to {end:%Y-%m-%d}, and today is "
            f"{now:%Y-%m-%d}; set the clock, or make new startup kits for all participants"
        )


def _make_private(root: Path) -> None:
    for path in (root, *root.rglob("*")):
        path.chmod(0o700 if path.is_dir() else 0o600)


def _run_provisioner(project: Project, root: Path) -> Path:
    """Run FLARE's provisioner; return the folder of its kits, each under the name of its participant."""
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
    """The log of the provisioner, which keeps errors only."""

    def __init__(self) -> None:
        self.errors: list[str] = []

    def debug(self, message: str) -> None: ...

    def info(self, message: str) -> None: ...

    def warning(self, message: str) -> None: ...

    def error(self, message: str) -> None:
        self.errors.append(message)


#: Files of FLARE's provisioner that are removed: start scripts, which would ignore our rules, and texts about
#: them.
_LEFT_OUT = (
    "readme.txt", "startup/readme.txt", "startup/start.sh", "startup/sub_start.sh", "startup/stop_fl.sh",
    "startup/fl_admin.sh", "startup/system_info.ipynb",
)  # fmt: skip


def _adjust(startup_kit: Path, kind: str, project: Project) -> None:
    """Replace the rules in FLARE's kit by ours (`rules`), and remove scripts that start it without them."""
    for name in _LEFT_OUT:
        (startup_kit / name).unlink(missing_ok=True)
    if kind != "coordinator":
        for file in (startup_kit / "local").iterdir():
            file.unlink()
        write_json(startup_kit / "local" / "resources.json", rules.resources(kind, len(project.sites)))
        write_json(startup_kit / "local" / "authorization.json", rules.authorization())
        write_json(startup_kit / "local" / "log_config.json", rules.log_config())
        # Sites do not connect to each other, and the processes of runs connect to this one by loopback only.
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
