"""`graphfed doctor`: can this machine run graphfed, and what would make it slow?

It looks at libraries, threads, device, memory, data, extras and folders. Every check answers with findings
and none raises: a library that does not load is a finding too, so nothing but the standard library and typer
is imported before it looks.
"""

import importlib
import importlib.metadata
import importlib.util
import json
import os
import platform
import shutil
import sys
import tempfile
import textwrap
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from graphfed.cli.options import DataDir
from graphfed.errors import DONE, FAILED
from graphfed.memory import memory_bytes
from graphfed.terminal import printable, tell

__all__ = ["EXTRAS", "LIBRARIES", "Finding", "checkup", "doctor", "summary"]

Level = Literal["ok", "warning", "problem"]

#: module -> (distribution, whether it is loaded to see that it works, what lacks without it).
#: Without a word, no run is possible. What is not loaded takes a second or more, and few runs need it.
LIBRARIES: dict[str, tuple[str, bool, str]] = {
    "numpy": ("numpy", True, ""),
    "scipy.sparse": ("scipy", True, ""),
    "torch": ("torch", True, ""),
    "pydantic": ("pydantic", True, ""),
    "safetensors": ("safetensors", True, ""),
    "pyarrow.parquet": ("pyarrow", True, ""),
    "yaml": ("PyYAML", True, "--config cannot be read"),
    "filelock": ("filelock", True, ""),
    "rich": ("rich", True, "tables cannot be printed"),
    "networkx": ("networkx", True, "the partition 'louvain' is missing"),
    "jinja2": ("jinja2", True, "no report can be written; give --no-report"),
    "matplotlib": ("matplotlib", False, "no report can be written; give --no-report"),
    "optuna": ("optuna", False, "graphfed sweep is missing"),
    "torch_geometric": ("torch_geometric", False, "graphs cannot come as PyG Data"),
}
#: extra -> (modules, what it is for), as in pyproject.toml.
EXTRAS: dict[str, tuple[tuple[str, ...], str]] = {
    "metis": (("pymetis",), "the partition 'metis'"),
    "hdf5": (("h5py",), "readings of sensors in HDF5 (METR-LA, PEMS-BAY)"),
    "track": (("tensorboard", "mlflow", "sqlalchemy", "alembic"), "graphfed track"),
    "deploy": (("nvflare", "cryptography"), "sites on machines of their own"),
    "secure": (
        ("cryptography", "tenseal", "dp_accounting"),
        "secure aggregation, secure pooling, encrypted sums, privacy accounting",
    ),
    "rl": (("gymnasium", "stable_baselines3"), "learning FedGraph's sampling policy (graphfed policy)"),
    "docs": (("sphinx", "myst_parser", "furo", "sphinx_gallery"), "building the pages of docs/"),
    "dev": (("pytest", "hypothesis", "ruff", "mypy", "sklearn", "Crypto"), "working on graphfed itself"),
}
#: Less available memory than this, in bytes, and loading torch alone is a risk.
LITTLE_MEMORY = 1 << 30
#: Less free space, in bytes, and a run may not fit.
LITTLE_SPACE = 200 << 20


@dataclass(frozen=True)
class Finding:
    """One line: ok, something to know (warning), or something that makes every run impossible (problem).

    group: libraries, threads, ...; what: what was looked at; found: what is there; fix: what to do, empty
    where nothing is wrong."""

    level: Level
    group: str
    what: str
    found: str
    fix: str = ""


def checkup(data_dir: str | Path | None = None, environ: Mapping[str, str] = os.environ) -> list[Finding]:
    """Everything there is to say about this machine, most basic first. Writes nothing and never raises."""
    checks: list[tuple[str, Callable[[], Iterable[Finding]]]] = [
        ("versions", _versions),
        ("threads", lambda: _threads(environ)),
        ("device", _device),
        ("memory", _memory),
        ("data", lambda: _data(data_dir)),
        ("extras", _extras),
        ("folders", _folders),
    ]
    findings: list[Finding] = []
    for group, check in checks:
        try:
            findings += check()
        except Exception as error:  # whatever is broken here is what the caller wants to read about
            findings.append(Finding("warning", group, group, _reason(error), "this check failed itself"))
    return findings


