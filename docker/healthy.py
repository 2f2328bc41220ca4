"""Whether a container's place is up: exit 0 where the server listens at its port, a site is connected to it.

    python healthy.py KIT

It looks at this container's own connections: a connection of its own would stand in the server's log.
"""

import json
import sys
from pathlib import Path

import psutil


def healthy(startup_kit: Path) -> bool:
    """Whether the kit's own process has the connection that it must have."""
    told = json.loads((startup_kit / "kit.json").read_text())
    port = told["project"]["server"]["port"]
    connections = psutil.net_connections(kind="tcp")
    if told["kind"] == "server":
        return any(c.status == psutil.CONN_LISTEN and c.laddr.port == port for c in connections)
    return any(c.status == psutil.CONN_ESTABLISHED and c.raddr.port == port for c in connections)


if __name__ == "__main__":
    sys.exit(not healthy(Path(sys.argv[1])))
