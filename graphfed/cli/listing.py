"""`graphfed methods`: lists the methods, and describes one of them."""

import json
from typing import Annotated, Any

import typer

from graphfed.cli.options import Json, Plugins
from graphfed.cli.output import show
from graphfed.cli.values import method_names
from graphfed.terminal import make_table, print_line


def methods(
    name: Annotated[
        str | None,
        typer.Argument(metavar="NAME", autocompletion=method_names, help="The method to describe."),
    ] = None,
    *,
    plugin: Plugins = None,
    as_json: Json = False,
) -> None:
    """List the methods: what each needs, what it sends, and how that is protected.

    With a name, describe one method: its paper, its transfers and its settings.

    Examples:

        graphfed methods
        graphfed methods fedgcn
        graphfed methods --json
        graphfed methods damped --plugin damped.py

    Files:

        ~/.cache/graphfed/methods.json    the list, reused until the code changes

    See also: graphfed run, graphfed data list; docs/plugins.md, which adds a method
    """
    from graphfed.runs.catalogue import describe_every_method, describe_method

    if name is not None:
        method = describe_method(name)
        if as_json:
            print_line(json.dumps(method))
        else:
            _page(method)
    elif as_json:
        print_line(json.dumps({"methods": describe_every_method()}))
    else:
        _table(describe_every_method())


def _table(listed: list[dict[str, Any]]) -> None:
    """Print all methods in 80 columns. What every method needs is printed once, below the table."""
    # Repeated in every row, it would hide what only some methods need.
    common = [need for need in listed[0]["needs"] if all(need in method["needs"] for method in listed)]
    rows = []
    for method in listed:
        names = method["name"] + "".join(f"\n({alias})" for alias in method["aliases"])
        needs = [need for need in method["needs"] if need not in common]
        needed = "; ".join(needs) or "-"
        rows.append((names, method["summary"], needed, method["sent"], method["protection"]))
    table = make_table(
        ("method", "what it does", "needs", "what is sent", "protection"),
        rows,
        caption=f"Every method needs {' and '.join(common)}.\n" * bool(common)
        + "'graphfed methods NAME' shows the paper and every setting with its range.",
        lines=True,
    )
    table.columns[0].no_wrap = True
    show(table)


def _page(method: dict[str, Any]) -> None:
    plugin = method["plugin"] or {}
    facts = {
        method["name"]: method["summary"],
        "also called": ", ".join(method["aliases"]),
        "plug-in": plugin.get("module") or " ".join(plugin.values()),
        "paper": method["paper"],
        "task": ", ".join(method["tasks"]),
        "needs": "; ".join(method["needs"]),
        "what is sent": method["sent"],
        "protection": method["protection"],
    }
    # The defaults of the first task are in the table of settings below.
    for task in method["tasks"][1:]:
        chosen = (f"{key}={value}" for key, value in method["default_settings"][task].items())
        facts[f"defaults in {task}"] = ", ".join(chosen)
    table = make_table(("", ""), [(name, text) for name, text in facts.items() if text], plain=True)
    table.columns[0].no_wrap, table.columns[0].style = True, "bold"
    show(table)
    if method["messages"]:
        print_line()
        columns = ("transfer", "what it is, and who can read it")
        title = "what is sent, by transfer"
        show(make_table(columns, method["messages"].items(), title=title))
    rows = []
    for setting in method["settings"]:
        mark = " *" if setting["own"] or setting["name"] in method["defaults"] else ""
        default = "none" if setting["default"] is None else setting["default"]
        only = f"with {setting['only']}: " if setting["only"] else ""
        rows.append((setting["name"] + mark, setting["expected"], default, only + setting["description"]))
    table = make_table(
        ("setting", "a value is", "default", "what it is"),
        rows,
        title="settings (--set NAME=VALUE); * only of this method, or with another default than in other "
        "methods",
    )
    table.columns[0].no_wrap = True
    print_line()
    show(table)
