"""The arguments of the programs of a deployment (`participant`), which come from the coordinator."""

from typing import Annotated, Literal

from pydantic import Field

from graphfed.errors import InputError
from graphfed.files import JsonObject
from graphfed.runs.settings import MAX_SEED
from graphfed.runtime.nvflare.project import MAX_SECONDS
from graphfed.runtime.nvflare.requests import Asked, check_name, checked

__all__ = ["Arguments", "check_arguments"]

Text = Annotated[str, Field(max_length=200)]
Seconds = Annotated[float, Field(ge=0, le=MAX_SECONDS)]


class PluginArguments(Asked):
    """The plug-in of a method at the coordinator. Every participant runs its own copy of it."""

    module: Annotated[str, Field(max_length=4000)] | None = None
    distribution: Text | None = None
    version: Text


class Arguments(Asked):
    """The arguments of `participant.run_place`, and of `predict_place` with a stamp.

    Attributes:
        run: The name of the run.
        method: The method.
        plugin: The plug-in of the method; None for methods of graphfed.
        config: The settings, which the method checks.
        dtype: The type of floating-point numbers.
        split: The split that every site makes of its data.
        split_seed: Its seed.
        sites: The sites.
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
        content: The arguments.
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
