"""Sphinx directives that print parts of the program, so that the pages cannot become outdated.

`help-pages` prints the help of every command, in one section each. `methods-table` prints what every
registered method needs, sends and protects. `messages-table` prints every named transfer of every method and
of every deployed run. `description-keys` prints the keys of a description of the user's own files.
`module-texts` prints the docstring of every module."""

import ast
import contextlib
import html
import io
import os
import re
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from docutils import nodes
from docutils.parsers.rst import Directive, Parser
from docutils.utils import new_document
from typer.main import get_command

import graphfed
from graphfed.cli import app, main
from graphfed.data.user_files.graph_description import Description
from graphfed.data.user_files.sensor_description import SensorDescription
from graphfed.deployment import participant
from graphfed.methods.common import feature_scaling
from graphfed.methods.common.entity_alignment import OWNER_MESSAGES
from graphfed.methods.registry import METHODS, get_method
from graphfed.runs import train
from graphfed.tasks.evaluation import SECURE_MESSAGES
from graphfed.tasks.graphs import class_weights
from graphfed.tasks.registry import TASKS, first_task, get_task
from graphfed.validation import keys_of


class HelpPages(Directive):
    """One section for each command of graphfed, with groups first."""

    def run(self) -> list[nodes.Node]:
        return [_section(path) for path in _paths(get_command(app), ())]


def _paths(command: Any, path: tuple[str, ...]) -> list[tuple[str, ...]]:
    found = [path]
    for name, child in getattr(command, "commands", {}).items():
        found += _paths(child, (*path, name))
    return found


def _section(path: tuple[str, ...]) -> nodes.section:
    name = " ".join(("graphfed", *path))
    section = nodes.section(ids=["-".join(("command", *path))])
    section += nodes.title(text=name)
    section += nodes.literal_block(text=_help(path), language="text")
    return section


def _help(path: tuple[str, ...]) -> str:
    """Return the output of `graphfed ... --help` in 80 columns."""
    os.environ["COLUMNS"] = "80"
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        code = main([*path, "--help"])
    assert code == 0, path
    return "\n".join(line.rstrip() for line in printed.getvalue().strip("\n").splitlines())


class MethodsTable(Directive):
    """A table with one row for each of graphfed's own methods."""

    def run(self) -> list[nodes.Node]:
        methods = [get_method(name) for name in METHODS.own]
        rows = [("method", "what it does", "needs", "what is sent", "protection")]
        rows += [
            (m.name, m.summary, "; ".join(first_task(m).requirements(m)), m.sends.summary, m.sends.protection)
            for m in methods
        ]
        return [text_table(rows)]


class MessagesTable(Directive):
    """Tables of the transfers of every run and of each method, each behind its title, which opens it. Methods
    with the same transfers share one table."""

    def run(self) -> list[nodes.Node]:
        alike: dict[tuple[tuple[str, str], ...], list[str]] = {}
        for name in METHODS.own:
            alike.setdefault(tuple(get_method(name).sends.messages.items()), []).append(name)
        aligned = [name for name in METHODS.own if "node_ids" in get_method(name).tree.names]
        tables = [
            ("Every deployed run", tuple(participant.MESSAGES.items())),
            ("Every run with training", tuple(train.CONTROL.items())),
            *(
                (f"Every run of {task.replace('_', ' ')}", tuple(get_task(task).messages.items()))
                for task in TASKS
            ),
            ("Both, with aggregation=secure", tuple(SECURE_MESSAGES.items())),
            ("Classification and links with features=scaled", tuple(feature_scaling.MESSAGES.items())),
            ("Classification with class_weights=balanced", tuple(class_weights.MESSAGES.items())),
            (f"{', '.join(aligned)}, if each site reads its own files", tuple(OWNER_MESSAGES.items())),
            *((", ".join(names), messages) for messages, names in alike.items()),
        ]
        found: list[nodes.Node] = []
        for title, messages in tables:
            found.append(nodes.raw("", f"<details><summary>{html.escape(title)}</summary>", format="html"))
            if messages:
                found.append(text_table([("transfer", "contents, and who can read it"), *messages]))
            else:
                found.append(nodes.paragraph(text="Training sends nothing."))
            found.append(nodes.raw("", "</details>", format="html"))
        return found


