"""The command line's table of commands. The exit codes are explained in graphfed/errors.py."""

import os
import sys
import warnings
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from graphfed import __version__
from graphfed.cli.audit import audit
from graphfed.cli.data import app as data
from graphfed.cli.doctor import doctor
from graphfed.cli.listing import methods
from graphfed.cli.output import one_line, say
from graphfed.cli.policy import policy
from graphfed.cli.prediction import predict
from graphfed.cli.reporting import report
from graphfed.cli.reproduce import reproduce
from graphfed.cli.site import app as site
from graphfed.cli.sweep import sweep
from graphfed.cli.training import compare, resume, run
from graphfed.errors import DONE, FAILED, INTERRUPTED, UNUSABLE, GraphfedError, GraphfedWarning
from graphfed.memory import is_out_of_memory
from graphfed.runtime.interrupts import stopping
from graphfed.terminal import open_standard_streams, print_line

# Large libraries such as torch are imported inside the commands that use them, so that help answers at once.

app = typer.Typer(
    name="graphfed",
    no_args_is_help=True,
    help="""Train graph neural networks across clients that may not show each other their graphs.

    Examples:

        graphfed run fedavg
        graphfed run fedgcn --data cora --clients 10 --set hops=1
        graphfed compare isolated fedavg fedgcn central --seeds 0,1,2
        graphfed report runs/compare-digits-20260131-120000
        graphfed methods fedgcn
        graphfed doctor

    Environment:

        GRAPHFED_DATA        folder of data sets, searched after --data-dir
        XDG_CACHE_HOME       parent of the cache folder (default: ~/.cache)
        OMP_NUM_THREADS      threads of torch; --threads sets them for one run

    Files:

        runs/                one folder per run, unless --out names another
        ~/.cache/graphfed/   converted copies of public data, the list of methods

    See also: graphfed COMMAND --help, and docs/ in the repository
    """,
    epilog="""
    Exit codes:

        0      done
        1      the program or the machine failed
        2      the input cannot be used; nothing was written
        130    interrupted; 'graphfed resume FOLDER' continues what was saved
    """,
    pretty_exceptions_enable=False,
    # Paragraphs are filled to the width of the terminal, not broken where the source has a line end.
    rich_markup_mode="markdown",
)
for command in (
    run, compare, resume, report, predict, sweep, audit, reproduce, policy, methods, doctor,
):  # fmt: skip
    app.command()(command)
app.add_typer(data, name="data")
app.add_typer(site, name="site")


@app.callback(invoke_without_command=True)
def _version(version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False) -> None:
    if version:
        print_line(f"graphfed {__version__}")
        raise typer.Exit


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line with the words after "graphfed"; None for those of this process."""
    # This must be set before torch is loaded: threads that wait sleep instead of spinning. On cores that
    # other programs keep busy, spinning made a round on Cora up to 70 times slower.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    open_standard_streams()
    for stream in (sys.stdout, sys.stderr):
        # A result must not be lost because a terminal cannot show one of its characters.
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    try:
        # SIGTERM is like Ctrl-C, so that commands can save and clean up. Warnings are for programs: commands
        # print the same texts themselves.
        with stopping(), warnings.catch_warnings():
            warnings.simplefilter("ignore", GraphfedWarning)
            code = app(
                None if arguments is None else list(arguments), prog_name="graphfed", standalone_mode=False
            )
    except (typer.Abort, KeyboardInterrupt):
        code = INTERRUPTED
    except GraphfedError as error:
        say(f"error: {one_line(str(error))}")
        return error.exit_code
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        say("error: the memory is not sufficient; use a smaller graph, fewer clients or smaller layers")
        return FAILED
    except OSError as error:
        # This is usually a full disk: that of stdout, or of the temporary files.
        say(f"error: {error}")
        return FAILED
    except _UsageError as error:
        message = _as_setting(error) or one_line(error.format_message())
        page = getattr(error, "ctx", None)
        if message:  # a group without a command has printed its help
            say(f"error: {message} (see {'graphfed' if page is None else page.command_path} --help)")
        return UNUSABLE
    # A command returns nothing; only typer.Exit has a code.
    return code if isinstance(code, int) else DONE


def _as_setting(error: Any) -> str:
    """Return how to give an option that does not exist, but is a setting; empty for any other error."""
    option = str(getattr(error, "option_name", ""))
    name = option.lstrip("-").replace("-", "_")
    if not name or error.ctx is None:
        return ""
    options = {opt for parameter in error.ctx.command.params for opt in parameter.opts}
    # The command has the option, or takes no settings at all.
    if option in options or "--set" not in options:
        return ""
    from graphfed.runs.settings import home_of

    home = home_of(name)
    return f"there is no option {option}; {home}: give --set {name}=VALUE" if home else ""


#: What typer raises for unknown commands and options and for values of the wrong type: click's class, which
#: has moved between versions of typer.
_UsageError: Any = typer.BadParameter.__bases__[0]
