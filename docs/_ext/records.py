"""Sphinx directives for figures of records, and mathematics as MathML; nothing is fetched from the network.

Text may call the functions of `recorded_figures`: ``{{ ours("lumos/fig3", "GCN, Lumos", "accuracy") }}``. The
directive `reproduction-table` prints our figures of an item next to the paper's, and `record-table` those of
any record. `reproduction-plot` draws an item. `claim` prints a sentence and checks the relation between
figures that it states. A name that a record does not contain, or a claim that a record contradicts, is
reported with file and line and fails the build."""

import html
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from docutils import nodes
from docutils.parsers.rst import directives
from from_the_program import text_table
from math_core import LatexError, LatexToMathML
from recorded_figures import RecordError, Records, ranges
from sphinx.application import Sphinx
from sphinx.util import logging
from sphinx.util.docutils import SphinxDirective

from graphfed.reproductions import plots
from graphfed.reproductions.tables import cells_of, relative_cells

#: The folder of the drawings, in the folder of the pages; Sphinx copies them like other pictures.
PLOTS = "_plots"
TAG = re.compile(r"\\tag\{([^}]*)\}")


def records_of(app: Sphinx) -> Records:
    """Return the records of a build."""
    return Records(Path(app.srcdir, app.config.records_folder).resolve())


# ---- directives --------------------------------------------------------------------------------------------


class RecordDirective(SphinxDirective):
    """A directive whose content comes from records; subclasses define `make_nodes`."""

    required_arguments = 1
    final_argument_whitespace = True

    def run(self) -> list[nodes.Node]:
        try:
            return self.make_nodes(self.arguments[0].strip(), records_of(self.env.app))
        except RecordError as error:
            raise self.error(f"{self.name}: {error}") from None

    def make_nodes(self, argument: str, records: Records) -> list[nodes.Node]:
        """Return the nodes that replace the directive."""
        raise NotImplementedError


class ReproductionTable(RecordDirective):
    """A table with our figures of an item, the printed ones, their difference and the seeds, and below it the
    source of the figures."""

    option_spec: ClassVar[Any] = {
        "metrics": directives.unchanged_required,
        "rows": directives.unchanged_required,
        "relative": directives.flag,
    }

    def make_nodes(self, argument: str, records: Records) -> list[nodes.Node]:
        paper, asked = records.asked(argument)
        found = records.item(argument)
        if "metrics" in self.options:
            found["metrics"] = self.options["metrics"].replace(",", " ").split()
            for metric in found["metrics"]:
                records.ours(argument, found["rows"][0]["label"], metric)
        if "rows" in self.options:
            pattern = self.options["rows"]
            found["rows"] = [row for row in found["rows"] if re.search(pattern, row["label"])]
            if not found["rows"]:
                raise RecordError(f"{argument}: no row matches {pattern!r}")
        if "relative" in self.options:
            columns, lines = relative_cells(found)
        else:
            columns, lines = cells_of(asked, found)
            if columns[-2:] == ["runs", "seconds"]:
                columns, lines = columns[:-1], [line[:-1] for line in lines]
            columns = ["seeds" if column == "runs" else column for column in columns]
        if not lines:
            raise RecordError(f"{argument}: no row is compared with another")
        table = text_table([columns, *lines])
        table["classes"] += ["figures", *(["relative"] if "relative" in self.options else [])]
        return [table, _source(paper, found, records)]


class RecordTable(RecordDirective):
    """A table of values over runs (`Records.reached`), numbers or texts of a record, with a row for each key.

    The argument is the record, and the JMESPath of the object that has the keys. ``:rows:`` has ``key=label``
    for each row, separated by ";". Each line of the content is a column: its title, the path in an entry, the
    format and the number to divide by, separated by "|". In a record that has an object for each column, the
    path of the column contains ``{}`` in the place of the key."""

    option_spec: ClassVar[Any] = {"rows": directives.unchanged_required}
    has_content = True

    def make_nodes(self, argument: str, records: Records) -> list[nodes.Node]:
        name, _, path = argument.partition(" ")
        columns = [[part.strip() for part in line.split("|")] for line in self.content]
        if any(len(column) != 4 for column in columns):
            raise RecordError("a column has a title, a path, a format and a number to divide by")
        rows = [row.strip().split("=", 1) for row in self.options["rows"].split(";")]
        lines = [["", *(title for title, *_ in columns)]]
        for key, label in rows:
            cells = []
            for _, inner, form, per in columns:
                below = inner.replace("{}", key) if "{}" in inner else f"{key}.{inner}"
                cells.append(records.cell(name, f"{path}.{below}".lstrip("."), form, per=float(per)))
            lines.append([label, *cells])
        table = text_table(lines)
        table["classes"].append("figures")
        return [table]