class DescriptionKeys(Directive):
    """A table of the keys of a description of a graph or of sensors, with their defaults."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        model = {"graph": Description, "sensors": SensorDescription}[self.arguments[0]]
        rows = [("key", "meaning", "default")]
        for key, field in keys_of(model).items():
            rows.append((key, field.description or "", "" if not field.default else str(field.default)))
        return [text_table(rows)]


class ModuleTexts(Directive):
    """The docstring of every module, in one section for each folder.

    They are parsed as reStructuredText, so a list that runs into its neighbours is a warning of the build.
    """

    def run(self) -> list[nodes.Node]:
        package = Path(graphfed.__file__).parent
        folders: dict[Path, list[Path]] = defaultdict(list)
        for path in sorted(package.rglob("*.py")):
            folders[path.parent].append(path)
        sections: list[nodes.Node] = []
        for folder in sorted(folders):
            name = folder.relative_to(package.parent).as_posix()
            section = nodes.section(ids=[f"folder-{name.replace('/', '-')}"])
            section += nodes.title(text=name)
            for path in folders[folder]:
                if text := ast.get_docstring(ast.parse(path.read_text()), clean=False):
                    section += nodes.rubric(text=path.name)
                    section += self._parsed(text, path)
            sections.append(section)
        return sections

    def _parsed(self, text: str, path: Path) -> list[nodes.Node]:
        document = new_document(str(path), self.state.document.settings)
        document.reporter = self.state.document.reporter
        Parser().parse(as_rst(text), document)
        return list(document.children)


def as_rst(docstring: str) -> str:
    """Return a module's docstring with its indented blocks (tables, formulas, code) and names as literals."""

    def indent(text: str) -> int:
        return len(text) - len(text.lstrip(" "))

    paragraphs, marked = re.split(r"\n(?:[ \t]*\n)+", docstring), []
    for paragraph in paragraphs:
        if (margin := indent(paragraph)) >= 4 and (not marked or indent(marked[-1]) < 4):
            marked.append((margin - 4) * " " + ".. code:: text")
        marked.append(paragraph if margin >= 4 else re.sub(r"`+([^`]+)`+", r"``\1``", paragraph))
    return "\n\n".join(marked)


def text_table(rows: Sequence[Sequence[str]]) -> nodes.table:
    """Return a table of texts.

    Args:
        rows: The cells of each row; the first row is the head. Each line of a cell is a paragraph.
    """
    group = nodes.tgroup(cols=len(rows[0]))
    group += [nodes.colspec(colwidth=1) for _ in rows[0]]
    head, body = nodes.thead(), nodes.tbody()
    for i, row in enumerate(rows):
        line = nodes.row()
        line += [nodes.entry("", *(nodes.paragraph(text=text) for text in cell.split("\n"))) for cell in row]
        (body if i else head).append(line)
    group += [head, body]
    return nodes.table("", group)


def arguments_apart(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Begin a new paragraph at each line of a docstring that explains an argument (``data: ...``)."""
    apart: list[str] = []
    for line in lines:
        if re.match(r"[a-z_]\w*(, [a-z_]\w*)*: ", line) and apart and apart[-1]:
            apart.append("")
        apart.append(line)
    lines[:] = apart


def setup(app: Any) -> dict[str, Any]:
    app.add_directive("help-pages", HelpPages)
    app.add_directive("methods-table", MethodsTable)
    app.add_directive("messages-table", MessagesTable)
    app.add_directive("description-keys", DescriptionKeys)
    app.add_directive("module-texts", ModuleTexts)
    app.connect("autodoc-process-docstring", arguments_apart)
    return {"parallel_read_safe": True}
