"""A kind of data, which several tasks may share: graphs or readings of sensors."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeAlias, TypeVar

import numpy as np
import torch

from graphfed.federation import Federation
from graphfed.federation.series import TaskData
from graphfed.files import JsonObject
from graphfed.methods.base import Method, Task
from graphfed.tasks.evaluation import Predicted

if TYPE_CHECKING:
    import pyarrow as pa


class OwnData(Protocol):
    """The data that a participant of a deployment read from its own file."""

    @property
    def clients(self) -> Sequence[int]:
        """The numbers of the participant's clients."""

    @property
    def schema(self) -> "OwnSchema":
        """The description of the data that the participant may send to others."""


class OwnSchema(Protocol):
    """The form of a participant's data, without the data."""

    def to_json(self) -> JsonObject: ...


Own = TypeVar("Own", bound=OwnData)
Part = TypeVar("Part")
OwnServer = TypeVar("OwnServer")
ServerPart = TypeVar("ServerPart")


class DataKind(ABC, Generic[Own, Part, OwnServer, ServerPart]):
    """How the data of a run gets to its workers, and how the participants of a deployment read their own.

    A site of a deployment reads its data (`Own`), from which it trains on a `Part`; in one process, a worker
    has a `Part` from the start. `OwnServer` and `ServerPart` are the same at the server.

    Attributes:
        name: "graph" or "sensors".
        default: The data set that is used if the user names none.
        server_has_data: Whether the server has data. If not, the methods named after it are not called.
    """

    name: str
    default: str
    server_has_data: bool = False

    # ---- the parts of workers ------------------------------------------------------------------------------

    @abstractmethod
    def save(self, part: Part, path: Path) -> None:
        """Write a worker's part to a file, for another process."""

    @abstractmethod
    def load(self, path: Path) -> Part: ...

    def save_server(self, part: ServerPart, path: Path) -> None:
        """Write the server's part to a file, for another process."""
        raise NotImplementedError

    def load_server(self, path: Path) -> ServerPart:
        raise NotImplementedError

    @abstractmethod
    def located(self, fed: Federation, parts: Sequence[Part], servers: Sequence[ServerPart]) -> TaskData:
        """Build the argument `data` of training from the parts of the workers and server in this process."""

    # ---- the participants of a deployment ------------------------------------------------------------------

    @abstractmethod
    def read(self, arguments: JsonObject, path: Path, site: str) -> Own:
        """Read the data of a site; InputError if the file cannot be used or is that of other clients."""

    @abstractmethod
    def agree(self, contents: Mapping[str, JsonObject], server: OwnServer) -> JsonObject:
        """Compare the schemas of all sites, in JSON by the site's name, and return their common facts.

        Raises InputError if the data of two participants does not fit together.
        """

    def expected(self, schema: JsonObject, agreed: JsonObject) -> JsonObject:
        """Return what a site with this schema expects in place of `agreed`, which the server has sent.

        Raises InputError if `agreed` has not the form of an agreement.
        """
        return self.agree({"the site": schema}, None)  # type: ignore[arg-type]

    def with_agreed(self, own: Own, agreed: JsonObject) -> Own:
        """Give a site's data the form on which all participants agree."""
        return own

    @abstractmethod
    def task(self, agreed: JsonObject) -> Task:
        """Build the task from the facts on which all participants agree."""

    @abstractmethod
    def facts(self, schema: JsonObject) -> JsonObject:
        """Select the facts on a site's data for the run's manifest."""

    @abstractmethod
    def arrays(self, own: Own) -> dict[str, np.ndarray]:
        """Return the arrays of a site's data that are hashed."""

    @abstractmethod
    def part(self, own: Own, clients: Sequence[int], task: Task, device: torch.device) -> Part:
        """Return the data that a site trains on; InputError if it belongs to other clients."""

    @abstractmethod
    def table(self, own: Own, part: Part, predicted: Predicted) -> "pa.Table":
        """Build the content of predictions.parquet at a site."""

    @abstractmethod
    def rows(self, own: Own, config: object) -> int:
        """Count the rows that a model computes at once at a site: nodes, or windows of sensors."""

    @abstractmethod
    def summarise(self, path: Path, roster: Sequence[str], name: str) -> str | None:
        """Describe a participant's file in one line for its operator; None if it is of another kind of data.

        Raises InputError if the file cannot be used.
        """

    def declared(self, own: Own, method: Method, config: object) -> dict[str, list[int]]:
        """Count the nodes of those parts of the split whose numbers the run sends to the server anyway.

        The result has the numbers at each of the site's K_h clients, [K_h] by part.
        """
        return {}

    def read_server(self, arguments: JsonObject, path: Path) -> OwnServer:
        """Read the server's data."""
        raise NotImplementedError

    def server_part(self, server: OwnServer, agreed: JsonObject) -> ServerPart:
        """Return the data that the server trains with."""
        raise NotImplementedError


#: A kind of data whose parts the caller only passes on.
AnyKind: TypeAlias = DataKind[Any, Any, Any, Any]
