"""What the author of a method imports: ``import graphfed.method as gm``.

A method is a `Method`: settings (a class marked `settings`, whose fields are the parts below and its own)
and three functions that are one program over places. A method that averages training differently is FedAvg
with another `Rule`; `FEDAVG`, `setup`, `round` and `predict` are that program, and the functions before them
its parts. CONTRIBUTING.md has a complete example, docs/plugins.md one with a rule.
"""

from pydantic import Field

from graphfed.errors import InputError
from graphfed.federation import Federation, Located
from graphfed.federation.cohort import Cohort
from graphfed.methods.averaging.methods import FEDAVG, WEIGHTS_SENT
from graphfed.methods.averaging.program import count_training, predict, round, setup, start
from graphfed.methods.averaging.rules import RULE_SETTINGS, RULES
from graphfed.methods.averaging.rules.base import Average, Rule
from graphfed.methods.averaging.settings import AveragingSettings
from graphfed.methods.base import Method, Requirements, Sent, State, StateValues, Task
from graphfed.methods.common.local_training import (
    Prepared,
    gradient_from_shared,
    initial_weights,
    own_view,
    predict_shared,
    prepare,
    prepare_own,
    train_from_shared,
)
from graphfed.methods.parts import (
    ClientOptimizer,
    Clients,
    Inputs,
    Loss,
    Network,
    Protocols,
    Run,
    Selection,
    ServerOptimizer,
    Steps,
    Sums,
    Training,
)
from graphfed.methods.settings import ChosenBy, Only, Unless, settings

__all__ = [
    "FEDAVG",
    "RULES",
    "RULE_SETTINGS",
    "WEIGHTS_SENT",
    "Average",
    "AveragingSettings",
    "ChosenBy",
    "ClientOptimizer",
    "Clients",
    "Cohort",
    "Federation",
    "Field",
    "InputError",
    "Inputs",
    "Located",
    "Loss",
    "Method",
    "Network",
    "Only",
    "Prepared",
    "Protocols",
    "Requirements",
    "Rule",
    "Run",
    "Selection",
    "Sent",
    "ServerOptimizer",
    "State",
    "StateValues",
    "Steps",
    "Sums",
    "Task",
    "Training",
    "Unless",
    "count_training",
    "gradient_from_shared",
    "initial_weights",
    "own_view",
    "predict",
    "predict_shared",
    "prepare",
    "prepare_own",
    "round",
    "settings",
    "setup",
    "start",
    "train_from_shared",
]
