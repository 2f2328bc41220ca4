"""Deployment over NVIDIA FLARE: every site a process on its own machine, with mutual TLS between them.

The only package that imports nvflare (the extra `deploy`), and only where it is used:

    project     the file that names the server and the sites
    kits        what each of them starts with: its certificate, and what it allows the others to do
    rules       the second of these, as FLARE's files say it
    process     starting FLARE's long-lived process of a kit, and ending it with all that it started
    child       what happens in each of FLARE's processes before its program runs
    components  our parts of those processes: starting runs, looking through jobs, telling what happens
    tls         how the server listens; whether a kit can connect
    admission   that one process stands for each site
    status      who is connected and what runs, asked with the coordinator's kit
"""

import importlib.util

from graphfed.errors import InputError

__all__ = ["need_nvflare"]


def need_nvflare() -> None:
    """InputError, with what to install, where nvflare is missing."""
    if importlib.util.find_spec("nvflare") is None:
        raise InputError(
            "deployment needs NVIDIA FLARE, which is not installed: pip install 'graphfed[deploy]'"
        )
