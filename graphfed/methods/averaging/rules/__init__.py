"""The rules by which the clients' training becomes the next model, a file each, and those of plug-ins."""

from collections.abc import Iterator, Mapping

from graphfed.methods.averaging.rules import admm, fedadam, fedavg, fedprox, fedsgd, scaffold
from graphfed.methods.averaging.rules.base import Rule
from graphfed.plugins import Registry

_OWN = (fedavg.RULE, fedprox.RULE, fedadam.RULE, scaffold.RULE, fedsgd.RULE, admm.RULE)
RULES: Registry[Rule] = Registry(
    "rule", "graphfed.rules", "RULE", {rule.name: rule for rule in _OWN}, lambda: Rule
)


class _SettingsByRule(Mapping[str, type]):
    """The class of the settings of every rule, by the rule's name."""

    # A view of the registry and not a dictionary: plug-ins may add rules after this module is imported.

    def __getitem__(self, name: str) -> type:
        return RULES[name].settings

    def __iter__(self) -> Iterator[str]:
        return iter(RULES)

    def __len__(self) -> int:
        return len(RULES)


#: What a method with the setting `rule` has in its field `of_rule` (`Method.parts`).
RULE_SETTINGS = _SettingsByRule()
