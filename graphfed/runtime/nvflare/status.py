"""Who is there: what the coordinator's kit can ask of a running server."""

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

__all__ = ["Status", "open_session", "status"]

#: Seconds for one answer of the server.
TIMEOUT = 5.0


@dataclasses.dataclass(frozen=True)
class Status:
    """A server that answers. started: when it was. sites: of every site of the project, when it last gave a
    sign of life; None where it is not connected. runs: the ids of those that go on. Times are in UTC."""

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
    """Ask the server of a coordinator's kit. GraphfedError where it does not answer, with the reason."""
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
        except Exception as error:  # FLARE's own, of many kinds, or an answer of another form
            raise GraphfedError(
                f"the server at {loaded.project.address} does not answer as it should: {error}"
            ) from None


@contextlib.contextmanager
def open_session(startup_kit: StartupKit) -> "Iterator[Session]":
    """A session of nvflare's flare_api as the coordinator, quiet.

    InputError where the kit is not the coordinator's; GraphfedError where the server cannot be reached, or
    refuses, or does not answer."""
    need_nvflare()
    if startup_kit.kind != "coordinator":
        raise InputError(
            f"{startup_kit.folder} is the kit of {startup_kit.name}; this takes the coordinator's"
        )
    check_certificate(startup_kit)
    project = startup_kit.project
    refused = refusal(startup_kit.folder / "startup", project.host, project.port)
    if refused is not None:
        raise GraphfedError(
            f"the server at {project.address} cannot be reached: {refused.reason}; "
            + ("take a kit of the project that it serves" if refused.final else "is it started?")
        )
    from nvflare.fuel.flare_api.flare_api import new_secure_session

    # What goes wrong is said by the exceptions.
    logging.getLogger("nvflare").setLevel(logging.CRITICAL)
    with open(os.devnull, "w") as nowhere:
        try:
            # FLARE prints the traceback of a refusal itself.
            with contextlib.redirect_stdout(nowhere), contextlib.redirect_stderr(nowhere):
                session = new_secure_session(
                    project.coordinator, str(startup_kit.folder), timeout=TIMEOUT, command_timeout=TIMEOUT,
                    auto_login_max_tries=1,
                )  # fmt: skip
        except Exception as error:  # of many kinds: a certificate that is not the coordinator's has its own
            raise GraphfedError(
                f"the server at {project.address} does not let the coordinator in: {error}; take the "
                "coordinator's kit as 'graphfed site provision' made it"
            ) from None
        try:
            yield session
        finally:
            with contextlib.redirect_stdout(nowhere):
                session.close()
