"""`graphfed site ...`: the parties of a deployment, and their long-lived processes."""

import ipaddress
import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer

from graphfed.cli.options import Json, whole_number
from graphfed.cli.output import fill, show
from graphfed.errors import GraphfedError, InputError, did_you_mean
from graphfed.terminal import make_table, print_line

__all__ = ["app"]

app = typer.Typer(
    help="""Set up a deployment, in which every site is a process on its own machine, and start its parties.

    Examples:
        graphfed site init --sites bank_a,bank_b,bank_c
        graphfed site provision
        graphfed site check startup_kits/bank_a --data accounts.yaml
        graphfed site start startup_kits/bank_a --data accounts.yaml
        graphfed site status startup_kits/coordinator
        graphfed site sent startup_kits/bank_a
    See also:
        graphfed run
    """,
    rich_markup_mode="markdown",
)

StartupKit = Annotated[
    Path, typer.Argument(metavar="KIT", help="The kit's folder, from 'graphfed site provision'.")
]
Data = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="The description (.yaml) of this site's own data; a site needs it, and the server where sensors "
        "forecast: of the graph between them.",
    ),
]
Device = Annotated[
    str, typer.Option(metavar="NAME", help="cpu, cuda or cuda:0: what a run computes on here.")
]
Allow = Annotated[
    list[str] | None,
    typer.Option(
        metavar="MODULE",
        help="A module of this machine, as a plug-in's, whose methods and programs runs may use, as often as "
        "needed; without it only graphfed's own.",
    ),
]
Methods = Annotated[
    str | None,
    typer.Option(
        metavar="A,B",
        help="The only methods that this site takes part in, those of plug-ins among them (default: all of "
        "graphfed's own).",
    ),
]
Forbid = Annotated[
    list[str] | None,
    typer.Option(
        metavar="KEY=VALUE",
        help="A setting with which this site takes part in no run, as often as needed: maps=identity.",
    ),
]


@app.command("init")
def site_init(
    *,
    sites: Annotated[
        str, typer.Option(metavar="A,B,C", show_default=False, help="The sites, in the order of the clients.")
    ],
    server: Annotated[
        str,
        typer.Option(metavar="HOST:PORT", help="What the sites connect to."),
    ] = "localhost:8002",
    listen: Annotated[
        str,
        typer.Option(
            metavar="ADDRESS",
            help="The address of its own that the server listens at; 0.0.0.0 for every one it has.",
        ),
    ] = "127.0.0.1",
    name: Annotated[str, typer.Option(metavar="NAME", help="The project's name.")] = "graphfed",
    out: Annotated[Path, typer.Option(metavar="FILE", help="The new file.")] = Path("graphfed-project.yaml"),
) -> None:
    """Write the project file: who takes part, and where the server is.

    It can be edited: a site that holds several clients is written as {name: hub, clients: 100}.

    Examples:
        graphfed site init --sites bank_a,bank_b,bank_c
        graphfed site init --sites a,b --server 10.0.0.7:8002 --listen 10.0.0.7
    Files:
        graphfed-project.yaml    the project file, where no --out is given
    See also:
        graphfed site provision
    """
    from graphfed.runtime.nvflare.project import make_project, write_project

    host, colon, port = server.rpartition(":")
    if not colon or not port.isdecimal():
        raise InputError(f"--server: {server!r} cannot be used; give HOST:PORT, as in localhost:8002")
    content = {
        "name": name,
        "server": {"host": host, "port": int(port), "listen": listen},
        "sites": [site.strip() for site in sites.split(",")],
    }
    project = make_project(content, "the project")
    write_project(project, out)
    if project.host != "localhost" and ipaddress.ip_address(project.listen).is_loopback:
        print_line(f"the server listens at {listen}, so only to its own machine; --listen says where else")
    print_line(f"{out}: next, make the kits: graphfed site provision {out}")


@app.command("provision")
def site_provision(
    project: Annotated[Path, typer.Argument(metavar="PROJECT", help="The project file.")] = Path(
        "graphfed-project.yaml"
    ),
    *,
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="The new folder for the kits.")] = Path(
        "startup_kits"
    ),
) -> None:
    """Make a start-up kit for the server, for each site and for the coordinator, who starts runs.

    A kit holds its party's key: bring it there by a safe way, and keep no copy. The folder authority holds
    the key that signs all others. Whoever has it can pass for any of them: keep it where nobody else comes.

    Examples:
        graphfed site provision
        graphfed site provision fraud.yaml --out fraud-kits
    Files:
        startup_kits/server, startup_kits/coordinator, startup_kits/NAME of each site, startup_kits/authority
    See also:
        graphfed site init, graphfed site start
    """
    from graphfed.runtime.nvflare.project import load_project
    from graphfed.runtime.nvflare.startup_kits import AUTHORITY, provision

    startup_kits = provision(load_project(project), out)
    for startup_kit in startup_kits.values():
        print_line(startup_kit)
    print_line(f"{out / AUTHORITY}: keep this one safe; it can make kits of anybody's name")


