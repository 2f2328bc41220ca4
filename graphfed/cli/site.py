"""`graphfed site ...`: sets up a deployment and runs the processes of its participants."""

import ipaddress
import json
import math
import signal
import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer

from graphfed.cli.options import Json, byte_count, whole_number
from graphfed.cli.output import fill, show
from graphfed.errors import GraphfedError, InputError, did_you_mean
from graphfed.terminal import make_table, print_line

app = typer.Typer(
    help="""Set up a deployment, in which every site is a process on its own machine, and start its processes.

    Examples:

        graphfed site init --sites bank_a,bank_b,bank_c
        graphfed site provision
        graphfed site check startup_kits/bank_a --data accounts.yaml
        graphfed site start startup_kits/bank_a --data accounts.yaml
        graphfed site status startup_kits/coordinator
        graphfed site sent startup_kits/bank_a

    See also: graphfed run
    """,
    no_args_is_help=True,
    rich_markup_mode="markdown",
)

StartupKit = Annotated[
    Path,
    typer.Argument(metavar="KIT", help="Folder of a startup kit, which 'graphfed site provision' has made."),
]
Data = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="The description (.yaml) of this site's own data. Every site needs one. The server needs one "
        "only for forecasting: it describes the graph between the sensors.",
    ),
]
Device = Annotated[
    str, typer.Option(metavar="NAME", help="The device on which runs compute here: cpu, cuda or cuda:0.")
]
Allow = Annotated[
    list[str] | None,
    typer.Option(
        metavar="MODULE",
        help="A Python module on this machine, such as a plug-in, whose methods and programs may run here. "
        "Give the option once per module (default: only those of graphfed).",
    ),
]
Methods = Annotated[
    str | None,
    typer.Option(
        metavar="A,B",
        help="The only methods in whose runs this site takes part; they may be methods of plug-ins (default: "
        "all methods of graphfed).",
    ),
]
Forbid = Annotated[
    list[str] | None,
    typer.Option(
        metavar="KEY=VALUE",
        help="A setting that this site refuses, as in maps=identity, or 'epsilon>1' for every larger number "
        "and 'noise<1' for every smaller one. Give the option once per setting.",
    ),
]


#: The receivers in `Sent`, for people.
TO = {"server": "the server", "client": "other sites"}


@app.command("init")
def site_init(
    *,
    sites: Annotated[
        str,
        typer.Option(
            metavar="A,B,C", show_default=False, help="Names of the sites, in the order of the clients."
        ),
    ],
    server: Annotated[
        str,
        typer.Option(metavar="HOST:PORT", help="The address to which the sites connect."),
    ] = "localhost:8002",
    listen: Annotated[
        str,
        typer.Option(
            metavar="ADDRESS",
            help="The server's own address at which it listens; 0.0.0.0 stands for all its addresses.",
        ),
    ] = "127.0.0.1",
    name: Annotated[str, typer.Option(metavar="NAME", help="Name of the project.")] = "graphfed",
    out: Annotated[Path, typer.Option(metavar="FILE", help="The new file.")] = Path("graphfed-project.yaml"),
) -> None:
    """Write the project file, which names the sites and the address of the server.

    The file can be edited: a site that holds several clients is written as {name: hub, clients: 100}.

    Examples:

        graphfed site init --sites bank_a,bank_b,bank_c
        graphfed site init --sites a,b --server 10.0.0.7:8002 --listen 10.0.0.7

    Files:

        graphfed-project.yaml    the project file, unless --out names another

    See also: graphfed site provision
    """
    from graphfed.runtime.nvflare.project import make_project, write_project

    host, colon, port = server.rpartition(":")
    if not colon or not port.isdecimal():
        raise InputError(f"--server {server!r} cannot be used; give HOST:PORT, as in localhost:8002")
    content = {
        "name": name,
        "server": {"host": host, "port": int(port), "listen": listen},
        "sites": [site.strip() for site in sites.split(",")],
    }
    # The same checks as for a file, so that nothing is written that cannot be read again.
    project = make_project(content, "the project")
    write_project(project, out)
    # Sites on other machines could not reach a server that listens at a loopback address.
    if project.host != "localhost" and ipaddress.ip_address(project.listen).is_loopback:
        print_line(
            f"the server will listen at {listen}, which only its own machine can reach; give --listen "
            "ADDRESS for sites on other machines"
        )
    print_line(f"project file: {out}\nnext, make the startup kits: graphfed site provision {out}")


