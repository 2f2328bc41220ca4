"""What a participant allows the others to do, as the files in `local/` of its startup kit express it to
FLARE.

A site must be safe from a coordinator and from a server that it does not trust with its machine. These layers
protect it, from the outside to the inside:

- TLS with certificates of one authority on both sides (`tls`): other connections are refused;
- `authorization.json`: the role of the coordinator may start, watch and end runs, and nothing else. FLARE
  learns from the server who makes a request, so this protects from a coordinator only;
- `child`: a site's process has no handlers for shell commands, logs and the like, for any caller;
- FLARE runs a job only if it is signed with a certificate of the authority;
- `JobValidator`: a job consists of a few JSON files. Code, and anything that would read the site's
  environment into the settings of the job, is refused before anything is built;
- `ALLOWED_CLASSES`: the classes that a job may name, which FLARE enforces in the process of the job.
"""

import json
from pathlib import Path

from graphfed.files import JsonObject, parse_json, read_regular

#: FLARE's role of the coordinator.
ROLE = "lead"
#: FLARE's commands that this role may use. Commands that read files (cat, ls, grep, head, tail, pwd),
#: configure logs, or shut down or restart a site are not among them; neither is sending code with a job
#: (byoc).
RIGHTS = (
    "submit_job", "list_jobs", "get_job_meta", "list_job", "check_status", "app_command", "abort_job",
    "delete_job", "download_job", "download_job_components", "remove_client",
)  # fmt: skip
#: The classes that a job may name: ours, and those that carry FLARE's calls between sites. No class of
#: FLARE that could run a command or load a file is among them.
ALLOWED_CLASSES = (
    "graphfed.runtime.nvflare.apps.ServerApp",
    "graphfed.runtime.nvflare.apps.SiteApp",
    "nvflare.collab.runtime.controller.CollabController",
    "nvflare.collab.runtime.executor.CollabExecutor",
)
#: Seconds between two signs of life of a site (FLARE accepts even numbers only), and seconds without one
#: after which the server removes the site from its list.
HEARTBEAT = 2
SILENCE = 10


def authorization() -> JsonObject:
    """Return the content of authorization.json, in which everything that is not named is denied."""
    rights = dict.fromkeys(RIGHTS, "any") | {"byoc": "none"}
    return {"format_version": "1.0", "permissions": {ROLE: rights}}


def resources(kind: str, num_clients: int) -> JsonObject:
    """Return the content of resources.json for the server of a number of clients, or for a site."""
    common: JsonObject = {
        "format_version": 2,
        "class_list_enforcement_mode": "enforce",
        "class_allow_list": list(ALLOWED_CLASSES),
        "app_validator": {"path": "graphfed.runtime.nvflare.components.JobValidator"},
    }
    launcher = {
        "id": "process_launcher",
        "path": f"graphfed.runtime.nvflare.components.{kind.title()}Launcher",
    }
    events = {"id": "events", "path": "graphfed.runtime.nvflare.components.Events"}
    if kind == "site":
        passthrough = "nvflare.app_common.resource_{0}s.passthrough_resource_{0}.PassthroughResource{1}"
        return common | {
            "allow_log_streaming": False,
            "client": {"client_register_interval": 1.0, "maint_msg_timeout": 5.0},
            "components": [
                {"id": "resource_manager", "path": passthrough.format("manager", "Manager")},
                {"id": "resource_consumer", "path": passthrough.format("consumer", "Consumer")},
                launcher,
                events,
            ],
        }
    storage = "nvflare.app_common.storages.filesystem_storage.FilesystemStorage"
    # FLARE replaces the variable when it starts, because the startup kit may be in any folder.
    startup_kit = "{$GRAPHFED_SITE_KIT}"
    return common | {
        "servers": [
            {
                "admin_storage": "transfer",
                "max_num_clients": num_clients,
                "heart_beat_timeout": SILENCE,
                "admin_timeout": 5.0,
                "download_job_url": "",
            }
        ],
        "snapshot_persistor": {
            "path": "nvflare.app_common.state_persistors.storage_state_persistor.StorageStatePersistor",
            "args": {
                "uri_root": "/",
                "storage": {
                    "path": storage,
                    "args": {"root_dir": f"{startup_kit}/snapshots", "uri_root": "/"},
                },
            },
        },
        "components": [
            {
                "id": "job_scheduler",
                "path": "nvflare.app_common.job_schedulers.job_scheduler.DefaultJobScheduler",
                "args": {"max_jobs": 1, "min_schedule_interval": 1.0, "max_schedule_interval": 5.0},
            },
            {
                "id": "job_manager",
                "path": "nvflare.apis.impl.job_def_manager.SimpleJobDefManager",
                "args": {"uri_root": f"{startup_kit}/jobs", "job_store_id": "job_store"},
            },
            {"id": "job_store", "path": storage},
            launcher,
            events,
        ],
    }


def log_config() -> JsonObject:
    """Return the content of log_config.json: FLARE logs into log.txt, of the kit and of each run."""
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {
            "line": {
                "()": "nvflare.fuel.utils.log_utils.BaseFormatter",
                "fmt": "%(asctime)s - %(name)s - %(levelname)s - %(fl_ctx)s - %(message)s",
            }
        },
        "handlers": {
            "file": {
                "class": "logging.handlers.RotatingFileHandler",
                "level": "INFO",
                "formatter": "line",
                "filename": "log.txt",
                "maxBytes": 20_000_000,
                "backupCount": 2,
            }
        },
        "loggers": {"root": {"level": "INFO", "handlers": ["file"]}},
    }


#: Additional files in each folder of a job: FLARE's signature, and the certificate of the signer.
_SIGNATURE = (".__nvfl_sig.json", ".__nvfl_submitter.crt")


def job_error(folder: Path) -> str:
    """Return why a job is refused; "" if it is not."""
    for path in sorted(folder.rglob("*")):
        inside = path.relative_to(folder)
        if path.is_symlink() or not (path.is_dir() or path.is_file()):
            return f"{inside} is not a regular file"
        if path.is_dir() or path.name in _SIGNATURE:
            continue
        if path.suffix != ".json" or inside.parts[0] != "config":
            return f"{inside} is not a configuration of a graphfed run; only JSON files in config are allowed"
        try:
            content = parse_json(read_regular(path))
        except (OSError, ValueError) as error:
            return f"{inside} cannot be read: {error}"
        if "$" in json.dumps(content, ensure_ascii=False):
            return f"{inside} asks for a variable or a file of the site (a dollar sign)"
    return ""
