"""From the templates of a report to text: the page, the model card, and single sentences.

All wording is in the templates next to this file. Values come from anybody's files: each template's own
environment makes them harmless where it shows them.
"""

import functools
import re
from typing import TYPE_CHECKING

from graphfed.errors import InputError
from graphfed.runs.progress import human_bytes
from graphfed.terminal import printable

if TYPE_CHECKING:
    from jinja2 import Environment

    from graphfed.report.read import Run

__all__ = ["filled", "sentences"]


def filled(template: str, run: "Run", **values: object) -> str:
    """Return a template of a page with its values.

    Args:
        template: Its file, whose name says whether it is HTML or Markdown.
        run: The run whose files it shows.
        values: What it shows, by name.

    Raises:
        InputError: The run's manifest lacks something that the template shows.
    """
    from jinja2 import UndefinedError

    try:
        return _environment(template.split(".")[1]).get_template(template).render(**values)
    except UndefinedError as error:
        raise InputError(
            f"{run.folder / 'manifest.json'} is damaged, or of another version of graphfed: {error}"
        ) from None


def sentences(about: str, **values: object) -> list[str]:
    """Return sentences as plain text, one line each.

    Args:
        about: The macro of sentences.txt.jinja that has them.
        values: What they are about, by name.
    """
    text = getattr(_environment("txt").get_template("sentences.txt.jinja").module, about)(**values)
    return [line.strip() for line in str(text).splitlines() if line.strip()]


@functools.cache
def _environment(form: str) -> "Environment":
    """The templates of a form: html, md or txt. A name that a template lacks is an error."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("graphfed.report", "."),
        autoescape=form == "html",
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize={"html": _html_text, "md": _markdown_text, "txt": _one_line}[form],
    )
    environment.filters |= {"code": _markdown_code, "bytes": human_bytes}
    return environment


def _html_text(value: object) -> object:
    """A value as the page shows it; autoescaping comes after this."""
    return printable(value) if isinstance(value, str) and not hasattr(value, "__html__") else value


def _one_line(value: object) -> str:
    return re.sub(r"\s", " ", printable(value))


def _markdown_text(value: object) -> object:
    """A value as plain text in Markdown, in one line: no markup, link, HTML or border of a table."""
    return value if hasattr(value, "__html__") else re.sub(r"([\\`*\[\]<>|&])", r"\\\1", _one_line(value))


def _markdown_code(value: object) -> object:
    """A value in a span of code, between the backticks of the template."""
    from markupsafe import Markup

    # A backslash is no escape there.
    return Markup(_one_line(value).translate(str.maketrans("`|<", "'//")))