@app.command("provision")
def site_provision(
    project: Annotated[Path, typer.Argument(metavar="PROJECT", help="The project file.")] = Path(
        "graphfed-project.yaml"
    ),
    *,
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="The new folder for the startup kits.")] = Path(
        "startup_kits"
    ),
) -> None:
    """Make a startup kit for the server, for each site, and for the coordinator, which starts runs.

    A startup kit contains the private key of its participant: send it over a secure channel and keep no copy.
    The folder "authority" contains the key that signs all certificates. Anybody who has it can impersonate
    every participant: keep it where no other person has access.

    Examples:

        graphfed site provision
        graphfed site provision fraud.yaml --out fraud-kits

    Files:

        startup_kits/server, startup_kits/coordinator, startup_kits/SITE for each site
        startup_kits/authority

    See also: graphfed site init, graphfed site start
    """
    from graphfed.runtime.nvflare.project import load_project
    from graphfed.runtime.nvflare.startup_kits import AUTHORITY, provision

    startup_kits = provision(load_project(project), out)
    for startup_kit in startup_kits.values():
        print_line(startup_kit)
    print_line(f"{out / AUTHORITY}: keep this folder secret; its key can sign a startup kit in any name")


@app.command("start")
def site_start(
    startup_kit: StartupKit,
    *,
    data: Data = None,
    threads: Annotated[
        int | None,
        typer.Option(
            parser=whole_number, metavar="N", help="Number of threads of a run on this machine (default: 1)."
        ),
    ] = None,
    device: Device = "cpu",
    allow: Allow = None,
    methods: Methods = None,
    forbid: Forbid = None,
    memory: Annotated[
        int | None,
        typer.Option(
            parser=byte_count,
            metavar="BYTES",
            help="The memory that a run may take on this machine, as in 4GB (default: half of what is "
            "available when the run starts).",
        ),
    ] = None,
    rehearsal: Annotated[
        bool,
        typer.Option("--rehearsal", hidden=True, help="Accept runs that hide nothing, on this machine only."),
    ] = False,
    check_data: Annotated[
        bool,
        typer.Option(
            "--check-data/--no-check-data",
            help="Read the data before the process starts, or only when the first run begins.",
        ),
    ] = True,
) -> None:
    """Start the process of the server or of a site, and log what happens, until Ctrl-C or SIGTERM.

    A site connects to the server and waits for runs. It accepts only runs of graphfed from the server, and
    neither code nor commands. Its data stays in the files that --data names.

    Examples:

        graphfed site start startup_kits/server
        graphfed site start startup_kits/bank_a --data accounts.yaml
        graphfed site start startup_kits/bank_a --data bank.yaml --methods sapgnn

    Environment:

        GRAPHFED_CLIENTS_KEY   the key with which the sites hash node ids (node_ids=keyed)

    Files:

        KIT/log.txt            the log of NVIDIA FLARE
        KIT/audit.log          requests, and who made them

    See also: graphfed site status
    """
    from graphfed.runtime.nvflare.place import Place
    from graphfed.runtime.nvflare.process import run_parent

    if threads is not None and threads < 1:
        raise InputError(f"threads={threads} cannot be used: expected a whole number of at least 1")
    given = ["--data", str(data)] if data is not None and check_data else []
    given += [] if device == "cpu" else ["--device", device]
    given += [] if methods is None else ["--methods", methods]
    given += [word for pair in forbid or () for word in ("--forbid", pair)]
    if given:
        given += [word for module in allow or () for word in ("--allow", module)]
        # A process of its own checks the data: reading data loads torch, and this process runs as long as
        # the site.
        checked = subprocess.run(
            [sys.executable, "-m", "graphfed", "site", "check", str(startup_kit), *given], check=False
        )
        if checked.returncode < 0:
            raise GraphfedError(
                f"the check of the data and options of {startup_kit} was ended by signal "
                f"{-checked.returncode} ({signal.strsignal(-checked.returncode)}); start again, and give "
                "the machine more memory if it has run out"
            )
        if checked.returncode:
            raise typer.Exit(checked.returncode)
    place = Place(
        name="",  # the startup kit has it
        startup_kit=startup_kit,
        data=data,
        threads=threads or 1,
        device=device,
        allow=tuple(allow or ()),
        methods=tuple(_named_methods(methods)),
        forbid=tuple(forbid or ()),
        memory=memory or 0,
        rehearsal=rehearsal,
    )
    run_parent(place, print_line)


@app.command("check")
def site_check(
    startup_kit: StartupKit,
    *,
    data: Data = None,
    device: Device = "cpu",
    allow: Allow = None,
    methods: Methods = None,
    forbid: Forbid = None,
) -> None:
    """Check the data and options of a site before it starts: read its data as a run would, and summarise it.

    Examples:

        graphfed site check startup_kits/bank_a --data accounts.yaml

    See also: graphfed site start
    """
    from graphfed.deployment.site_files import checked_file
    from graphfed.methods.registry import get_method
    from graphfed.runs.config import checked_device
    from graphfed.runtime.nvflare.startup_kits import load_startup_kit

    loaded = load_startup_kit(startup_kit)
    checked_device(device)
    named = _named_methods(methods)
    # With --allow the name may belong to a module that is imported only when a run asks for it.
    for name in named if not allow else ():
        get_method(name)
    for pair in forbid or ():
        _check_forbidden(pair)
    if data is None:
        return
    print_line(f"{loaded.name}: {checked_file(data, loaded.project.roster, loaded.name)}")


