"""The command line, a thin layer: read options, call the Python API, print, map errors to exit codes."""

from graphfed.cli.commands import app, main

__all__ = ["app", "main"]
