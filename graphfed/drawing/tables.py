"""Tables as HTML for notebooks and as LaTeX for papers. All texts are escaped."""

import html
from collections.abc import Sequence

#: What LaTeX would take for a command, and how it is written as text.
_LATEX = str.maketrans(
    {
        **{sign: f"\\{sign}" for sign in "&%$#_{}"},
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
        "\\": r"\textbackslash{}",
        "<": r"\textless{}",
        ">": r"\textgreater{}",
        "±": r"$\pm$",
    }
)


def html_table(columns: Sequence[str], rows: Sequence[Sequence[str]], caption: str) -> str:
    """Write a table as HTML; the caption may have several lines."""

    def line(cells: Sequence[str], tag: str) -> str:
        return "<tr>" + "".join(f"<{tag}>{html.escape(cell)}</{tag}>" for cell in cells) + "</tr>"

    lines = "<br>".join(map(html.escape, caption.splitlines()))
    body = "".join(line(row, "td") for row in rows)
    return (
        f"<table><caption>{lines}</caption><thead>{line(columns, 'th')}</thead><tbody>{body}</tbody></table>"
    )


def latex_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Write a table as LaTeX with the rules of the package booktabs; the first column is a text."""
    head, *body = (" & ".join(cell.translate(_LATEX) for cell in row) + r" \\" for row in (columns, *rows))
    form = "l" + "r" * (len(columns) - 1)
    lines = [rf"\begin{{tabular}}{{{form}}}", r"\toprule", head, r"\midrule", *body, r"\bottomrule"]
    return "\n".join([*lines, r"\end{tabular}", ""])
