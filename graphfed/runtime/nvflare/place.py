"""The settings of one participant, which a program of a deployment gets in addition to its federation."""

import json
import os
from dataclasses import dataclass, field, fields
from pathlib import Path

from graphfed.runtime.interrupts import StopRequest

#: The environment variable with the settings of the operator, as JSON.
PLACE = "GRAPHFED_SITE"
#: Fields of `Place` that belong to one run. They are set when it starts; all others come from the operator.
PER_RUN = ("clock", "request", "stop_request")


@dataclass(frozen=True)
class Place:
    """The settings of the server or of a site. They come from its operator, never from a message.

    Attributes:
        name: The name of the participant in FLARE.
        startup_kit: The folder of its startup kit.
        data: The description of its data; None if it has none.
        threads: The number of threads of a run.
        device: The torch device of a run.
        allow: Modules with methods and programs that may run here.
        methods: The only methods that may run here; () for all.
        forbid: Settings, as key=value, that are refused.
        memory: The bytes that a run may allocate; 0 for half of what is available when it starts.
        rehearsal: Whether all participants are on one machine for a rehearsal, in which runs are accepted
            that hide nothing.
        clock: In a run, seconds by which the clock of this participant is ahead of the server's.
        request: In a run, the signed request (`signed`).
        stop_request: In a run, the stop request.
    """

    name: str
    startup_kit: Path
    data: Path | None = None
    threads: int = 1
    device: str = "cpu"
    allow: tuple[str, ...] = ()
    methods: tuple[str, ...] = ()
    forbid: tuple[str, ...] = ()
    memory: int = 0
    rehearsal: bool = False
    clock: float = 0.0
    request: str = ""
    stop_request: StopRequest = field(default_factory=StopRequest)

    @property
    def runs(self) -> Path:
        """The folder of this participant's runs."""
        return self.startup_kit / "runs"

    def to_environment(self) -> dict[str, str]:
        """Return the environment variables from which `this_place` reads the settings of the operator.

        They are all fields except `PER_RUN` as one JSON object, and the folder of the startup kit, which
        FLARE's settings name.
        """
        rules = {field.name: getattr(self, field.name) for field in fields(self) if field.name not in PER_RUN}
        if self.data is not None:
            rules["data"] = self.data.resolve()
        return {PLACE: json.dumps(rules, default=str), "GRAPHFED_SITE_KIT": str(self.startup_kit)}


def this_place() -> Place:
    """Read the settings of the participant to which this process belongs.

    TypeError for a field that `Place` does not have: no rule is ignored silently.
    """
    rules = json.loads(os.environ[PLACE])
    rules |= {key: tuple(value) for key, value in rules.items() if isinstance(value, list)}
    rules |= {key: Path(rules[key]) for key in ("startup_kit", "data") if rules[key] is not None}
    return Place(**rules)
