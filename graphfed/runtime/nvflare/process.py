"""FLARE's long-lived process of a kit: started as a child, and ended with everything that it started."""

import os
import subprocess
import sys
from pathlib import Path

from graphfed.errors import InputError
from graphfed.runtime.nvflare import need_nvflare
from graphfed.runtime.nvflare.kits import ORGANISATION, load_kit

__all__ = ["run_parent"]


def run_parent(kit: Path, *, data: Path | None = None) -> int:
    """Run the process of a server's or a site's kit until it ends; its exit code."""
    need_nvflare()
    loaded = load_kit(kit)
    if loaded.kind == "coordinator":
        raise InputError(
            f"{kit} is the coordinator's kit, which has no process; start the server's or a site's"
        )
    environment = dict(os.environ)
    environment["GRAPHFED_SITE_KIT"] = str(loaded.folder)
    if data is not None:
        environment["GRAPHFED_SITE_DATA"] = str(data.resolve())
    app = "server" if loaded.kind == "server" else "client"
    command = [
        sys.executable, "-u", "-m", f"nvflare.private.fed.app.{app}.{app}_train",
        "-m", str(loaded.folder), "-s", f"fed_{app}.json",
        "--set", "secure_train=true", f"uid={loaded.name}", f"org={ORGANISATION}", "config_folder=config",
    ]  # fmt: skip
    (loaded.folder / "transfer").mkdir(exist_ok=True)
    process = subprocess.Popen(command, env=environment, start_new_session=True)
    return process.wait()
