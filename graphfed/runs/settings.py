"""Settings in words: what each one takes, and what to say about a name or a value that cannot be used.

The words come from the config dataclass of the method, so that help, tables and refusals never differ:
`settings_of` describes every setting, `explain` turns pydantic's first complaint into one line, and
`unknown_setting` says where a name belongs that the method does not have.
"""

import contextlib
import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from graphfed.data.datasets import DATASETS
from graphfed.data.partitions.partition import PARTITIONS
from graphfed.errors import InputError, did_you_mean, shown
from graphfed.files import JsonObject
from graphfed.methods.base import Method
from graphfed.methods.config import BackboneSettings, CommonSettings, GraphSettings, TrainingSettings
from graphfed.methods.registry import METHODS
from graphfed.renamed import NAMES, new_name
from graphfed.tasks.registry import get_task
from graphfed.tasks.run_config import RunConfig
from graphfed.tasks.run_options import OPTIONS, SettingValue
from graphfed.validation import MISSED, expected_value, kind_of

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo
    from pydantic_core import ErrorDetails

__all__ = [
    "MOST_HOMES",
    "OPTION_WORDS",
    "SYNONYMS",
    "Setting",
    "changed_settings",
    "explain",
    "explain_in",
    "given_settings",
    "has_value",
    "home_of",
    "settings_in",
    "settings_of",
    "told",
    "unknown_setting",
    "unusable_value",
]


def given_settings(settings: object, named: Mapping[str, object] | None = None) -> dict[str, object]:
    """Return the settings in a mapping and those that are given by name.

    Args:
        settings: A mapping, or None.
        named: Settings that were given as keywords.

    Raises:
        InputError: `settings` is of another type, or a setting is in both."""
    if settings is not None and not isinstance(settings, Mapping):
        raise InputError(f"settings of type {type(settings).__name__} cannot be used; give a mapping")
    chosen, others = dict(settings or {}), named or {}
    doubled = sorted(chosen.keys() & others.keys())
    if doubled:
        raise InputError(f"{doubled[0]} is given twice, in settings and by name; give it once")
    return {**chosen, **others}


@dataclass(frozen=True)
class Setting:
    """One setting of a method.

    kind: "whole number", "number", "yes or no", "text" or "choice"; choices: of a choice.
    expected: what a value must be, in words, as in "a number more than 0 and at most 1".
    default: what the method uses when it is not given. own: whether only this method (and its kin) has it."""

    name: str
    kind: str
    expected: str
    choices: tuple[SettingValue, ...]
    default: SettingValue
    description: str
    own: bool

    def to_json(self) -> JsonObject:
        return dataclasses.asdict(self)


def settings_of(method: Method, task: str | None = None) -> list[Setting]:
    """Every setting of a method that --set takes, in the order of its config: shared ones first. task: whose
    defaults to tell (None: the method's first)."""
    definition = get_task(task or method.tasks[0])
    shared = {field.name for group in definition.groups for field in dataclasses.fields(group)}
    found = settings_in(method.config, **definition.settings_of(method))
    return [
        dataclasses.replace(setting, own=setting.name not in shared)
        for setting in found
        if setting.name != "seed"
    ]


def changed_settings(config: RunConfig) -> JsonObject:
    """Return the settings in which a run differs from the defaults of its task, so that no table hides it.

    The default of a shared setting is the task's; of a method's own it is the method's. A graph network that
    a method leaves no choice of is listed like one that was chosen: rows with it do the same work."""
    task, method = get_task(config.task), config.method
    own = dataclasses.asdict(method.config(**task.settings_of(method)))
    default = dict(own)
    for group in task.groups:
        if isinstance(config.training, group):
            default |= dataclasses.asdict(group())
    default |= task.defaults
    # How transfers are protected changes no result, up to rounding.
    default |= {key: own[key] for key in (*method.protections, "protocols") if key in own}
    chosen = dataclasses.asdict(config.training)
    left_out = {"seed"}
    if not isinstance(config.training, TrainingSettings):
        left_out.add("rounds")  # what learns nothing is the same after any number of rounds
    changed = {key: v for key, v in chosen.items() if key not in left_out and v != default[key]}
    if isinstance(config.training, GraphSettings) and not isinstance(config.training, BackboneSettings):
        network = config.training.architecture
        changed |= {} if network == BackboneSettings().backbone else {"backbone": network}
    return changed


def settings_in(config: Any, **chosen: object) -> list[Setting]:
    """Every setting of a config's class (a dataclass of pydantic), with the defaults where `chosen` has
    others."""
    default = config(**chosen)
    fields: Mapping[str, FieldInfo] = config.__pydantic_fields__
    return [_setting(name, field, getattr(default, name), True) for name, field in fields.items()]


