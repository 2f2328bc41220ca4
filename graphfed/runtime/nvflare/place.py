"""What a program of a deployment knows of the place it runs at, beside its federation."""

import json
import os
from dataclasses import dataclass, field, fields
from pathlib import Path

from graphfed.runtime.interrupts import StopRequest

__all__ = ["PER_RUN", "Place", "this_place"]

#: Environment of a place's processes: what its operator has said, as JSON.
PLACE = "GRAPHFED_SITE"
#: Fields of `Place` that belong to one run. They are set when it starts; all others come from the operator.
PER_RUN = ("clock", "stop_request")


@dataclass(frozen=True)
class Place:
    """The server's or a site's own: what comes from its operator, never from a message.

    name: as FLARE knows it; kit: its folder; data: its file, None at the server; threads, device: to compute
    with; allow: modules of other people's methods and programs that run here; methods: those it takes part
    in, () for all; forbid: settings, as key=value, with which it takes part in no run. Of a run: clock,
    seconds that this place's clock is ahead of the server's, and stop_request, somebody's stop_request to
    stop."""

    name: str
    startup_kit: Path
    data: Path | None = None
    threads: int = 1
    device: str = "cpu"
    allow: tuple[str, ...] = ()
    methods: tuple[str, ...] = ()
    forbid: tuple[str, ...] = ()
    clock: float = 0.0
    stop_request: StopRequest = field(default_factory=StopRequest)

    @property
    def runs(self) -> Path:
        """Where this place keeps its folders of runs."""
        return self.startup_kit / "runs"

    def to_environment(self) -> dict[str, str]:
        """Return the environment variables from which `this_place` reads every rule of the operator.

        The kit's folder is also a variable of its own, for FLARE's settings.

        Returns:
            Variables by name: all fields except `PER_RUN` as one JSON object, and the kit's folder.
        """
        rules = {field.name: getattr(self, field.name) for field in fields(self) if field.name not in PER_RUN}
        if self.data is not None:
            rules["data"] = self.data.resolve()
        return {PLACE: json.dumps(rules, default=str), "GRAPHFED_SITE_KIT": str(self.startup_kit)}


def this_place() -> Place:
    """Read the place that this process of a run belongs to, with every rule of its operator.

    Returns:
        The place, with the fields of `PER_RUN` at their defaults.

    Raises:
        TypeError: the environment has a field that `Place` lacks; a rule is never dropped silently.
    """
    rules = json.loads(os.environ[PLACE])
    rules |= {key: tuple(value) for key, value in rules.items() if isinstance(value, list)}
    rules |= {key: Path(rules[key]) for key in ("startup_kit", "data") if rules[key] is not None}
    return Place(**rules)