def _reason(error: BaseException) -> str:
    text = " ".join(f"{type(error).__name__}: {error}".split())
    return text if len(text) <= 200 else f"{text[:197]}..."


def _version(distribution: str) -> str:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return "version unknown"


# ---- versions ----------------------------------------------------------------------------------------------


def _versions() -> Iterable[Finding]:
    from graphfed import __version__

    old = sys.version_info < (3, 11)
    yield Finding(
        "problem" if old else "ok",
        "versions",
        "python",
        f"{platform.python_version()} ({sys.executable})",
        "graphfed needs Python 3.11 or newer" if old else "",
    )
    yield Finding("ok", "versions", "graphfed", __version__)
    for module, (distribution, loaded, without) in LIBRARIES.items():
        yield _library(module, distribution, loaded, without)
    yield from _bridge()


def _library(module: str, distribution: str, loaded: bool, without: str) -> Finding:
    """Whether a library is there and, where `loaded`, whether it can be loaded."""
    name = distribution
    fault = ""
    try:
        if loaded:
            importlib.import_module(module)
        elif importlib.util.find_spec(module) is None:
            fault = "not installed"
    except ModuleNotFoundError as error:
        fault = "not installed" if error.name == module.split(".", maxsplit=1)[0] else _reason(error)
    except Exception as error:  # a library built for another machine fails in its own way
        fault = _reason(error)
    if not fault:
        return Finding("ok", "versions", name, _version(distribution))
    again = "" if fault == "not installed" else " --force-reinstall"
    return Finding(
        "warning" if without else "problem",
        "versions",
        name,
        f"{fault}: {without}" if without else fault,
        f"pip install{again} {distribution}",
    )


def _bridge() -> Iterable[Finding]:
    """torch and numpy of different generations load, and cannot exchange arrays."""
    torch, numpy = sys.modules.get("torch"), sys.modules.get("numpy")
    if torch is None or numpy is None:
        return
    try:
        torch.from_numpy(numpy.ones(1)).numpy()
    except Exception as error:
        fix = "their versions do not fit: pip install --upgrade torch numpy"
        yield Finding("problem", "versions", "torch and numpy", _reason(error), fix)


# ---- the machine -------------------------------------------------------------------------------------------


