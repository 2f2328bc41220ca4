"""Asks a running server, as the coordinator, which sites are connected and which runs are in progress."""

import contextlib
import dataclasses
import logging
import os
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from graphfed.errors import GraphfedError, InputError
from graphfed.files import JsonObject
from graphfed.runtime.nvflare import need_nvflare
from graphfed.runtime.nvflare.startup_kits import StartupKit, check_certificate, load_startup_kit
from graphfed.runtime.nvflare.tls import refusal

if TYPE_CHECKING:
    from nvflare.fuel.flare_api.flare_api import Session

#: Seconds that an answer of the server may take.
TIMEOUT = 5.0


@dataclasses.dataclass(frozen=True)
class Status:
    """The state of a server. Times are in UTC.

    Attributes:
        sites: The last sign of life of every site of the project; None for a site that is not connected.
        runs: The ids of the runs in progress.
    """

    address: str
    started: datetime
    sites: dict[str, datetime | None]
    runs: tuple[str, ...]

    def to_json(self) -> JsonObject:
        return {
            "address": self.address,
            "started": self.started.isoformat(),
            "sites": {name: heard and heard.isoformat() for name, heard in self.sites.items()},
            "runs": list(self.runs),
        }


def status(startup_kit: Path) -> Status:
    """Ask a server for its state, with the startup kit of the coordinator.

    Raises:
        InputError: The startup kit is not that of a coordinator.
        GraphfedError: The server does not answer; the message has the reason.
    """
    loaded = load_startup_kit(startup_kit)
    with open_session(loaded) as session:
        try:
            found = session.get_system_info()
            heard = {
                client.name: datetime.fromtimestamp(client.last_connect_time, UTC)
                for client in found.client_info
            }
            return Status(
                loaded.project.address,
                datetime.fromtimestamp(found.server_info.start_time, UTC),
                {site.name: heard.get(site.name) for site in loaded.project.sites},
                tuple(str(job.job_id) for job in found.job_info),
            )
        except Exception as error:  # FLARE raises many types; the answer may have another form
            raise GraphfedError(
                f"the answer of the server at {loaded.project.address} cannot be used: {error}"
            ) from None


@contextlib.contextmanager
def open_session(startup_kit: StartupKit) -> "Iterator[Session]":
    """Open a session of nvflare's flare_api as the coordinator, without FLARE's output.

    Raises:
        InputError: The startup kit is not that of a coordinator.
        GraphfedError: The server cannot be reached, refuses the coordinator, or does not answer.
    """
    need_nvflare()
    if startup_kit.kind != "coordinator":
        raise InputError(
            f"{startup_kit.folder} is the startup kit of {startup_kit.name}; give that of the coordinator"
        )
    check_certificate(startup_kit)
    project = startup_kit.project
    refused = refusal(startup_kit.folder / "startup", project.host, project.port)
    if refused is not None:
        raise GraphfedError(
            f"the server at {project.address} cannot be reached: {refused.reason}; "
            + ("use a startup kit of the same project" if refused.final else "start it first")
        )
    from nvflare.fuel.flare_api.flare_api import new_secure_session

    # Exceptions report what fails, so FLARE's log is not shown.
    logging.getLogger("nvflare").setLevel(logging.CRITICAL)
    with open(os.devnull, "w") as nowhere:
        try:
            # FLARE prints the traceback of a refusal.
            with contextlib.redirect_stdout(nowhere), contextlib.redirect_stderr(nowhere):
                session = new_secure_session(
                    project.coordinator, str(startup_kit.folder), timeout=TIMEOUT, command_timeout=TIMEOUT,
                    auto_login_max_tries=1,
                )  # fmt: skip
        except Exception as error:  # many types; a certificate of another participant has its own
            raise GraphfedError(
                f"the server at {project.address} refuses the coordinator: {error}; use the coordinator's "
                "startup kit as 'graphfed site provision' made it"
            ) from None
        try:
            yield session
        finally:
            with contextlib.redirect_stdout(nowhere):
                session.close()
