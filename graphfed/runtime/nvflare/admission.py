"""Who may connect to the server under a site's name: one process at a time.

FLARE keeps one connection for each name, and closes the older one when another comes. So two copies of one
kit would throw each other out in turn, and every run with them. Here the server keeps the connection that it
has for as long as it is alive, and says to the other one that it is refused, in the reply of FLARE's
handshake.
"""

import threading
import time
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING

from graphfed.files import JsonObject
from graphfed.runtime.nvflare.rules import HEARTBEAT

if TYPE_CHECKING:
    from nvflare.fuel.f3.sfm.conn_manager import ConnManager
    from nvflare.fuel.f3.sfm.sfm_conn import SfmConnection

__all__ = ["refuse_copies"]

#: The key in the reply of a handshake that says that a connection is refused; its value tells nothing.
REFUSED = "graphfed_refused"
#: Seconds without anything from a connection after which it is taken for dead: its site may connect again.
ALIVE = 2.5 * HEARTBEAT
#: Seconds until the server closes a refused connection, so that the reply arrives first.
LINGER = 1.0


def refuse_copies(
    sites: Collection[str],
    on_refusal: Callable[[str, str, str], None],
    on_refused: Callable[[], None],
) -> None:
    """Let one connection stand for each site, from now on in this process.

    Args:
        sites: At the server the names of the project's sites; empty at a site.
        on_refusal: Called at the server with a site's name, the address of the connection that stands, and
            that of the one that is refused.
        on_refused: Called at a site whose own connection is refused.
    """
    from nvflare.fuel.f3.drivers.driver_params import DriverParams
    from nvflare.fuel.f3.sfm.conn_manager import ConnManager
    from nvflare.fuel.f3.sfm.constants import HandshakeKeys, Types

    welcome = ConnManager.update_endpoint
    name_key = HandshakeKeys.ENDPOINT_NAME

    def address(connection: "SfmConnection") -> str:
        return str(connection.conn.get_conn_properties().get(DriverParams.PEER_ADDR.value))

    def update_endpoint(self: "ConnManager", connection: "SfmConnection", data: JsonObject) -> None:
        if data.pop(REFUSED, None) is not None:
            connection.conn.close()
            on_refused()
            return
        name = data.get(name_key)
        owner = connection.conn.get_conn_properties().get(DriverParams.PEER_CN.value)
        # A connection with another party's certificate is refused by FLARE itself.
        standing = _alive(self, connection, name) if name in sites and owner == name else None
        if standing is None:
            welcome(self, connection, data)
            return
        on_refusal(str(name), address(standing), address(connection))
        connection.send_dict(Types.READY, 1, {name_key: self.local_endpoint.name, REFUSED: True})
        closing = threading.Timer(LINGER, connection.conn.close)
        closing.daemon = True
        closing.start()

    ConnManager.update_endpoint = update_endpoint


def _alive(manager: "ConnManager", connection: "SfmConnection", name: str) -> "SfmConnection | None":
    """Return another connection of this name from which something came just now, or None."""
    endpoint = manager.sfm_endpoints.get(name)
    for other in () if endpoint is None else list(endpoint.connections):
        if other is not connection and time.time() - other.last_activity < ALIVE:
            return other
    return None
