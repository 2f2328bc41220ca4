"""`graphfed methods`: what there is to choose from, and one method in full."""

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from graphfed.cli.output import show
from graphfed.cli.values import method_names
from graphfed.tasks.registry import first_task, get_task
from graphfed.terminal import markup, tell

if TYPE_CHECKING:
    from graphfed.methods.base import Method

__all__ = ["methods"]


def methods(
    name: Annotated[
        str | None,
        typer.Argument(metavar="NAME", autocompletion=method_names, help="A method, to see all about it."),
    ] = None,
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print what is known as one JSON object.")] = False,
) -> None:
    """List the methods: what each needs, what crosses and what protects it. With a name: paper and settings.

    Examples:
        graphfed methods
        graphfed methods fedgcn
        graphfed methods --json
    See also:
        graphfed run, graphfed data list; CONTRIBUTING.md, to add one
    """
    from graphfed.methods.registry import METHODS, get_method

    if name is not None:
        method = get_method(name)
        if as_json:
            tell(json.dumps(_content(method)))
        else:
            _page(method)
    elif as_json:
        tell(json.dumps({"methods": [_content(get_method(each)) for each in METHODS]}))
    else:
        _table([get_method(each) for each in METHODS])


def _aliases(method: "Method") -> list[str]:
    from graphfed.methods.registry import ALIASES

    return [alias for alias, target in ALIASES.items() if target == method.name]


def _content(method: "Method") -> dict[str, Any]:
    from graphfed.runs.settings import settings_of

    return {
        "name": method.name,
        "aliases": _aliases(method),
        "tasks": list(method.tasks),
        "summary": method.summary,
        "paper": method.paper,
        "needs": first_task(method).requirements(method),
        "crosses": method.crosses,
        "protection": method.protection,
        "messages": dict(method.messages),
        "settings": [setting.to_json() for setting in settings_of(method)],
        "recipes": {task: get_task(task).settings_of(method) for task in method.tasks},
    }


def _table(listed: "list[Method]") -> None:
    """All methods in 80 columns. What every one of them needs is said once, below."""
    from rich.table import Table

    needed = {method.name: first_task(method).requirements(method) for method in listed}
    common = [need for need in needed[listed[0].name] if all(need in needs for needs in needed.values())]
    table = Table(
        caption=f"Every method needs {' and '.join(common)}.\n" * bool(common)
        + "graphfed methods NAME: the paper, and every setting with its range.",
        caption_justify="left",
        show_lines=True,
    )
    for column in ("method", "what it does", "needs", "what crosses", "protection"):
        table.add_column(column, overflow="fold", no_wrap=column == "method")
    for method in listed:
        names = method.name + "".join(f"\n({alias})" for alias in _aliases(method))
        needs = [need for need in needed[method.name] if need not in common]
        cells = (names, method.summary, "; ".join(needs) or "-", method.crosses, method.protection)
        table.add_row(*(markup(cell) for cell in cells))
    show(table)


def _page(method: "Method") -> None:
    from rich.table import Table

    from graphfed.runs.settings import settings_of, told
    from graphfed.studies.plan import settings_text

    facts = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    facts.add_column(no_wrap=True, style="bold")
    facts.add_column(overflow="fold")
    rows = {
        method.name: method.summary,
        "also called": ", ".join(_aliases(method)),
        "paper": method.paper,
        "task": ", ".join(method.tasks),
        "needs": "; ".join(first_task(method).requirements(method)),
        "what crosses": method.crosses,
        "protection": method.protection,
        **{
            f"defaults in {task}": settings_text(get_task(task).settings_of(method))
            for task in method.tasks[1:]
        },
    }
    for what, words in rows.items():
        if words:
            facts.add_row(markup(what), markup(words))
    show(facts)
    if method.messages:
        sent = Table(title="what crosses, transfer by transfer", title_justify="left")
        sent.add_column("transfer", overflow="fold")
        sent.add_column("what it is, and who can read it", overflow="fold")
        for transfer, words in method.messages.items():
            sent.add_row(markup(transfer), markup(words))
        tell()
        show(sent)
    table = Table(
        title="settings (--set NAME=VALUE); * of this method alone, or with a default of its own",
        title_justify="left",
    )
    for column in ("setting", "a value is", "default", "what it is"):
        table.add_column(column, overflow="fold", no_wrap=column == "setting")
    for setting in settings_of(method):
        mark = " *" if setting.own or setting.name in method.defaults else ""
        cells = (setting.name + mark, setting.expected, told(setting.default), setting.description)
        table.add_row(*(markup(cell) for cell in cells))
    tell()
    show(table)
