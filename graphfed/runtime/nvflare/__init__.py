"""Deployment over NVIDIA FLARE: every site is a process on its own machine, connected by mutual TLS.

This is the only package that imports nvflare (the extra `deploy`), and only when it is used:

    project       the file that names the server and the sites
    startup_kits  the folders with which participants start: a certificate, a key and local rules
    rules         the local rules, as FLARE's files express them
    process       starts FLARE's long-lived process of a startup kit, and ends it with all its children
    child         runs in each of FLARE's processes before FLARE's program
    components    our parts of those processes: they start runs, check jobs and report events
    tls           how the server listens, and whether a participant can connect
    admission     accepts one process per site
    status        asks the server which sites are connected and which runs are in progress
"""

import importlib.util

from graphfed.errors import InputError, how_to_install


def need_nvflare() -> None:
    """Check that nvflare is installed.

    Raises:
        InputError: It is missing; the message says what to install.
    """
    if importlib.util.find_spec("nvflare") is None:
        raise InputError(f"deployment needs NVIDIA FLARE, which is not installed: {how_to_install('deploy')}")
