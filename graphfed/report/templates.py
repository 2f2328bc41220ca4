"""Fills the templates of a report: the page, the model card, and single sentences.

All wording is in the templates next to this file. Values come from files that anybody may have written: the
environment of each template escapes them where it shows them.
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


def fill_template(template: str, run: "Run", **values: object) -> str:
    """Fill the template of a page; the name of the file says whether it is HTML or Markdown.

    Raises:
        InputError: The manifest of the run does not have a value that the template shows.
    """
    from jinja2 import UndefinedError

    try:
        return _environment(template.split(".")[1]).get_template(template).render(**values)
    except UndefinedError as error:
        raise InputError(
            f"{run.folder / 'manifest.json'} is damaged, or of another version of graphfed: {error}"
        ) from None


def sentences(about: str, **values: object) -> list[str]:
    """Fill a macro of sentences.txt.jinja, and return its sentences as plain text without empty lines."""
    text = getattr(_environment("txt").get_template("sentences.txt.jinja").module, about)(**values)
    return [line.strip() for line in str(text).splitlines() if line.strip()]


@functools.cache
def _environment(form: str) -> "Environment":
    """Return the environment of the templates of a form: "html", "md" or "txt"."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("graphfed.report", "."),
        autoescape=form == "html",
        # A name that is not passed to a template is an error, not an empty text.
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize={"html": _html_text, "md": _markdown_text, "txt": _one_line}[form],
    )
    environment.filters |= {"code": _markdown_code, "bytes": human_bytes}
    return environment


def _html_text(value: object) -> object:
    """Make a value printable for the page; autoescaping follows."""
    return printable(value) if isinstance(value, str) and not hasattr(value, "__html__") else value


def _one_line(value: object) -> str:
    return re.sub(r"\s", " ", printable(value))


def _markdown_text(value: object) -> object:
    """Escape a value for Markdown: one line without markup, links, HTML or borders of a table."""
    return value if hasattr(value, "__html__") else re.sub(r"([\\`*\[\]<>|&])", r"\\\1", _one_line(value))


def _markdown_code(value: object) -> object:
    """Make a value safe inside a code span, between the backticks of the template."""
    from markupsafe import Markup

    # A backslash does not escape in a code span, so the characters are replaced.
    return Markup(_one_line(value).translate(str.maketrans("`|<", "'//")))
