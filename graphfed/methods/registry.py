"""The table of methods. Adding a method to graphfed takes one file and one row; a plug-in adds its own
(`graphfed.plugins`).
"""

from typing import TYPE_CHECKING

from graphfed.errors import InputError, did_you_mean
from graphfed.plugins import Plugin, Registry

if TYPE_CHECKING:  # the names are read without torch, by the completion of the command line
    from graphfed.methods.base import Method

#: Name -> the module that defines it as METHOD, or the module and another name.
_OWN = {
    "central": "graphfed.methods.baselines.central",
    "own_features": "graphfed.methods.baselines.own_features",
    "isolated": "graphfed.methods.baselines.isolated",
    "boosting_local": "graphfed.methods.baselines.boosting:LOCAL",
    "boosting_central": "graphfed.methods.baselines.boosting:CENTRAL",
    "fedavg": "graphfed.methods.averaging.methods:FEDAVG",
    "fedprox": "graphfed.methods.averaging.methods:FEDPROX",
    "fedadam": "graphfed.methods.averaging.methods:FEDADAM",
    "scaffold": "graphfed.methods.averaging.methods:SCAFFOLD",
    "fedpub": "graphfed.methods.baselines.fedpub",
    "fedgcn": "graphfed.methods.fedgcn.method",
    "fedsage_plus": "graphfed.methods.fedsage.method",
    "distgat": "graphfed.methods.averaging.methods:DISTGAT",
    "fedgat": "graphfed.methods.fedgat.method",
    "fedgat_ldp": "graphfed.methods.fedgat.ldp",
    "attention_sums": "graphfed.methods.attention_sums.method",
    "halo": "graphfed.methods.halo.method",
    "fedgraph": "graphfed.methods.fedgraph.method",
    "sapgnn": "graphfed.methods.sapgnn.method",
    "ppgnn": "graphfed.methods.sapgnn.ppgnn",
    "lumos": "graphfed.methods.lumos.method",
    "lpgnn": "graphfed.methods.lumos.lpgnn",
    "naive_fedgnn": "graphfed.methods.lumos.naive_fedgnn",
    "prediction_release": "graphfed.methods.prediction_release.method",
    "cnfgnn": "graphfed.methods.cnfgnn.method",
    "gru_central": "graphfed.methods.forecasters.recurrent:CENTRAL",
    "gru_local": "graphfed.methods.forecasters.recurrent:LOCAL",
    "gru_fedavg": "graphfed.methods.forecasters.recurrent:FEDAVG",
    "gru_fmtl": "graphfed.methods.forecasters.multi_task",
    "last_value": "graphfed.methods.forecasters.untrained:LAST_VALUE",
    "historical_average": "graphfed.methods.forecasters.untrained:HISTORICAL_AVERAGE",
}
ALIASES: dict[str, str] = {"local": "isolated", "sp": "isolated", "fedsage+": "fedsage_plus"}


def _method_class() -> "type[Method]":
    from graphfed.methods.base import Method

    return Method


METHODS: "Registry[Method]" = Registry(
    "method",
    "graphfed.methods",
    "METHOD",
    {name: place if ":" in place else f"{place}:METHOD" for name, place in _OWN.items()},
    _method_class,
    ALIASES,
)


def canonical_name(name: str) -> str:
    """Return a method's own name for one in any case or an alias; an unknown name in lower case."""
    small = name.lower()
    return ALIASES.get(small, small)


def get_method(name: str) -> "Method":
    """Return the method of a name in any case, or of an alias.

    Raises:
        InputError: There is no such method (the message suggests the nearest name), or it is a plug-in's that
            cannot be used.
    """
    method = METHODS.get(canonical_name(name))
    if method is None:
        # The usual mistake is a file where a name is expected; a suggestion of similar names would mislead.
        small = name.lower()
        if small.endswith((".yaml", ".yml")):
            raise InputError(
                f"{_brief(name)} is a file, not a method; pass it with --config FILE or --data FILE"
            )
        raise InputError(f"unknown method {_brief(name)}; {did_you_mean(small[:60], [*METHODS, *ALIASES])}")
    return method


def plugins_of(method: "Method", settings: object) -> list[Plugin]:
    """Return the plug-ins that a run's method and its rule come from."""
    from graphfed.methods.averaging.rules import RULES
    from graphfed.methods.settings import value

    found = (METHODS.plugin(method.name), RULES.plugin(value(settings, "rule", "")))
    return list(dict.fromkeys(plugin for plugin in found if plugin is not None))


def _brief(name: str) -> str:
    return repr(name if len(name) <= 60 else f"{name[:57]}...")
