"""The rules by which the clients' training becomes the next model, a file each."""

from collections.abc import Mapping

from graphfed.methods.averaging.rules import admm, fedadam, fedavg, fedprox, fedsgd, scaffold
from graphfed.methods.averaging.rules.base import Rule

RULES: Mapping[str, Rule] = {
    rule.name: rule
    for rule in (fedavg.RULE, fedprox.RULE, fedadam.RULE, scaffold.RULE, fedsgd.RULE, admm.RULE)
}