def _setting(name: str, field: "FieldInfo", default: SettingValue, own: bool) -> Setting:
    kind, choices, optional = kind_of(field.annotation)
    expected = expected_value(field) + (", or none" if optional else "")
    return Setting(name, kind, expected, choices, default, field.description or "", own)


# ---- values ------------------------------------------------------------------------------------------------


def explain(complaint: "ErrorDetails", method: Method, task: str | None = None) -> str:
    """A complaint of pydantic (`ValidationError.errors()`) as one line: key, value, expectation, default."""
    return explain_in(complaint, settings_of(method, task), method.name, _methods_with)


def explain_in(
    complaint: "ErrorDetails",
    settings: Iterable[Setting],
    owner: str,
    able_with: Callable[[str, str], list[str]] = lambda key, value: [],
) -> str:
    """`explain` for any settings; owner: whose they are, able_with(key, value): other owners whose setting
    can be that."""
    key = str(complaint["loc"][0]) if complaint["loc"] else ""
    value = complaint["input"]
    setting = next((s for s in settings if s.name == key), None)
    if setting is None or complaint["type"] not in MISSED:
        reason = complaint["msg"].removeprefix("Value error, ")
        reason = reason[:1].lower() + reason[1:]
        return f"{key or owner}={shown(value)} cannot be used: {reason}"
    names = [choice for choice in setting.choices if isinstance(choice, str)]
    if names and isinstance(value, str):
        hint = did_you_mean(value.lower()[:60], names)
        able = able_with(key, value)
        if able:
            hint = f"{owner} has no step for it ({', '.join(able)} have); {hint}"
    else:
        hint = f"expected {setting.expected}"
    return f"{key}={shown(value)} cannot be used: {hint} (default {told(setting.default)})"


def _methods_with(key: str, value: str) -> list[str]:
    """The methods whose setting `key` can be `value`."""
    return [
        m.name
        for m in METHODS.usable().values()
        for s in settings_of(m)
        if s.name == key and value in s.choices
    ]


def _readings(text: str) -> Iterator[str | int | None]:
    """Yield what a value that was typed may stand for; the type of its setting decides."""
    yield from (text, text.lower())
    if text.lower() in ("none", "null"):
        yield None
    with contextlib.suppress(ValueError):
        yield int(text)


def has_value(config: CommonSettings, key: str, text: str) -> bool:
    """Return whether a setting has the value that `text` means.

    Values are compared, not texts: 0.25, .25 and 2.5e-1 are the same number, and True is yes.

    Args:
        config: A method's settings.
        key: The name of a setting; one that the method lacks has no value.
        text: The value, as it is typed on the command line.
    """
    from pydantic import ValidationError

    if key not in {field.name for field in dataclasses.fields(config)}:
        return False
    for value in _readings(text):
        changed: JsonObject = {key: value}
        # A value that the setting cannot have, or not beside the others, is not the one that it has.
        with contextlib.suppress(ValidationError):
            if getattr(dataclasses.replace(config, **changed), key) == getattr(config, key):
                return True
    return False


def unusable_value(method: Method, key: str, text: str) -> str:
    """Return why a method's setting can never have the value that `text` means; empty where it can.

    Args:
        method: A method that has the setting.
        key: The setting's name.
        text: The value, as it is typed on the command line.
    """
    from pydantic import ValidationError

    complaint = ""
    for value in _readings(text):
        try:
            method.config(**{**method.defaults, key: value})
        except ValidationError as error:
            missed = [e for e in error.errors(include_url=False) if e["loc"][:1] == (key,)]
            if not missed or any(e["type"] not in MISSED for e in missed):
                return ""  # its kind and range are right; beside other settings it may be possible
            complaint = complaint or explain(missed[0], method)
        else:
            return ""
    return complaint


def told(value: SettingValue) -> str:
    """A default as it is written on the command line."""
    return "none" if value is None else str(value)


# ---- names -------------------------------------------------------------------------------------------------