def _named_methods(methods: str | None) -> list[str]:
    """Return the names of the methods of --methods, aliases resolved; [] without the option."""
    from graphfed.methods.registry import METHODS, canonical_name

    if methods is None:
        return []
    named = [name.strip() for name in methods.split(",") if name.strip()]
    if not named:
        raise InputError(
            "--methods is empty; give methods, as in --methods fedavg,sapgnn, or leave it out for all"
        )
    # A name that graphfed does not know may belong to an allowed module, so it stays as it is written.
    return [canonical_name(name) if canonical_name(name) in METHODS else name for name in named]


def _check_forbidden(pair: str) -> None:
    """Raise InputError unless the pair is a rule about a setting: a rule that is misread protects nothing."""
    from graphfed.methods.registry import METHODS
    from graphfed.runs.settings import RULE, settings_of, unusable_value

    parts = RULE.fullmatch(pair)
    if parts is None:
        raise InputError(
            f"--forbid {pair!r} cannot be read; write KEY=VALUE, as in maps=identity, or KEY>NUMBER, as in "
            "epsilon>1"
        )
    key, sign, value = parts.groups()
    methods = METHODS.usable().values()
    owners = [method for method in methods if key in {setting.name for setting in settings_of(method)}]
    if not owners:
        known = {setting.name for method in methods for setting in settings_of(method)}
        raise InputError(f"--forbid {pair!r}: no method has the setting {key!r}; {did_you_mean(key, known)}")
    if sign != "=":
        try:
            limit = float(value)
        except ValueError:
            limit = math.nan
        if not math.isfinite(limit):
            raise InputError(f"--forbid {pair!r} would protect nothing: {value!r} is not a number")
        return
    complaints = [unusable_value(method, key, value) for method in owners]
    # One method for which the value is possible is enough for the rule to protect something.
    if all(complaints):
        raise InputError(f"--forbid {pair!r} would protect nothing: {complaints[0]}")


@app.command("status")
def site_status(startup_kit: StartupKit, *, as_json: Json = False) -> None:
    """Ask the server which sites are connected and which runs are in progress.

    The command needs the startup kit of the coordinator.

    Examples:

        graphfed site status startup_kits/coordinator

    See also: graphfed site start
    """
    from graphfed.runtime.nvflare.status import status

    found = status(startup_kit)
    if as_json:
        print_line(json.dumps(found.to_json()))
        return
    rows = [
        (name, "yes" if heard else "no", f"{heard:%H:%M:%S} UTC" if heard else "")
        for name, heard in found.sites.items()
    ]
    title = f"server {found.address}, started {found.started:%Y-%m-%d %H:%M:%S} UTC"
    show(make_table(("site", "connected", "last heard"), rows, title=title))
    print_line(f"runs in progress: {', '.join(found.runs) or 'none'}")


@app.command("sent")
def site_sent(
    startup_kit: StartupKit,
    run: Annotated[
        str | None,
        typer.Argument(metavar="RUN", help="Name of a run (default: the run that ended last at this site)."),
    ] = None,
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON list.")] = False,
) -> None:
    """List what this site sent in a run: every transfer with its meaning, its bytes and its protection.

    The list is read from the site's own ledger, KIT/runs/RUN/ledger.json.

    Examples:

        graphfed site sent startup_kits/bank_a

    See also: graphfed site start, graphfed report
    """
    from dataclasses import asdict

    from graphfed.report.sent import last_run, released_before, released_in, sent_in
    from graphfed.runs.progress import human_bytes

    folder = last_run(startup_kit / "runs", run)
    sent = sent_in(folder)
    if as_json:
        print_line(json.dumps([asdict(line) for line in sent]))
        return
    total = sum(line.bytes for line in sent)
    print_line(
        fill(f"{folder.name}: this site sent {len(sent)} kinds of values, {human_bytes(total)} in total")
    )
    for line in sent:
        print_line()
        print_line(
            fill(f"{line.name}: {human_bytes(line.bytes)} to {TO.get(line.to, line.to)} ({line.phases})")
        )
        print_line(fill(line.description, "  "))
        print_line(fill(f"protection: {line.protection}", "  "))
    if released_in(folder):
        earlier = released_before(folder)
        named = ", ".join(f"{run}: {' and '.join(noised)}" for run, noised in earlier.items())
        print_line()
        print_line(
            fill(
                f"noised values of the same data in other runs of this site: {len(earlier)} runs"
                + (f" ({named})" if earlier else "")
                + ". The budgets of all runs add up, and graphfed limits no sum over runs"
            )
        )
