"""The arguments of the programs of a deployment (`participant`), which come from the coordinator, and what
no participant runs whoever asks for it.
"""

from typing import Annotated, Any, Literal, get_args

from pydantic import Field

from graphfed.errors import InputError, shown
from graphfed.files import JsonObject
from graphfed.methods.base import Method
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
    sha256: Annotated[str, Field(pattern=r"^([0-9a-f]{64})?$")] = ""


class Arguments(Asked):
    """The arguments of `participant.run_place`, and of `predict_place` with a stamp.

    Attributes:
        plugin: The plug-in of the method; None for methods of graphfed.
        config: The settings, which the method checks.
        dtype: The type of floating-point numbers.
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
    """Check the arguments of a program before anything is done with them.

    Args:
        num_clients: K, the clients of the run.

    Raises:
        InputError: They cannot be used; the message names the first wrong field.
    """
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
    """Refuse what hides nothing from real participants, and what no participant of a deployment can do.

    The coordinator's program and every participant that is not in a rehearsal check this.

    Args:
        split: The split that every site makes of its data.

    Raises:
        InputError: The run cannot be deployed; the message says what to choose.
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
