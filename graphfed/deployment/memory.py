"""The memory that a participant gives a run, against what the run asks for.

The coordinator chooses the sizes of a model, and a site's operator the memory of a run
(`graphfed site start --memory`). A run that clearly needs more is refused before anything of its model is
allocated. The need is the larger of two lower bounds: the weights with their gradients and the values of the
optimiser, whose number follows from the settings, and a part of the estimate for the site's data
(`methods.common.memory`), which counts activations and edges, too. What no bound foresees ends at the limit
of the process (`memory.limited_memory`).
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

from graphfed.errors import InputError
from graphfed.memory import allowed_memory
from graphfed.methods.base import Method, Task
from graphfed.methods.common.memory import ACCURACY, weight_bytes
from graphfed.methods.config import CommonSettings
from graphfed.runs.progress import human_bytes

if TYPE_CHECKING:
    from graphfed.runtime.nvflare.place import Place

__all__ = ["check_memory"]


def check_memory(
    place: "Place", method: Method, config: CommonSettings, task: Task, estimate: Callable[[], int]
) -> None:
    """Refuse a run that needs more memory than the operator of this participant allows.

    Args:
        place: What the operator has set.
        method: The method.
        config: Its settings.
        task: The task.
        estimate: () -> the estimated memory of the run on the data of this participant; asked only if the
            weights fit.

    Raises:
        InputError: It needs more; the message names the participant, the need, the limit and what to do.
    """
    allowed = allowed_memory(place.memory)
    if allowed is None:
        return
    needed = weight_bytes(config, task.num_features, task.num_classes)
    if needed <= allowed:
        needed = int(estimate() / ACCURACY)
    if needed > allowed:
        raise InputError(
            f"{place.name} refuses the run: {method.name} with these settings needs at least "
            f"{human_bytes(needed)} of memory there, and {human_bytes(allowed)} are allowed; ask for a "
            "smaller model, as with a smaller hidden or fewer layers, or let the operator give more "
            "(graphfed site start --memory)"
        )