#: What other programs call a setting of ours. They are not taken, only answered: one name for one thing.
SYNONYMS: dict[str, str] = {
    other: name
    for name, others in {
        "lr": "learning_rate learningrate lr_client client_lr eta step_size",
        "weight_decay": "wd l2 decay weightdecay l2_regularization",
        "hidden": "hidden_dim hidden_channels hidden_size hidden_units num_hidden n_hidden width dim",
        "layers": "num_layers n_layers depth num_gnn_layers",
        "dropout": "dropout_rate dropout_p drop p_dropout",
        "backbone": "model arch architecture gnn conv",
        "heads": "num_heads n_heads attention_heads",
        "local_steps": "local_iterations num_local_epochs local_epoch inner_steps",
        "fraction": "client_fraction participation sample_fraction participation_rate frac",
        "optimizer": "optim opt optimiser",
        "patience": "early_stopping early_stop",
        "eval_every": "eval_interval eval_freq validate_every",
        "rounds": "n_rounds num_rounds epochs num_epochs n_epochs iterations communication_rounds max_rounds",
        "mu": "prox_mu proximal_mu mu_prox",
        "server_lr": "server_learning_rate lr_server global_lr",
        "hops": "num_hops n_hops hop",
        "unsent_value": "feature_mean neutral_value",
        "lags": "history input_len input_length seq_len window_size num_lags",
        "horizon": "pred_len output_len output_length prediction_length forecast_horizon steps_ahead",
        "partition.beta": "beta dirichlet_beta dirichlet concentration iid_beta dirichlet_alpha",
        "partition.alpha": "alpha skew",
        "partition.overlap": "overlap",
        "split_seed": "data_seed",
    }.items()
    for other in others.split()
}
#: What other programs call one of our options (or what is an option and no setting).
OPTION_WORDS: dict[str, str] = {
    other: name
    for name, others in {
        "clients": "clients num_clients n_clients n_trainers num_trainers num_clients k",
        "task": "task task_name task_type problem",
        "seed": "seed random_seed random_state manual_seed",
        "data": "data dataset data_name",
        "partition": "partition partitioner split_type distribution",
        "split": "split train_ratio",
        "device": "device gpu use_gpu cuda",
        "threads": "threads num_threads n_jobs num_workers",
        "workers": "workers",
        "runtime": "runtime backend",
        "placement": "placement",
        "out": "out output output_dir save_dir log_dir",
        "data_dir": "data_dir root data_root data_path",
        "checkpoint_every": "checkpoint_every save_every checkpoint_interval",
    }.items()
    for other in others.split()
}
_BATCHES = ("batch", "batch_size", "batchsize", "bs", "mini_batch", "minibatch", "local_batch_size")


#: Methods that a message names.
MOST_HOMES = 6


def home_of(key: str) -> str:
    """Where a setting belongs that is known somewhere, in words; empty where it is known nowhere."""
    methods = [
        name
        for name, method in METHODS.usable().items()
        if key != "seed" and key in {field.name for field in dataclasses.fields(method.config)}
    ]
    partitions = [
        name for name, spec in PARTITIONS.usable().items() if key in (f"partition.{o}" for o in spec.options)
    ]
    data = [name for name, spec in DATASETS.usable().items() if key in (f"data.{o}" for o in spec.options)]
    for what, names in (("", methods), ("the partition ", partitions), ("the data set ", data)):
        if len(names) > MOST_HOMES:
            first, others = ", ".join(names[:MOST_HOMES]), len(names) - MOST_HOMES
            return f"it is a setting of {what}{first} and {others} more"
        if names:
            return f"it is a setting of {what}{' and '.join(names)}"
    return ""


def unknown_setting(key: object, known: Iterable[str]) -> str:
    """What to say after "... has no setting KEY": the name meant, where it belongs, or the nearest name."""
    known = list(known)
    name = str(key)[:200]
    plain = name.lower().replace("-", "_")
    if plain in NAMES:
        return _renamed_setting(plain, known)
    if plain != name and plain in known:
        return f"did you mean {plain!r}?"
    if plain in _BATCHES and "batch" not in known:
        return "there are no batches: every local step uses a client's whole graph (see local_steps)"
    meant = "batch" if plain in _BATCHES else SYNONYMS.get(plain)
    if meant in known:
        return f"did you mean {meant!r}?"
    return _known_elsewhere(plain, meant) or did_you_mean(plain, known)


def _known_elsewhere(name: str, meant: str | None) -> str:
    """Return where a setting belongs that the method does not have; empty where it is known nowhere.

    Args:
        name: The name that was given.
        meant: Our name for it, if it is another program's word for a setting.
    """
    if name in OPTION_WORDS:
        option = OPTION_WORDS[name]
        return f"it is an option of its own: --{option.replace('_', '-')} (in Python: {option}=...)"
    for candidate in (name, meant):
        if candidate and (home := home_of(candidate)):
            return home if candidate == name else f"{candidate!r} is meant? {home}"
    return ""


def _renamed_setting(old: str, known: list[str]) -> str:
    """Return what to say of a setting or an option whose name was changed."""
    new = new_name(old, known) or NAMES[old][0]
    if new in known:
        return f"it is called {new!r} now"
    if new in (*OPTIONS, "startup_kit"):
        return f"it is an option, and is called --{new.replace('_', '-')} now (in Python: {new}=...)"
    home = home_of(new)
    return f"it is called {new!r} now" + (f"; {home}" if home else "")
