"""The options that several commands share, grouped into the panels of the help.

A command with few options declares them as parameters: ``data_dir: DataDir = None``. A command with many
options of a run names them with `with_options` and receives them as one object (`SharedOptions`).
"""

import functools
import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from graphfed.cli.values import choices, method_names, setting_keys
from graphfed.errors import InputError
from graphfed.tasks import run_options
from graphfed.tasks.run_options import DATA_PANEL, OUTPUT_PANEL, PLUGIN_PANEL, TRAINING_PANEL


def whole_number(text: str) -> int:
    """Parse a whole number."""
    try:
        return int(text)
    except ValueError:
        raise typer.BadParameter(f"{text[:60]!r} is not a whole number") from None


def byte_count(text: str) -> int:
    """Parse a number of bytes, as in 500MB or 4GB."""
    units = {"KB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12}
    form = re.fullmatch(r"(\d{1,6}(?:\.\d{1,3})?) ?([KMGT]B)", text.strip().upper())
    if form is None or not float(form[1]):
        raise typer.BadParameter(f"{text[:60]!r} is not a number of bytes, as in 500MB or 4GB")
    return int(float(form[1]) * units[form[2]])


def _load_plugins(context: typer.Context, modules: list[str] | None) -> list[str] | None:
    """Load the plug-ins before the command begins, so that it finds their methods and data sets by name."""
    if modules and not context.resilient_parsing:  # completion parses resiliently
        from graphfed.plugins import load_plugin

        for module in modules:
            load_plugin(module)
    return modules


def _typer_option(name: str) -> Any:
    """Return what typer reads of the declaration of an option of a run."""
    option = run_options.described(name)
    names = run_options.choices_of(name) or option.names
    return typer.Option(
        metavar=option.metavar,
        parser=whole_number if int in run_options.kinds_of(name) else None,
        autocompletion=choices(names, option.plugins) if names else None,
        rich_help_panel=option.panel,
        help=option.help,
    )


def _parameter(name: str) -> inspect.Parameter:
    """Return the parameter of a command for an option of a run; None stands for one that was not given."""
    kinds = run_options.kinds_of(name)
    kind: Any = str
    if int in kinds:
        kind = int
    elif float in kinds:
        kind = float
    elif Path in kinds and not run_options.described(name).names:
        kind = Path  # whose completion is the shell's own
    return inspect.Parameter(
        name,
        inspect.Parameter.KEYWORD_ONLY,
        # Not the real default: only options that were given override those of a config file.
        default=None,
        annotation=Annotated[kind | None, _typer_option(name)],
    )


Method = Annotated[
    str | None,
    typer.Argument(metavar="METHOD", autocompletion=method_names, help="The method; see 'graphfed methods'."),
]
DataDir = Annotated[Path | None, _typer_option("data_dir")]
Config = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        rich_help_panel=DATA_PANEL,
        help="YAML file with these options by name (method, data, clients, ...) and settings under 'set:'. "
        "Options on the command line override the file.",
    ),
]
Seeds = Annotated[
    str | None,
    typer.Option(
        metavar="S,S,...",
        rich_help_panel=TRAINING_PANEL,
        help="Seeds, separated by commas, or a range as 0-9 (default: 0,1,2).",
    ),
]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        autocompletion=setting_keys,
        rich_help_panel=TRAINING_PANEL,
        help="A setting: of the method (lr, hidden, dropout, backbone, local_steps, ...; 'graphfed methods "
        "NAME' lists all), of the partition (partition.beta, ...) or of a generated data set "
        "(data.num_nodes, ...), or partition_seed or split_seed (default: the seed). Give the option once "
        "per setting.",
    ),
]
#: The callback loads the plug-ins, so commands take the option but do not use its value.
Plugins = Annotated[
    list[str] | None,
    typer.Option(
        "--plugin",
        metavar="MODULE",
        callback=_load_plugins,
        rich_help_panel=PLUGIN_PANEL,
        help="A Python file, or a module that Python finds, with your own methods, data sets, partitions or "
        "audits. Give the option once per module. Installed plug-ins are found without it.",
    ),
]
Json = Annotated[
    bool,
    typer.Option(
        "--json",
        rich_help_panel=OUTPUT_PANEL,
        help="Print the result as one JSON object, on the last line of stdout.",
    ),
]
Progress = Annotated[
    bool,
    typer.Option(
        show_default=False, rich_help_panel=OUTPUT_PANEL, help="Show progress on stderr (default: yes)."
    ),
]
Report = Annotated[
    bool,
    typer.Option(
        show_default=False,
        rich_help_panel=OUTPUT_PANEL,
        help="Write report.html into the folder of the run (default: yes).",
    ),
]


@dataclass(frozen=True, kw_only=True)
class SharedOptions:
    """The options that several commands share.

    Attributes:
        run: The options of a run that were given, by the names of `RunOptions`.
    """

    run: Mapping[str, Any]
    config: Config = None
    seeds: Seeds = None
    plugin: Plugins = None
    settings: Settings = None
    as_json: Json = False
    report: Report = True
    progress: Progress = True

    def run_options(self, **declared: Any) -> dict[str, Any]:
        """Return the options of a run that were given, those that the command declares itself included."""
        return {**self.run, **{name: value for name, value in declared.items() if value is not None}}

    def merged(self, config: dict[str, Any], **declared: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        """Merge the options of a config file, {} for none, with those of the command line, which override it.

        Returns the options and the settings.
        """
        from graphfed.runs.settings import parse_settings
        from graphfed.studies.plan import parse_seeds

        # The right operand wins: the command line overrides the file.
        options = config | self.run_options(**declared)
        settings = options.pop("set", {}) | parse_settings(self.settings or ())
        if "seeds" in options:
            options["seeds"] = parse_seeds(options["seeds"])
        return options, settings


def read_seedless_config(path: Path, what: str, *extra: str) -> dict[str, Any]:
    """Read the config file of a study, which has several seeds instead of one.

    The file may have the keys `extra` in addition to the options of a run.
    """
    from graphfed.runs.config import read_config

    options = read_config(path, extra=("seeds", *extra))
    if "seed" in options:
        raise InputError(f"the config file {path} has 'seed', but a {what} has several: write 'seeds: 0,1,2'")
    return options


def with_options(*names: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Make a decorator that adds shared options to a command, which gets them as its parameter `shared`.

    `names` are all options of the command, in the order of its help page. An option that the command declares
    as a keyword parameter is passed under its name, even if a shared option has the same name.
    """

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        declared = dict(inspect.signature(command).parameters)
        del declared["shared"]
        arguments = [
            declared.pop(name)
            for name in [*declared]
            if declared[name].kind is not declared[name].KEYWORD_ONLY
        ]
        assert declared.keys() <= set(names), "an option of the command has no place in the help"
        of_run = [name for name in names if name in run_options.OPTIONS and name not in declared]
        others = [name for name in names if name not in (*of_run, *declared)]
        known = {
            **inspect.signature(SharedOptions).parameters,
            **{name: _parameter(name) for name in of_run},
            **declared,
        }
        parameters = [*arguments, *(known[name] for name in names)]

        @functools.wraps(command)
        def call(**values: Any) -> None:
            given = {name: value for name in of_run if (value := values.pop(name)) is not None}
            shared = SharedOptions(run=given, **{name: values.pop(name) for name in others})
            command(**values, shared=shared)

        # typer reads the options of a command from its signature and annotations.
        call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        call.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        return call

    return decorate
