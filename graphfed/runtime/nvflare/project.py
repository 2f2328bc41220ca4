"""The project file `graphfed-project.yaml`: the participants of a deployment, and the address of the server.

    name: fraud
    server: {host: fl.example.org, port: 8002, listen: 0.0.0.0}
    sites: [bank_a, {name: hub, clients: 100}, {name: chain, clients: [north, south]}]
    coordinator: coordinator@graphfed.example
    timing: {beat: 2, give_up: 30, deadline: 600, patience: 600}

The sites connect to `host`. The server listens at its own address `listen`, by default 127.0.0.1, which only
its own machine can reach. The sites are in the order of the clients; a site with several clients holds
consecutive ones. The coordinator starts runs.

Times are in seconds. A site reports every `beat`, and is lost to a run if it does not report for `give_up`. A
transfer is waited for until `deadline`. A run ends if a site or the server is away for longer than
`patience`. The times in the startup kit of the coordinator (kit.json) count.
"""

import dataclasses
import ipaddress
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from graphfed.errors import InputError, did_you_mean, shown
from graphfed.files import JsonObject, write_bytes
from graphfed.plain_yaml import dump_yaml, read_yaml

COORDINATOR = "coordinator@graphfed.example"
PORT = 8002
LOOPBACK = "127.0.0.1"
#: Names of folders next to the startup kits of the sites.
RESERVED = ("server", "coordinator", "authority")
#: FLARE's form of a name; a certificate has space for 64 characters.
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_CLIENT = re.compile(r"[^\r\n]{1,200}")
#: A DNS name has at most 253 characters.
_HOST = re.compile(
    r"(?=.{1,253}$)([A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?\.)*[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?"
)
_IDENTITY = re.compile(r"(?=.{1,64}$)[A-Za-z0-9._%+-]+@[A-Za-z0-9.-]+\.[A-Za-z]{2,}")
MAX_CLIENTS = 1_000_000
#: The longest time: thirty days.
MAX_SECONDS = 30 * 86400.0


@dataclasses.dataclass(frozen=True)
class Site:
    """A site. `client_names` is () if its clients have no names."""

    name: str
    clients: int = 1
    client_names: tuple[str, ...] = ()

    def to_json(self) -> str | JsonObject:
        if not self.client_names and self.clients == 1:
            return self.name
        return {"name": self.name, "clients": list(self.client_names) or self.clients}


@dataclasses.dataclass(frozen=True)
class Timing:
    """The times of a project in seconds; the docstring of this module explains them."""

    beat: float = 2.0
    give_up: float = 30.0
    deadline: float = 600.0
    patience: float = 600.0


TIMING = Timing()


@dataclasses.dataclass(frozen=True)
class Project:
    """A project. Its sites are in the order of the clients; they connect to `host`, and the server listens at
    `listen`.
    """

    name: str
    sites: tuple[Site, ...]
    host: str = "localhost"
    port: int = PORT
    listen: str = LOOPBACK
    coordinator: str = COORDINATOR
    timing: Timing = TIMING

    @property
    def workers(self) -> list[tuple[int, ...]]:
        """The ids of the clients of each site, which are consecutive."""
        blocks, start = [], 0
        for site in self.sites:
            blocks.append(tuple(range(start, start + site.clients)))
            start += site.clients
        return blocks

    @property
    def roster(self) -> list[str]:
        """The names of all clients: the given ones, or the name of the site, numbered if it has several."""
        names: list[str] = []
        for site in self.sites:
            is_single = site.clients == 1 and not site.client_names
            numbered = [site.name] if is_single else [f"{site.name}.{i}" for i in range(site.clients)]
            names += site.client_names or numbered
        return names

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"

    def to_json(self) -> JsonObject:
        """Return the content of the project file, which `make_project` takes."""
        return {
            "name": self.name,
            "server": {"host": self.host, "port": self.port, "listen": self.listen},
            "sites": [site.to_json() for site in self.sites],
            "coordinator": self.coordinator,
            "timing": dataclasses.asdict(self.timing),
        }


def load_project(path: Path) -> Project:
    """Read a project file; InputError if it is not plain YAML, or a value in it cannot be used."""
    return make_project(read_yaml(path, "the project file"), f"the project file {path}")


