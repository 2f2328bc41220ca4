"""Help pages that read like a manual page.

A command's docstring is its page: what it does, then sections, each with a heading on a line of its own:

    Examples:
        graphfed run fedavg
    Files:
        ...

The sections come after the options in the help, line for line as they are written, so that an example can be
copied; at most 78 columns. The exit codes are the same everywhere and added here.
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
    130  interrupted; 'graphfed resume FOLDER' goes on with what was saved
"""
#: The heading of a section in a docstring.
SECTION = re.compile(r"^(Examples?|Files|Environment|See also):", re.MULTILINE)


def _divided(text: str | None) -> tuple[str, str]:
    """A docstring as the text before the first section, and the sections."""
    found = SECTION.search(text or "")
    if text is None or found is None:
        return text or "", ""
    return text[: found.start()].rstrip(), text[found.start() :].rstrip()


def _told(sections: str) -> str:
    """The sections as they are printed: headings stand out."""
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
    """A line in the terminal's width; a command that is broken can still be copied."""
    width = shutil.get_terminal_size().columns
    if len(line) <= width:
        return [line]
    end = " \\" if is_command else ""
    # Below the words of the second column, where there are two; far left, so that a long path has room.
    columns = re.match(r" *\S+ {2,}", line)
    hanging = " " * (len(columns[0]) if columns and len(columns[0]) < width // 2 else 2)
    filled = textwrap.wrap(
        line, width - len(end), subsequent_indent=hanging, break_long_words=False, break_on_hyphens=False
    )
    return [*(each + end for each in filled[:-1]), filled[-1]]


def _as_in_a_manual(parameters: list[Any]) -> list[Any]:
    """A flag takes no value, so none is shown beside it. An argument is its name, in brackets where it may be
    left out, with dots where there may be several; the type Python gives it says nothing to a reader."""
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
    """What a command and a group of commands have in common."""

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
        formatter.write(_told(sections) + "\n")


class ManualPage(_Manual, TyperCommand):
    """A command with sections in its help."""


class ManualGroup(_Manual, TyperGroup):
    """A group of commands with sections in its help. Without a command it prints its help, exit code 2."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        # The framework's own `no_args_is_help` raises the help as the message of an error.
        if not args and not ctx.resilient_parsing:
            typer.echo(ctx.get_help(), color=ctx.color)
            ctx.exit(UNUSABLE)
        return super().parse_args(ctx, args)


def as_manual(app: typer.Typer) -> None:
    """Give every command of `app`, and of the groups in it, a page of the manual as its help."""
    for command in app.registered_commands:
        command.cls = ManualPage
    for group in app.registered_groups:
        group.cls = ManualGroup
        if group.typer_instance is not None:
            as_manual(group.typer_instance)
