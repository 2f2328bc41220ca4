"""Deployment over NVIDIA FLARE: every site a process on its own machine, with mutual TLS between them.

The only package that imports nvflare (the extra `deploy`), and only where it is used:

    project     the file that names the server and the sites
    kits        what each of them starts with: its certificate, and what it allows the others to do
    process     starting FLARE's long-lived process of a kit, and ending it with all that it started
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