def make_project(content: object, origin: str) -> Project:
    """Make a project from the content of a project file; InputError names the value that cannot be used."""
    content = _mapping(content, origin, ("name", "server", "sites", "coordinator", "timing"))
    server = _mapping(content.get("server") or {}, f"{origin}, server", ("host", "port", "listen"))
    host = server.get("host", "localhost")
    if isinstance(host, str) and ":" in host:
        raise InputError(
            f"{origin}, server, host: {shown(host)} looks like an IPv6 address, and the server listens at "
            "IPv4 addresses only; give the name or the IPv4 address of the host"
        )
    host = _text(host, f"{origin}, server, host", _HOST, "the name or address of a host")
    listen = server.get("listen", LOOPBACK)
    try:
        listen = str(ipaddress.IPv4Address(listen))
    except ValueError:
        raise InputError(
            f"{origin}, server, listen: {shown(listen)} is not an IPv4 address; give 127.0.0.1 for this "
            "machine only, 0.0.0.0 for all addresses of the server, or one of its addresses"
        ) from None
    return Project(
        name=_text(content.get("name"), f"{origin}, name", _NAME, "letters, digits, - and _"),
        sites=_sites(content.get("sites"), f"{origin}, sites"),
        host=host,
        port=_number(server.get("port", PORT), f"{origin}, server, port", 1, 65535),
        listen=listen,
        coordinator=_text(
            content.get("coordinator", COORDINATOR),
            f"{origin}, coordinator",
            _IDENTITY,
            "as name@example.org",
        ),
        timing=_timing(content.get("timing") or {}, f"{origin}, timing"),
    )


def _timing(content: object, origin: str) -> Timing:
    names = [field.name for field in dataclasses.fields(Timing)]
    given = _mapping(content, origin, names)
    for key, value in given.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= MAX_SECONDS:
            raise InputError(
                f"{origin}, {key}: {shown(value)} cannot be used; give seconds, above 0 and at most "
                f"{MAX_SECONDS:g}"
            )
    timing = Timing(**{key: float(value) for key, value in given.items()})
    if timing.give_up < 2 * timing.beat:
        raise InputError(
            f"{origin}: give_up={timing.give_up:g} is too short for sites that report every "
            f"{timing.beat:g} s (beat), which would often be lost; give at least {2 * timing.beat:g}"
        )
    return timing


def write_project(project: Project, path: Path) -> None:
    """Write a project file; InputError if it exists."""
    if path.exists():
        raise InputError(f"{path} already exists; remove it, or give --out another name")
    write_bytes(path, dump_yaml(project.to_json()).encode())


def _mapping(content: object, origin: str, keys: Sequence[str]) -> JsonObject:
    if not isinstance(content, Mapping):
        raise InputError(f"{origin} must have the keys {', '.join(keys)}; got {shown(content)}")
    for key in content:
        if key not in keys:
            raise InputError(f"{origin} has no key {shown(key)}; {did_you_mean(str(key), keys)}")
    return dict(content)


def _text(value: object, origin: str, form: re.Pattern[str], expected: str) -> str:
    if not isinstance(value, str) or not form.fullmatch(value):
        raise InputError(f"{origin}: {shown(value)} cannot be used; write {expected}")
    return value


def _number(value: object, origin: str, low: int, high: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise InputError(f"{origin}: {shown(value)} cannot be used; give a number from {low} to {high}")
    return value


def _sites(content: object, origin: str) -> tuple[Site, ...]:
    if not isinstance(content, list) or not content:
        raise InputError(f"{origin}: name at least one site, as in [bank_a, bank_b]; got {shown(content)}")
    sites: list[Site] = []
    for entry in content:
        fields = entry if isinstance(entry, Mapping) else {"name": entry}
        fields = _mapping(fields, origin, ("name", "clients"))
        name = _text(fields.get("name"), origin, _NAME, "letters, digits, - and _, at most 64")
        if name.lower() in RESERVED:
            raise InputError(
                f"{origin}: {name!r} is the name of another folder next to the startup kits; choose "
                "another name"
            )
        # Some file systems do not distinguish capitals in the names of folders.
        if name.lower() in {site.name.lower() for site in sites}:
            raise InputError(f"{origin}: {name!r} is named twice; give every site another name")
        clients = fields.get("clients", 1)
        if isinstance(clients, list) and clients:
            names = tuple(
                _text(c, f"{origin}, {name}, clients", _CLIENT, "a name on one line") for c in clients
            )
            sites.append(Site(name, len(names), names))
        else:
            sites.append(Site(name, _number(clients, f"{origin}, {name}, clients", 1, MAX_CLIENTS)))
    roster = Project("roster", tuple(sites)).roster
    repeated = [client for client, count in Counter(roster).items() if count > 1]
    if repeated:
        raise InputError(f"{origin}: two clients have the name {shown(repeated[0])}; give each another name")
    return tuple(sites)
