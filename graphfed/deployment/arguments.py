"""The arguments of the programs of a deployment (`participant`), which come from the coordinator, and what
no participant runs whoever asks for it.
"""

import dataclasses
from collections.abc import Mapping
from typing import Annotated, Any, Literal, get_args

from pydantic import Field

from graphfed.errors import InputError, shown
from graphfed.files import JsonObject
from graphfed.methods.averaging.rules import RULE_SETTINGS, RULES
from graphfed.methods.base import Method
from graphfed.methods.registry import METHODS
from graphfed.methods.settings import value
from graphfed.runtime.nvflare.project import MAX_SECONDS
from graphfed.runtime.nvflare.requests import Asked, check_name, checked
from graphfed.tasks.run_options import MAX_SEED

Text = Annotated[str, Field(max_length=200)]
Seconds = Annotated[float, Field(ge=0, le=MAX_SECONDS)]


class PluginArguments(Asked):
    """The plug-in of a method at the coordinator. Every participant runs its own copy of it."""

    module: Annotated[str, Field(max_length=4000)] | None = None
    distribution: Text | None = None
    version: Text
    sha256: Annotated[str, Field(pattern=r"^([0-9a-f]{64})?$")]


class Arguments(Asked):
    """The arguments of `participant.run_place`, and of `predict_place` with a stamp.

    Attributes:
        plugin: The plug-in of the method; None for methods of graphfed.
        split: The split that every site makes of its data.
        roster: The names of all clients.
        checkpoint_every: Seconds between checkpoints; 0 for every round.
        wait: Seconds until the process of an earlier attempt has left the folder of the run.
        rehearsal: Whether every participant also saves its part of the outcome for the caller.
        stamp: With which the names of new files of predictions end.
    """

    run: str
    method: Text
    plugin: PluginArguments | None
    config: JsonObject
    dtype: Literal["float32", "float64"]
    split: Text
    split_seed: Annotated[int, Field(ge=0, le=MAX_SEED)]
    sites: list[str]
    roster: list[Text]
    checkpoint_every: Seconds
    wait: Seconds
    rehearsal: bool
    stamp: str | None = None


def check_arguments(content: JsonObject, num_clients: int) -> None:
    """Raise InputError unless the arguments of a program can be used, before anything is done with them."""
    arguments = checked(content, Arguments, "the arguments of a run")
    check_name(arguments.run, "the run")
    if arguments.stamp is not None:
        check_name(arguments.stamp, "the files of predictions")
    if len(arguments.roster) != num_clients:
        raise InputError(
            f"the arguments of a run name {len(arguments.roster)} clients, and it has {num_clients}; install "
            "the same version of graphfed at all participants"
        )


def check_deployable(method: Method, config: Any, split: str) -> None:
    """Raise InputError for what hides nothing from real participants, and what no participant of a deployment
    can do.

    The coordinator's program and every participant that is not in a rehearsal check this.
    """
    if split.partition(":")[0].lower() == "inductive":
        raise InputError(
            f"split {shown(split)} sorts all sensors by longitude, which no participant of a deployment can; "
            "use a split in time, as in 'time:0.7,0.1,0.2'"
        )
    if method.pooled:
        raise InputError(
            f"{method.name} needs the data of all clients in one place; choose another method for a "
            "deployment"
        )
    for leaf in method.tree.leaves:
        if value(config, leaf.name) == "simulated":
            # The choices of the setting that do hide something.
            others = [choice for choice in get_args(leaf.field.annotation) if choice != "simulated"]
            raise InputError(
                f"{leaf.name}=simulated hides nothing from real participants; choose {' or '.join(others)}, "
                f"as in --set {leaf.name}={others[0]}"
            )
    if value(config, "noise_seed") is not None:
        raise InputError(
            "noise_seed hides nothing from real participants: anybody who knows it can remove the noise; "
            "leave it out, and the noise comes from the entropy of each machine"
        )


def check_rule(method: Method, given: Mapping[str, Any]) -> None:
    """Raise InputError if the rule is of a plug-in in another module than the method's, and import nothing
    of it.
    """
    offered = method.offers.get("rule", ())
    # A method with one rule has no setting `rule`.
    rule = offered[0] if len(offered) == 1 else given.get("rule", method.defaults.get("rule", ""))
    if not isinstance(rule, str):
        raise InputError(f"rule={shown(rule)} cannot be used: expected the name of a rule")
    module = RULES.module(rule)
    if module not in ("", METHODS.module(method.name)):
        raise InputError(
            f"rule={shown(rule)} of {RULES.plugin(rule)} cannot be used with {method.name} in a deployment: "
            f"a rule of a plug-in is deployed as a method of the same module; write in {module}: METHOD = "
            f"dataclasses.replace(gm.FEDAVG, name=..., offers={{'rule': ({rule!r},)}})"
        )


def without_other_rules(method: Method) -> Method:
    """Return a method that has no rules of plug-ins in other modules."""
    # Listing the settings of a method imports the rules that it can choose.
    modules = ("", METHODS.module(method.name))
    known = {name: RULE_SETTINGS[name] for name in RULES if RULES.module(name) in modules}
    parts = {field: known if part is RULE_SETTINGS else part for field, part in method.parts.items()}
    return dataclasses.replace(method, parts=parts)
