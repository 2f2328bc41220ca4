"""The command line's table of commands, and the exit codes.

0    done
1    the program itself failed (GraphfedError)
2    the input cannot be used: one line on stderr, nothing written (InputError, unknown options)
130  interrupted, by Ctrl-C or SIGTERM, after saving what a run needs to go on (`graphfed resume`)
"""

import os
import sys
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from graphfed import __version__
from graphfed.cli import data, listing, prediction, reporting, training
from graphfed.cli.output import one_line, say
from graphfed.errors import GraphfedError
from graphfed.runtime.interrupts import stopping

__all__ = ["app", "main"]

# Heavy libraries, torch above all, are imported inside the commands that use them: help answers at once.

app = typer.Typer(
    name="graphfed",
    help="Train graph neural networks across parties that may not show each other their graphs.",
    epilog="Start here:  graphfed run fedavg   then   graphfed compare isolated fedavg fedgcn central",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    # Paragraphs are filled to the width of the terminal, not broken where the source has a line end.
    rich_markup_mode="markdown",
)
app.command()(training.run)
app.command()(training.compare)
app.command()(training.resume)
app.command()(reporting.report)
app.command()(prediction.predict)
app.command()(listing.methods)
app.add_typer(data.app, name="data")


@app.callback(invoke_without_command=True)
def _version(version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False) -> None:
    if version:
        print(f"graphfed {__version__}")
        raise typer.Exit


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code (see the module's docstring)."""
    # Before torch is loaded: threads that wait sleep instead of spinning. Where other programs keep the cores
    # busy, spinning made a round on Cora up to 70 times slower.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    for stream in (sys.stdout, sys.stderr):
        # A result must not be lost because a terminal cannot show a sign of it.
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    try:
        with stopping():
            code = app(
                None if arguments is None else list(arguments), prog_name="graphfed", standalone_mode=False
            )
    except (typer.Abort, KeyboardInterrupt):
        code = 130
    except GraphfedError as error:
        say(f"error: {one_line(str(error))}")
        return error.exit_code
    except MemoryError:
        say("error: there is not enough memory; use a smaller graph, fewer clients or smaller layers")
        return 1
    except OSError as error:
        # The disk, as a rule: the one stdout goes to, or that of the temporary files.
        say(f"error: {error}")
        return 1
    except _UsageError as error:
        # Empty where help was printed because nothing was asked.
        message = one_line(error.format_message())
        if message:
            say(f"error: {message} (see graphfed --help)")
        return 2
    return code if isinstance(code, int) else 0


#: What typer raises for unknown commands and options and for values of the wrong type: click's class, which
#: has moved between versions of typer.
_UsageError: Any = typer.BadParameter.__bases__[0]
