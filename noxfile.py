"""Environments in which graphfed is tested besides that of the Makefile.

    pip install nox uv
    nox --list
    nox --session pinned-3.13          the versions of constraints.txt, on another Python
    nox --session newest-3.13          the newest versions there are
    nox --session lowest-3.11          the lowest versions that pyproject.toml allows
    nox --session lowest-3.11 -- tests/nn -x      other arguments for pytest

Each session makes an environment of its own and runs the first tier of the tests there. On Linux the package
index gives builds of torch for CUDA: about 3 GB to download for each version of torch and of Python.
"""

import nox

nox.options.default_venv_backend = "uv"
nox.options.sessions = ["pinned", "newest", "lowest"]
nox.options.error_on_missing_interpreters = True  # what was not run must not look as if it had passed

PYTHONS = ["3.11", "3.12", "3.13"]


def run_tests(session: nox.Session) -> None:
    """Print what is installed, and run the first tier of the tests, or what the command line names."""
    session.run("uv", "pip", "list", "--python", session.virtualenv.location, external=True, silent=False)
    session.run("python", "-m", "pytest", "-n", "2", "--dist", "loadfile", "-rs", *session.posargs)


@nox.session(python=PYTHONS)
def pinned(session: nox.Session) -> None:
    """The versions of constraints.txt."""
    session.install("--constraint", "constraints.txt", "--editable", ".[dev]")
    run_tests(session)


@nox.session(python=PYTHONS)
def newest(session: nox.Session) -> None:
    """The newest versions there are."""
    session.install("--upgrade", "--editable", ".[dev]")
    run_tests(session)


@nox.session(python=PYTHONS[0])
def lowest(session: nox.Session) -> None:
    """The lowest versions that pyproject.toml allows."""
    session.install("--resolution", "lowest-direct", "--editable", ".[dev]")
    run_tests(session)