@app.command("start")
def site_start(
    startup_kit: StartupKit,
    *,
    data: Data = None,
    threads: Annotated[
        int | None,
        typer.Option(parser=whole_number, metavar="N", help="Threads that a run computes with here."),
    ] = None,
    device: Device = "cpu",
    allow: Allow = None,
    methods: Methods = None,
    forbid: Forbid = None,
    check_data: Annotated[
        bool,
        typer.Option(
            "--check-data/--no-check-data",
            help="Read the data before the process starts, or leave it to the first run to refuse data that "
            "cannot be used.",
        ),
    ] = True,
) -> None:
    """Start the server's process, or a site's, and tell what happens, until Ctrl-C or SIGTERM.

    A site connects to the server and waits for runs. It takes nothing but runs of graphfed from it: no code,
    no commands. Its data stays in the files that --data names.

    Examples:
        graphfed site start startup_kits/server
        graphfed site start startup_kits/bank_a --data accounts.yaml
        graphfed site start startup_kits/bank_a --data mine.yaml --methods sapgnn
    Environment:
        GRAPHFED_CLIENTS_KEY   the clients' key, for runs that need one
    Files:
        KIT/log.txt            what NVIDIA FLARE has to say
        KIT/audit.log          who asked for what
    See also:
        graphfed site status
    """
    from graphfed.runtime.nvflare.process import run_parent

    if threads is not None and threads < 1:
        raise InputError(f"threads={threads} cannot be used: expected a whole number of at least 1")
    given = ["--data", str(data)] if data is not None and check_data else []
    given += [] if device == "cpu" else ["--device", device]
    given += [] if methods is None else ["--methods", methods]
    given += [word for pair in forbid or () for word in ("--forbid", pair)]
    if given:
        given += [word for module in allow or () for word in ("--allow", module)]
        # Apart, because this process stays for as long as the site, and reading data loads torch.
        checked = subprocess.run(
            [sys.executable, "-m", "graphfed", "site", "check", str(startup_kit), *given], check=False
        )
        if checked.returncode < 0:
            raise GraphfedError(
                f"reading what {startup_kit} is started with was ended by signal {-checked.returncode} "
                f"({signal.strsignal(-checked.returncode)}); start again; if it was for want of memory, "
                "give the machine more"
            )
        if checked.returncode:
            raise typer.Exit(checked.returncode)
    run_parent(
        startup_kit,
        data=data,
        threads=threads or 1,
        device=device,
        allow=allow or (),
        methods=_named_methods(methods),
        forbid=forbid or (),
        say=print_line,
    )


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
    """Check what a site is to be started with: read its data as a run would, and say what is in it.

    Examples:
        graphfed site check startup_kits/bank_a --data accounts.yaml
    See also:
        graphfed site start
    """
    from graphfed.deployment.site_files import checked_file
    from graphfed.methods.registry import get_method
    from graphfed.runs.config import checked_device
    from graphfed.runtime.nvflare.startup_kits import load_startup_kit

    loaded = load_startup_kit(startup_kit)
    checked_device(device)
    named = _named_methods(methods)
    for name in named if not allow else ():
        get_method(name)
    for pair in forbid or ():
        _check_forbidden(pair)
    if data is None:
        return
    print_line(f"{loaded.name}: {checked_file(data, loaded.project.roster, loaded.name)}")


def _named_methods(methods: str | None) -> list[str]:
    """Return the methods of --methods by their own names, none where the option is not given."""
    from graphfed.methods.registry import METHODS, canonical_name

    if methods is None:
        return []
    named = [name.strip() for name in methods.split(",") if name.strip()]
    if not named:
        raise InputError("--methods names no method; write --methods fedavg,sapgnn, or leave it out for all")
    # The name of a method that graphfed lacks, of an allowed module, stays as it is written.
    return [canonical_name(name) if canonical_name(name) in METHODS else name for name in named]


def _check_forbidden(pair: str) -> None:
    """InputError unless it is KEY=VALUE of a setting: a rule that is misread would protect nothing."""
    from graphfed.methods.registry import METHODS
    from graphfed.runs.settings import settings_of, unusable_value

    key, equals, value = pair.partition("=")
    if not equals or not value:
        raise InputError(f"--forbid {pair!r} cannot be read; write KEY=VALUE, as in maps=identity")
    methods = METHODS.usable().values()
    owners = [method for method in methods if key in {setting.name for setting in settings_of(method)}]
    if not owners:
        known = {setting.name for method in methods for setting in settings_of(method)}
        raise InputError(f"--forbid {pair!r}: no method has a setting {key!r}; {did_you_mean(key, known)}")
    complaints = [unusable_value(method, key, value) for method in owners]
    if all(complaints):
        raise InputError(f"--forbid {pair!r} would protect nothing: {complaints[0]}")


@app.command("status")
def site_status(startup_kit: StartupKit, *, as_json: Json = False) -> None:
    """Ask the server, with the coordinator's kit, which sites are connected and which runs are going on.

    Examples:
        graphfed site status startup_kits/coordinator
    See also:
        graphfed site start
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
    print_line(f"runs: {', '.join(found.runs) or 'none'}")


@app.command("sent")
def site_sent(
    startup_kit: StartupKit,
    run: Annotated[
        str | None,
        typer.Argument(metavar="RUN", help="A run's name (default: the last one that has ended here)."),
    ] = None,
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON list.")] = False,
) -> None:
    """What left this site in a run: every transfer by name, in words, with its bytes and what protects it.

    It is read from the site's own ledger, KIT/runs/RUN/ledger.json.

    Examples:
        graphfed site sent startup_kits/bank_a
    See also:
        graphfed site start, graphfed report
    """
    from dataclasses import asdict

    from graphfed.report.sent import last_run, sent_in
    from graphfed.runs.progress import human_bytes

    folder = last_run(startup_kit / "runs", run)
    sent = sent_in(folder)
    if as_json:
        print_line(json.dumps([asdict(line) for line in sent]))
        return
    total = sum(line.bytes for line in sent)
    print_line(
        fill(f"{folder.name}: {len(sent)} kinds of values left this site, {human_bytes(total)} in all")
    )
    for line in sent:
        print_line()
        print_line(fill(f"{line.name}: {human_bytes(line.bytes)} to the {line.to} ({line.phases})"))
        print_line(fill(line.words, "  "))
        print_line(fill(f"protection: {line.protection}", "  "))
