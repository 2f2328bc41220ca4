"""`graphfed doctor`: checks whether this machine can run graphfed, and what would make it slow.

Every check returns findings, and none raises: a library that cannot be loaded is a finding, too.
"""

import importlib
import importlib.metadata
import json
import os
import platform
import re
import shutil
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

import typer

from graphfed.cli.options import Json
from graphfed.cli.output import fill, show
from graphfed.errors import DONE, FAILED, how_to_install
from graphfed.memory import memory_bytes, usable_cores
from graphfed.terminal import make_table, markup, print_line

Level = Literal["ok", "warning", "problem"]

#: Modules that every run loads. If one is missing, no run is possible.
LOADED = ("numpy", "scipy.sparse", "torch", "pydantic", "safetensors", "pyarrow.parquet")
#: The purposes of the extras of pyproject.toml.
EXTRAS = {
    "metis": "the partition 'metis'",
    "hdf5": "readings of sensors in HDF5 (METR-LA, PEMS-BAY)",
    "deploy": "deployments, whose sites have machines of their own",
    "secure": "secure aggregation, secure pooling, encrypted sums, privacy accounting",
    "boosting": "the references boosting_local and boosting_central",
    "rl": "learning FedGraph's sampling policy (graphfed policy)",
    "docs": "building the pages of docs/",
    "dev": "working on graphfed itself",
}
#: With less available memory, in bytes, loading torch alone may fail.
LITTLE_MEMORY = 1 << 30
#: With less free space, in bytes, the files of a run may not fit.
LITTLE_SPACE = 200 << 20


@dataclass(frozen=True)
class Finding:
    """One line of the output.

    Attributes:
        level: "ok"; "warning" if something is slow or missing; "problem" if no run is possible.
        group: The heading, as in "libraries".
        fix: What to do; "" if nothing is wrong.
    """

    level: Level
    group: str
    what: str
    found: str
    fix: str = ""


def checkup(environ: Mapping[str, str] = os.environ) -> list[Finding]:
    """Check this machine without changing anything. Never raises."""
    checks: dict[str, Callable[[], Iterable[Finding]]] = {
        "libraries": _libraries,
        "threads": lambda: _threads(environ),
        "device": _device,
        "memory": _memory,
        "folders": lambda: _folders(environ),
        "extras": _extras,
    }
    findings: list[Finding] = []
    for group, check in checks.items():
        try:
            findings += check()
        except Exception as error:  # a check that fails is a finding, too
            fix = "this check itself failed: report it"
            findings.append(Finding("warning", group, group, _reason(error), fix))
    return findings


def _reason(error: BaseException) -> str:
    text = " ".join(f"{type(error).__name__}: {error}".split())
    return text if len(text) <= 200 else f"{text[:197]}..."


# ---- libraries ---------------------------------------------------------------------------------------------


def _libraries() -> Iterable[Finding]:
    from graphfed import __version__

    yield Finding("ok", "libraries", "python", f"{platform.python_version()} ({sys.executable})")
    yield Finding("ok", "libraries", "graphfed", __version__)
    # By import and not by metadata: a library may be installed and broken.
    faults = {module.partition(".")[0]: _fault_of(module) for module in LOADED}
    for name in dict.fromkeys([*faults, *_required()]):
        fault = faults.get(name) or ("" if _version(name) else "not installed")
        level: Level = "ok" if not fault else "problem" if name in faults else "warning"
        # pip would leave a broken library as it is.
        again = "" if fault == "not installed" else " --force-reinstall"
        fix = f"pip install{again} {name}" if fault else ""
        yield Finding(level, "libraries", name, fault or _version(name) or "version unknown", fix)


def _fault_of(module: str) -> str:
    """Return why a module cannot be loaded; "" if it can."""
    try:
        importlib.import_module(module)
    except ModuleNotFoundError as error:
        return "not installed" if error.name == module.partition(".")[0] else _reason(error)
    except Exception as error:  # a library that was built for another machine may raise anything
        return _reason(error)
    return ""


def _version(distribution: str) -> str:
    """Return the version of a distribution; "" if it is not installed."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _required(extra: str = "") -> list[str]:
    """Return the distributions that graphfed, or one of its extras, requires."""
    named = []
    for requirement in importlib.metadata.requires("graphfed") or ():
        name, _, marker = requirement.partition(";")
        of = re.search(r"""extra == ["']([\w-]+)""", marker)
        if (of[1] if of else "") == extra and not name.startswith("graphfed["):
            named.append(re.split(r"[^\w.-]", name, maxsplit=1)[0])
    return named


def _extras() -> Iterable[Finding]:
    for extra, purpose in EXTRAS.items():
        missing = [name for name in _required(extra) if not _version(name)]
        found = f"not installed: {', '.join(missing)}" if missing else "installed"
        fix = how_to_install(extra) if missing else ""
        # A missing extra is no fault: most users need none of them.
        yield Finding("ok", "extras", extra, f"{found} (for {purpose})", fix)


# ---- the machine -------------------------------------------------------------------------------------------


