"""The memory that a participant gives a run, against what the run asks for.

The coordinator chooses the sizes of a model, and a site's operator the memory of a run
(`graphfed site start --memory`). A run that needs more is refused before anything of its model is allocated.
The need is the larger of two lower bounds, which follow from the settings: the weights with their gradients
and the values of the optimiser, and one layer's hidden values of the site's data. What they do not foresee
ends at the limit of the process (`memory.limited_memory`).
"""

from typing import TYPE_CHECKING, Any

from graphfed.errors import InputError
from graphfed.memory import allowed_memory
from graphfed.methods.base import Method, Task
from graphfed.methods.common.sizes import hidden_bytes, weight_bytes
from graphfed.runs.progress import human_bytes

if TYPE_CHECKING:
    from graphfed.runtime.nvflare.place import Place


def check_memory(place: "Place", method: Method, config: Any, task: Task, rows: int) -> None:
    """Raise InputError if a run needs more memory than the operator of this participant allows.

    `rows` of this participant's data are computed at once; 0 at the server.
    """
    allowed = allowed_memory(place.memory)
    if allowed is None:
        return
    # The larger one and not the sum, which need not be allocated at any one time.
    needed = max(weight_bytes(config, task.num_features, task.num_classes), hidden_bytes(config, rows))
    if needed > allowed:
        raise InputError(
            f"{place.name} refuses the run: {method.name} with these settings needs at least "
            f"{human_bytes(needed)} of memory there, and {human_bytes(allowed)} are allowed; ask for a "
            "smaller model, as with a smaller hidden or fewer layers, or let the operator give more "
            "(graphfed site start --memory)"
        )
