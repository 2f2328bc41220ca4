"""What a program of a deployment knows of the place it runs at, beside its federation."""

import json
import os
from dataclasses import dataclass, field
from pathlib import Path

from graphfed.runtime.interrupts import Wish

__all__ = ["Place", "this_place"]

#: Environment of a place's processes: what its operator has said, as JSON.
PLACE = "GRAPHFED_SITE"
_LISTS = ("allow", "methods", "forbid")


@dataclass(frozen=True)
class Place:
    """The server's or a site's own: what comes from its operator, never from a message.

    name: as FLARE knows it; kit: its folder; data: its file, None at the server; threads, device: to compute
    with; allow: modules of other people's methods and programs that run here; methods: those it takes part
    in, () for all; forbid: settings, as key=value, with which it takes part in no run. Of a run: clock,
    seconds that this place's clock is ahead of the server's, and wish, somebody's wish to stop."""

    name: str
    kit: Path
    data: Path | None = None
    threads: int = 1
    device: str = "cpu"
    allow: tuple[str, ...] = ()
    methods: tuple[str, ...] = ()
    forbid: tuple[str, ...] = ()
    clock: float = 0.0
    wish: Wish = field(default_factory=Wish)

    @property
    def runs(self) -> Path:
        """Where this place keeps its folders of runs."""
        return self.kit / "runs"

    def to_environment(self) -> dict[str, str]:
        """What `this_place` reads; the kit's folder also by itself, for FLARE's own settings."""
        told = {
            "name": self.name,
            "kit": str(self.kit),
            "data": None if self.data is None else str(self.data.resolve()),
            "threads": self.threads,
            "device": self.device,
            **{key: list(getattr(self, key)) for key in _LISTS},
        }
        return {PLACE: json.dumps(told), "GRAPHFED_SITE_KIT": str(self.kit)}


def this_place() -> Place:
    """The place that this process of a run belongs to."""
    told = json.loads(os.environ[PLACE])
    data = None if told["data"] is None else Path(told["data"])
    return Place(told["name"], Path(told["kit"]), data, told["threads"], told["device"], tuple(told["allow"]))