def _threads(environ: Mapping[str, str]) -> Iterable[Finding]:
    cores, quota = usable_cores(), _quota()
    yield Finding("ok", "threads", "cores", f"graphfed may use {cores} of {os.cpu_count()}")
    if quota is not None and quota < cores:
        found = f"a control group limits this process to {quota:g} of {cores} cores"
        fix = f"give --threads {max(1, int(quota))}: more threads would wait for each other"
        yield Finding("warning", "threads", "limit", found, fix)
    name = "OMP_NUM_THREADS"
    value = environ.get(name, "")
    # The value may be a list for nested regions; the first number counts.
    first = value.partition(",")[0].strip()
    fix = ""
    if value and (not first.isdigit() or int(first) < 1):
        fix = "unset it: the value is not a number of threads"
    elif value and int(first) > cores:
        fix = f"unset it, or set it to at most {cores}: more threads than cores make every step slower"
    yield Finding("warning" if fix else "ok", "threads", name, value[:40] or "not set", fix)


def _quota(path: Path = Path("/sys/fs/cgroup/cpu.max")) -> float | None:
    """Return the number of cores that the control group allows; None without a limit or such a file."""
    try:
        quota, period = path.read_text().split()[:2]
        return None if quota == "max" else int(quota) / int(period)
    except (OSError, ValueError, ZeroDivisionError):
        return None


def _device() -> Iterable[Finding]:
    # Loaded by the check of the libraries, if it can be loaded.
    torch = sys.modules.get("torch")
    if torch is None:  # the check of the libraries reports it
        return
    names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    if names:
        yield Finding("ok", "device", "CUDA", f"{', '.join(names)}; use it with --device cuda")
    elif shutil.which("nvidia-smi"):
        # A driver without a device usually means a build of torch for the CPU.
        built = torch.version.cuda
        fix = f"check that nvidia-smi lists a device; torch is built for CUDA {built}"
        if built is None:
            fix = "install torch for CUDA (pytorch.org/get-started): this one is built for the CPU"
        yield Finding("warning", "device", "CUDA", "a driver is installed, but torch finds no device", fix)
    else:
        yield Finding("ok", "device", "CUDA", "no device found; runs use the CPU")


def _memory() -> Iterable[Finding]:
    available, total = memory_bytes()
    if available is None or total is None:
        yield Finding("ok", "memory", "memory", "unknown on this system")
        return
    little = available < LITTLE_MEMORY
    fix = "close other programs, or use small graphs and --runtime local" if little else ""
    found = f"{available / 2**30:.1f} of {total / 2**30:.1f} GiB available"
    yield Finding("warning" if little else "ok", "memory", "memory", found, fix)


# ---- folders -----------------------------------------------------------------------------------------------


def _folders(environ: Mapping[str, str]) -> Iterable[Finding]:
    from graphfed.data.cache import cache_folder

    named = environ.get("GRAPHFED_DATA", "")
    wrong = bool(named) and not Path(named).is_dir()
    fix = "set it to the folder that has planetoid/, facebook/, ... (docs/data.md)" if wrong else ""
    found = f"{named or 'not set'}{' is not a folder' * wrong}"
    yield Finding("warning" if wrong else "ok", "folders", "GRAPHFED_DATA", found, fix)
    yield _writable("runs/", Path("runs"), "give --out FOLDER, or change to a folder that you may write to")
    yield _writable("cache folder", cache_folder(), "set XDG_CACHE_HOME to a folder that you may write to")


def _writable(what: str, folder: Path, fix: str) -> Finding:
    """Check whether `folder` can be written or created, and how much space is free."""
    existing = folder.absolute()
    # The folder itself may not exist yet; the nearest one above it decides.
    while not os.path.lexists(existing) and existing != existing.parent:
        existing = existing.parent
    if not existing.is_dir():
        return Finding("warning", "folders", what, f"{existing} is not a folder", fix)
    if not os.access(existing, os.W_OK | os.X_OK):
        return Finding("warning", "folders", what, f"{existing} cannot be written", fix)
    free = shutil.disk_usage(existing).free
    found = f"{folder.absolute()} can be written, {free / 2**30:.1f} GiB free"
    if free < LITTLE_SPACE:
        return Finding("warning", "folders", what, found, f"free some space, or {fix}")
    return Finding("ok", "folders", what, found)


# ---- the command -------------------------------------------------------------------------------------------


def doctor(
    *,
    as_json: Json = False,
) -> None:
    """Check libraries, threads, device, memory, folders and extras, and suggest fixes.

    Each line is "ok", a "warning" (something is slow or missing) or a "problem" (no run is possible). The
    command writes, downloads and changes nothing. The exit code is 1 if there is a problem.

    Examples:

        graphfed doctor
        graphfed doctor --json

    See also: graphfed data list; docs/errors.md
    """
    findings = checkup()
    counts = {level: sum(one.level == level for one in findings) for level in ("problem", "warning")}
    possible = not counts["problem"]
    if as_json:
        print_line(json.dumps({"ok": possible, "checks": [asdict(finding) for finding in findings]}))
    else:
        _print(findings)
        counted = ", ".join(f"{n} {level}{'s' * (n != 1)}" for level, n in counts.items())
        end = "runs are possible" if possible else "no run is possible until the problems are fixed"
        print_line("\n" + fill(f"{counted}: {end}"))
    raise typer.Exit(DONE if possible else FAILED)


def _print(findings: list[Finding]) -> None:
    colours = {"warning": "yellow", "problem": "red"}
    for group in dict.fromkeys(finding.group for finding in findings):
        table = make_table(("", "", ""), (), title=group, plain=True)
        for one in findings:
            if one.group == group:
                hint = f"\n{'hint' if one.level == 'ok' else 'fix'}: {one.fix}" * bool(one.fix)
                cells = (one.level, one.what, f"{one.found}{hint}")
                table.add_row(*map(markup, cells), style=colours.get(one.level))
        print_line()
        show(table)