def _cores() -> int:
    """The cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _threads(environ: Mapping[str, str]) -> Iterable[Finding]:
    cores = _cores()
    yield Finding("ok", "threads", "cores", f"{cores} of {os.cpu_count()} may be used")
    quota = _quota()
    if quota is not None and quota < cores:
        yield Finding(
            "warning",
            "threads",
            "limit",
            f"a control group allows {quota:g} of the {cores} cores",
            f"more threads would wait for each other: give --threads {max(1, int(quota))}",
        )
    yield _omp_threads(environ.get("OMP_NUM_THREADS"), cores)
    policy = environ.get("OMP_WAIT_POLICY", "")
    spins = policy.lower() == "active" or environ.get("KMP_BLOCKTIME", "").lower() == "infinite"
    yield Finding(
        "warning" if spins else "ok",
        "threads",
        "waiting threads",
        "spin" if spins else "sleep",
        "on a busy machine that is many times slower: unset OMP_WAIT_POLICY and KMP_BLOCKTIME"
        if spins
        else "",
    )
    bound = environ.get("OMP_PROC_BIND", "").lower() not in ("", "false")
    if bound:
        yield Finding(
            "warning",
            "threads",
            "OMP_PROC_BIND",
            environ["OMP_PROC_BIND"][:40],
            "runs side by side would share the first cores: unset it, unless you run one at a time",
        )
    if hasattr(os, "getloadavg"):
        load = os.getloadavg()[0]
        busy = load > cores + 0.5
        yield Finding(
            "warning" if busy else "ok",
            "threads",
            "load",
            f"{load:.1f} programs at work in the last minute",
            "more than there are cores: runs will be slower than they could be" if busy else "",
        )


def _omp_threads(value: str | None, cores: int) -> Finding:
    what = "OMP_NUM_THREADS"
    if value is None:
        return Finding("ok", "threads", what, "not set")
    # A list is for nested regions; its first number counts.
    first = value.split(",")[0].strip()
    if not first.isdigit() or int(first) < 1:
        return Finding("warning", "threads", what, value[:40], "not a number of threads: unset it")
    if int(first) > cores:
        fix = f"more threads than cores make every step slower: unset it, or set it to at most {cores}"
        return Finding("warning", "threads", what, value[:40], fix)
    return Finding("ok", "threads", what, value[:40])


def _quota(path: Path = Path("/sys/fs/cgroup/cpu.max")) -> float | None:
    """Cores that the control group allows; None where there is no limit or no such file."""
    try:
        quota, period = path.read_text().split()[:2]
        return None if quota == "max" else int(quota) / int(period)
    except (OSError, ValueError, ZeroDivisionError):
        return None


def _device() -> Iterable[Finding]:
    torch = sys.modules.get("torch")
    if torch is None:
        return
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if count:
        names = ", ".join(torch.cuda.get_device_name(i) for i in range(count))
        yield Finding("ok", "device", "CUDA", f"{names}; use it with --device cuda")
    elif shutil.which("nvidia-smi") and torch.version.cuda is None:
        fix = "this torch is built for the CPU: install one for CUDA (pytorch.org/get-started)"
        yield Finding("warning", "device", "CUDA", "a driver is here, torch cannot use it", fix)
    elif shutil.which("nvidia-smi"):
        fix = f"torch is built for CUDA {torch.version.cuda}: see that nvidia-smi lists a device"
        yield Finding("warning", "device", "CUDA", "a driver is here, torch sees no device", fix)
    else:
        yield Finding("ok", "device", "CUDA", "none seen; runs use the CPU")


def _memory() -> Iterable[Finding]:
    available, total = memory_bytes()
    if available is None or total is None:
        yield Finding("ok", "memory", "memory", "unknown on this system")
        return
    little = available < LITTLE_MEMORY
    yield Finding(
        "warning" if little else "ok",
        "memory",
        "memory",
        f"{available / 2**30:.1f} of {total / 2**30:.1f} GiB available",
        "little: close other programs, or use small graphs and --runtime local" if little else "",
    )


# ---- data, extras, folders ---------------------------------------------------------------------------------


def _data(data_dir: str | Path | None) -> Iterable[Finding]:
    from graphfed.data.cache import cache_folder
    from graphfed.data.datasets import available

    named = os.environ.get("GRAPHFED_DATA")
    for what, folder in (
        ("--data-dir", data_dir),
        ("GRAPHFED_DATA", named),
        ("cache folder", cache_folder()),
    ):
        if not folder:
            if what == "GRAPHFED_DATA":
                yield Finding("ok", "data", what, "not set")
            continue
        here = Path(folder).is_dir()
        wrong = not here and what != "cache folder"
        yield Finding(
            "warning" if wrong else "ok",
            "data",
            what,
            f"{folder}{'' if here else ' (not there yet)' if not wrong else ' is no folder'}",
            "name the folder that holds planetoid/, facebook/, ... (docs/data.md)" if wrong else "",
        )
    sets = available(data_dir if data_dir is not None and Path(data_dir).is_dir() else None)
    ready = [row.name for row in sets if row.ready]
    partly = [row.name for row in sets if not row.ready]
    yield Finding("ok", "data", "sets that can be loaded", ", ".join(ready))
    if partly:
        fix = "'graphfed data list' names each missing file and where it comes from"
        yield Finding("ok", "data", "sets with missing files", ", ".join(partly), fix)


def _extras() -> Iterable[Finding]:
    for extra, (modules, purpose) in EXTRAS.items():
        missing = [module for module in modules if importlib.util.find_spec(module) is None]
        if missing:
            found, fix = f"not installed: {', '.join(missing)}", f"pip install 'graphfed[{extra}]'"
        else:
            found, fix = "installed", ""
        yield Finding("ok", "extras", extra, f"{found} (for {purpose})", fix)


def _folders() -> Iterable[Finding]:
    from graphfed.data.cache import cache_folder

    yield _writable("runs/", Path("runs"), "give --out FOLDER, or change to a folder of your own")
    yield _writable("cache folder", cache_folder(), "set XDG_CACHE_HOME to a folder of your own")
    try:
        yield _writable("temporary files", Path(tempfile.gettempdir()), "set TMPDIR to a folder of your own")
    except OSError as error:
        yield Finding(
            "warning", "folders", "temporary files", _reason(error), "set TMPDIR to a folder of your own"
        )


def _writable(what: str, folder: Path, fix: str) -> Finding:
    """Whether `folder` can be written, or made where it is not there; and how much fits."""
    there = folder.absolute()
    while not os.path.lexists(there) and there != there.parent:
        there = there.parent
    if not there.is_dir():
        return Finding("warning", "folders", what, f"{there} is not a folder", fix)
    if not os.access(there, os.W_OK | os.X_OK):
        return Finding("warning", "folders", what, f"{there} cannot be written", fix)
    free = shutil.disk_usage(there).free
    found = f"{folder.absolute()} can be written, {free / 2**30:.1f} GiB free"
    if free < LITTLE_SPACE:
        return Finding("warning", "folders", what, found, f"little space: free some, or {fix}")
    return Finding("ok", "folders", what, found)


def summary(findings: Iterable[Finding]) -> dict[str, Any]:
    """The findings as plain data; `ok` is False where a run is impossible."""
    listed = [vars(finding) for finding in findings]
    return {"ok": all(row["level"] != "problem" for row in listed), "checks": listed}


# ---- the command -------------------------------------------------------------------------------------------

#: Width of the first column: ok, warning or problem.
LEVEL = 9


def doctor(
    *,
    data_dir: DataDir = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the findings as one JSON object.")] = False,
) -> None:
    """Look at libraries, threads, device, memory, data folders, extras and folders; say what to fix.

    Each line is ok, a warning (something is slow or missing) or a problem (no run is possible). Nothing is
    written, downloaded or changed. The exit code is 1 if there is a problem.

    Examples:
        graphfed doctor
        graphfed doctor --data-dir data --json
    See also:
        graphfed data list; docs/errors.md
    """
    findings = checkup(data_dir)
    told = summary(findings)
    if as_json:
        tell(json.dumps(told))
    else:
        _print(findings)
    raise typer.Exit(DONE if told["ok"] else FAILED)


#: Columns of the screen that a text needs beside another one.
LEAST_COLUMN = 20


def _print(findings: list[Finding]) -> None:
    """Plain text, filled to the terminal's width: rich may be what does not work."""
    colours = {"warning": typer.colors.YELLOW, "problem": typer.colors.RED}
    width = max(20, min(shutil.get_terminal_size().columns, 120))
    column = 2 + max(len(finding.what) for finding in findings)
    # On a narrow screen what was found stands below its name.
    beside = width - LEVEL - column >= LEAST_COLUMN
    room, indent = (width - LEVEL - column, LEVEL + column) if beside else (width - 4, 4)
    group = ""
    for finding in findings:
        if finding.group != group:
            group = finding.group
            typer.secho(f"\n{group}", bold=True)
        told = textwrap.wrap(printable(finding.found), room) or [""]
        if finding.fix:
            told += textwrap.wrap(
                printable(f"{'hint' if finding.level == 'ok' else 'fix'}: {finding.fix}"), room
            )
        level = typer.style(finding.level.ljust(LEVEL), fg=colours.get(finding.level))
        what = printable(finding.what)
        first, rest = (what.ljust(column) + told[0], told[1:]) if beside else (what, told)
        typer.echo(f"{level}{first}")
        for line in rest:
            typer.echo(" " * indent + line)
    problems = sum(finding.level == "problem" for finding in findings)
    warnings = sum(finding.level == "warning" for finding in findings)
    end = "no run is possible until the problems are fixed" if problems else "runs are possible"
    end = f"{_counted(problems, 'problem')}, {_counted(warnings, 'warning')}: {end}"
    typer.echo("\n" + textwrap.fill(end, width))


def _counted(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
