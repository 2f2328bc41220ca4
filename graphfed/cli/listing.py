"""`graphfed methods`: what there is to choose from."""

from graphfed.cli.output import show

__all__ = ["methods"]


def methods() -> None:
    """List the methods: what each does, and the settings it has of its own or sets differently."""
    import dataclasses

    from rich.table import Table

    from graphfed.methods.base import TrainingConfig
    from graphfed.methods.registry import ALIASES, METHODS, get_method

    common = {field.name for field in dataclasses.fields(TrainingConfig)}
    table = Table(
        caption="settings of --set that every method has: " + ", ".join(sorted(common - {"seed"})),
        caption_justify="left",
    )
    for column in ("method", "task", "what it does", "own settings"):
        table.add_column(column, overflow="fold")
    for name in METHODS:
        method = get_method(name)
        default = method.config(**method.defaults)
        own = {f.name: getattr(default, f.name) for f in dataclasses.fields(default) if f.name not in common}
        aliases = [alias for alias, target in ALIASES.items() if target == name]
        told = ", ".join(f"{key}={value}" for key, value in {**method.defaults, **own}.items())
        table.add_row(", ".join([name, *aliases]), method.task, method.summary, told)
    show(table)
