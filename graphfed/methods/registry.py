"""The one table of methods. Adding a method is one file and one row."""

import importlib
from typing import TYPE_CHECKING

from graphfed.errors import InputError, did_you_mean

if TYPE_CHECKING:  # the names are read without torch, by the completion of the command line
    from graphfed.methods.base import Method

__all__ = ["ALIASES", "METHODS", "canonical_name", "get_method", "register"]

#: name -> the module whose METHOD it is
METHODS: dict[str, str] = {
    "central": "graphfed.methods.baselines.central",
    "own_features": "graphfed.methods.baselines.own_features",
    "isolated": "graphfed.methods.baselines.isolated",
    "fedavg": "graphfed.methods.baselines.fedavg",
    "fedprox": "graphfed.methods.baselines.fedprox",
    "fedadam": "graphfed.methods.baselines.fedadam",
    "fedgcn": "graphfed.methods.fedgcn.method",
    "distgat": "graphfed.methods.baselines.distgat",
    "fedgat": "graphfed.methods.fedgat.method",
    "fedgat_ldp": "graphfed.methods.fedgat.ldp",
    "fedgraph": "graphfed.methods.fedgraph.method",
    "sapgnn": "graphfed.methods.sapgnn.method",
    "ppgnn": "graphfed.methods.sapgnn.ppgnn",
    "lumos": "graphfed.methods.lumos.method",
    "lpgnn": "graphfed.methods.lumos.lpgnn",
    "naive_fedgnn": "graphfed.methods.lumos.naive_fedgnn",
    "cnfgnn": "graphfed.methods.cnfgnn.method",
    "gru_central": "graphfed.methods.baselines.gru_central",
    "gru_local": "graphfed.methods.baselines.gru_local",
    "gru_fedavg": "graphfed.methods.baselines.gru_fedavg",
    "gru_fmtl": "graphfed.methods.baselines.gru_fmtl",
    "last_value": "graphfed.methods.baselines.last_value",
    "historical_average": "graphfed.methods.baselines.historical_average",
}

ALIASES: dict[str, str] = {"local": "isolated", "sp": "isolated"}


def canonical_name(name: str) -> str:
    """Return a method's own name for its name in any case, or for an alias; a name that is unknown in lower
    case."""
    small = name if name in METHODS else name.lower()
    return ALIASES.get(small, small)


def get_method(name: str) -> "Method":
    """The method called `name` (or an alias, in any case); InputError with the nearest name when there is
    none."""
    small = name.lower()
    canonical = canonical_name(name)
    if canonical not in METHODS:
        if small.endswith((".yaml", ".yml")):
            raise InputError(
                f"{_brief(name)} is a file and no method; give it as --config FILE or --data FILE"
            )
        raise InputError(f"unknown method {_brief(name)}; {did_you_mean(small[:60], [*METHODS, *ALIASES])}")
    method: Method = importlib.import_module(METHODS[canonical]).METHOD
    return method


def register(name: str, module: str) -> None:
    """Add a method from another package: `module` is imported when the method is first used."""
    if METHODS.get(name, module) != module:
        raise InputError(f"method {name!r} is already registered from {METHODS[name]}; choose another name")
    METHODS[name] = module


def _brief(name: str) -> str:
    return repr(name if len(name) <= 60 else f"{name[:57]}...")