def _source(paper: str, found: Mapping[str, Any], records: Records) -> nodes.paragraph:
    """Return the line ``Record: benchmarks/results/reproduce_lumos.json, item fig3, commit c8942d9; seeds
    0-2.``"""
    name = f"reproduce_{paper}"
    commits = records.record(name).get("commits", {}).get(found["item"])
    if isinstance(commits, list):
        commits = " and ".join(filter(None, [", ".join(commits[:-1]), commits[-1]]))
    parts = [f", item {found['item']}, {'commit ' + commits if commits else 'without its commit'}"]
    seeds = list(dict.fromkeys(tuple(row["seeds"]) for row in found["rows"] if "seeds" in row))
    if seeds:
        parts.append(f"; seeds {' or '.join(ranges(each) for each in seeds)}")
    rounds = [n for row in found["rows"] if "x" in row and "rounds" in row for n in row["rounds"]]
    if rounds:
        least, most = min(rounds), max(rounds)
        parts.append(f"; {least} rounds" if least == most else f"; {least} to {most} rounds")
    paragraph = nodes.paragraph("", classes=["record"])
    paragraph += [nodes.Text("Record: "), nodes.literal(text=f"benchmarks/results/{name}.json")]
    paragraph += nodes.Text("".join(parts) + f". Printed: {found['source']}.")
    return paragraph


class ReproductionPlot(RecordDirective):
    """A plot of an item, as `graphfed reproduce` draws it: our figures and the printed ones, its curves, or
    the comparisons of its rows."""

    option_spec: ClassVar[Any] = {
        "curves": directives.flag,
        "relative": directives.flag,
        "alt": directives.unchanged_required,
    }

    def make_nodes(self, argument: str, records: Records) -> list[nodes.Node]:
        paper, asked = records.asked(argument)
        found = records.item(argument)
        kind = next((kind for kind in ("curves", "relative") if kind in self.options), "")
        if kind == "curves" and "curve" not in found["rows"][0]:
            raise RecordError(f"{argument}: it has no curves")
        if kind == "relative" and not any(row["relative"] for row in found["rows"]):
            raise RecordError(f"{argument}: no row is compared with another")
        draw = {"curves": plots.draw_curves, "relative": plots.draw_relative}.get(kind)
        picture = draw(found) if draw else plots.draw(asked, found)
        name = f"{PLOTS}/{paper}-{found['item']}{kind and '-' + kind}.svg"
        path = Path(self.env.srcdir, name)
        path.parent.mkdir(exist_ok=True)
        if not path.exists() or path.read_bytes() != picture:
            path.write_bytes(picture)
        alt = self.options.get("alt", f"{found['title']}: our figures next to the printed ones")
        return [nodes.image(uri=f"/{name}", alt=alt, classes=["reproduction"])]


class Claim(RecordDirective):
    """A sentence with a check of the relation between figures of records that it states."""

    has_content = True

    def make_nodes(self, argument: str, records: Records) -> list[nodes.Node]:
        held = records.evaluate(argument)
        if held is not True and held is not False:
            raise RecordError(f"{argument} is {held!r}; a claim is true or false")
        if not held:
            raise RecordError(f"the records contradict this sentence: {argument} is false")
        container = nodes.container(classes=["claim"])
        self.state.nested_parse(self.content, self.content_offset, container)
        return [container]


# ---- mathematics -------------------------------------------------------------------------------------------

MATHML = LatexToMathML(fancy_error=False, allow_unreliable_rendering=True)


def inline_mathematics(translator: Any, node: nodes.math) -> None:
    """Write an inline formula."""
    translator.body.append(f'<span class="math">{_mathml(node, node.astext(), display=False)}</span>')
    raise nodes.SkipNode


def displayed_mathematics(translator: Any, node: nodes.math_block) -> None:
    """Write a displayed formula, with the number of its ``\\tag``."""
    tags = TAG.findall(node.astext())
    number = tags[0] if len(tags) == 1 else ""
    latex = TAG.sub("", node.astext()) if number else node.astext()
    anchor = "eq-" + re.sub(r"\W+", "-", number) if number else ""
    named = f' id="{html.escape(anchor)}"' if anchor else ""
    shown = f'<span class="eqno">({html.escape(number)})</span>' if number else ""
    translator.body.append(f'<div class="math"{named}>{_mathml(node, latex, display=True)}{shown}</div>\n')
    raise nodes.SkipNode


def _mathml(node: nodes.Node, latex: str, *, display: bool) -> str:
    try:
        return MATHML.convert_with_local_state(latex, displaystyle=display)
    except LatexError as error:
        reason = str(error).partition(": ")[2]  # without the position in the formula
        logging.getLogger(__name__).warning("mathematics: %s: %s", latex.strip(), reason, location=node)
        return f"<code>{html.escape(latex)}</code>"


# ---- set-up ------------------------------------------------------------------------------------------------


def add_functions(app: Sphinx, config: Any) -> None:
    """Make the functions of the records available to the pages."""
    config.myst_substitutions = {**config.myst_substitutions, **records_of(app).functions}


def add_style(app: Sphinx) -> None:
    """Add the folder of the style sheet."""
    app.config.html_static_path.append(str(Path(__file__).parent / "static"))


def setup(app: Sphinx) -> dict[str, Any]:
    app.add_config_value("records_folder", "../benchmarks/results", "env")
    app.connect("config-inited", add_functions)
    app.connect("builder-inited", add_style)
    app.add_css_file("records.css")
    app.add_directive("reproduction-table", ReproductionTable)
    app.add_directive("record-table", RecordTable)
    app.add_directive("reproduction-plot", ReproductionPlot)
    app.add_directive("claim", Claim)
    app.add_html_math_renderer("mathml", (inline_mathematics, None), (displayed_mathematics, None))
    return {"parallel_read_safe": True}
