"""Lets one process at a time connect to the server under the name of a site.

FLARE keeps one connection per name, and closes the older one when a new one comes. Two copies of one startup
kit would therefore disconnect each other again and again, and end every run. Here the server keeps the first
connection as long as it is alive, and refuses the other one in the reply of FLARE's handshake.
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

#: The key in the reply of a handshake that marks a refused connection; its value has no meaning.
REFUSED = "graphfed_refused"
#: Seconds without data after which a connection counts as dead, so that its site may connect again.
ALIVE = 2.5 * HEARTBEAT
#: Seconds until the server closes a refused connection: the reply must arrive first.
LINGER = 1.0


def refuse_copies(
    sites: Collection[str],
    on_refusal: Callable[[str, str, str], None],
    on_refused: Callable[[], None],
) -> None:
    """Accept only one connection per site, from now on in this process.

    Args:
        sites: At the server the names of the sites; empty at a site.
        on_refusal: Called at the server with the name of a site, the address of its present connection and
            the address of the refused one.
        on_refused: Called at a site whose connection is refused.
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
        # FLARE itself refuses a connection whose certificate belongs to another participant.
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
    endpoint = manager.sfm_endpoints.get(name)
    for other in () if endpoint is None else list(endpoint.connections):
        if other is not connection and time.time() - other.last_activity < ALIVE:
            return other
    return None
