"""Help pages in the form of manual pages.

The docstring of a command is its page: what it does, then sections with a heading on a line of its own:

    Examples:
        graphfed run fedavg
    Files:
        ...

It has no section for arguments: the help of each parameter is next to the parameter, in its annotation. The
help shows the sections after the options, line by line as they are written, so that an example can be
copied. They have at most 78 columns. The exit codes are the same for all commands and are added here.
"""

import re
import shutil
import textwrap
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from graphfed.errors import UNUSABLE

__all__ = ["EXIT_CODES", "SECTION", "ManualGroup", "ManualPage", "as_manual"]

EXIT_CODES = """\
Exit codes:
    0    done
    1    the program or the machine failed
    2    the input cannot be used; nothing was written
    130  interrupted; 'graphfed resume FOLDER' continues what was saved
"""
#: The heading of a section in a docstring.
SECTION = re.compile(r"^(Examples?|Files|Environment|See also):", re.MULTILINE)


def _divided(text: str | None) -> tuple[str, str]:
    """Split a docstring into the text before the first section, and the sections."""
    found = SECTION.search(text or "")
    if text is None or found is None:
        return text or "", ""
    return text[: found.start()].rstrip(), text[found.start() :].rstrip()


def _formatted(sections: str) -> str:
    """Return the sections as they are printed, with bold headings and the exit codes."""
    lines = []
    examples = False
    for line in f"{sections}\n{EXIT_CODES}".splitlines():
        if re.match(r"[A-Z][a-z ]+:", line):
            examples = line.startswith("Example")
            lines += ["", typer.style(f" {line}", bold=True)]
        elif line.strip():
            lines += _filled(f" {line}", examples)
    return "\n".join(lines)


def _filled(line: str, is_command: bool) -> list[str]:
    """Wrap a line at the width of the terminal; a wrapped command can still be copied."""
    width = shutil.get_terminal_size().columns
    if len(line) <= width:
        return [line]
    end = " \\" if is_command else ""
    # The wrapped lines start below the second column, if there is one and it leaves room for a long path.
    columns = re.match(r" *\S+ {2,}", line)
    hanging = " " * (len(columns[0]) if columns and len(columns[0]) < width // 2 else 2)
    filled = textwrap.wrap(
        line, width - len(end), subsequent_indent=hanging, break_long_words=False, break_on_hyphens=False
    )
    return [*(each + end for each in filled[:-1]), filled[-1]]


def _as_in_a_manual(parameters: list[Any]) -> list[Any]:
    """Show parameters as manual pages do.

    A flag has no value next to it. An argument is its name, in brackets if it is optional, and with dots if
    there may be several; its Python type is not shown.
    """
    for parameter in parameters:
        if getattr(parameter, "is_flag", False) and parameter.metavar is None:
            parameter.metavar = ""
        if parameter.param_type_name == "argument":
            name = str(parameter.metavar).removesuffix("...") + "..." * (parameter.nargs != 1)
            piece = name if parameter.required else f"[{name}]"
            parameter.get_usage_pieces = lambda ctx, piece=piece: [piece]
            parameter.display_type_rich = lambda ctx: None
    return parameters


class _Manual:
    """The help of a command or a group of commands."""

    help: str | None

    def get_params(self, ctx: Any) -> list[Any]:
        return _as_in_a_manual(super().get_params(ctx))  # type: ignore[misc]

    def format_help(self, ctx: Any, formatter: Any) -> None:
        whole = self.help
        self.help, sections = _divided(whole)
        try:
            super().format_help(ctx, formatter)  # type: ignore[misc]
        finally:
            self.help = whole
        # What the formatter holds is printed after the options.
        formatter.write(_formatted(sections) + "\n")


class ManualPage(_Manual, TyperCommand):
    """A command with sections in its help."""


class ManualGroup(_Manual, TyperGroup):
    """A group of commands with sections in its help.

    Without a command it prints its help and exits with code 2.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the words after the group; without any, print the help and exit.

        Args:
            ctx: The context of the command line.
            args: The words.

        Returns:
            The words that are left.
        """
        # The framework's option `no_args_is_help` raises the help as the message of an error.
        if not args and not ctx.resilient_parsing:
            typer.echo(ctx.get_help(), color=ctx.color)
            ctx.exit(UNUSABLE)
        return super().parse_args(ctx, args)


def as_manual(app: typer.Typer) -> None:
    """Give every command of an application, and of the groups in it, a manual page as its help.

    Args:
        app: The application; it is changed.
    """
    for command in app.registered_commands:
        command.cls = ManualPage
    for group in app.registered_groups:
        group.cls = ManualGroup
        if group.typer_instance is not None:
            as_manual(group.typer_instance)
