"""The one table of checks. Adding a check is one file and one row."""

import importlib

from graphfed.audit.base import Check
from graphfed.errors import InputError

__all__ = ["CHECKS", "get_check", "register"]

#: name -> the module whose CHECK it is, in the order of the table on the screen
CHECKS: dict[str, str] = {
    "clear_transfers": "graphfed.audit.attacks.clear_transfers",
    "membership": "graphfed.audit.attacks.membership",
    "training_counts": "graphfed.audit.attacks.training_counts",
    "label_histogram": "graphfed.audit.attacks.label_histogram",
    "fedgcn_features": "graphfed.audit.attacks.fedgcn",
    "split_features": "graphfed.audit.attacks.sapgnn_features",
    "split_labels": "graphfed.audit.attacks.sapgnn_labels",
    "lumos_features": "graphfed.audit.attacks.lumos",
    "cnfgnn_inputs": "graphfed.audit.attacks.cnfgnn",
    "fedgat_features": "graphfed.audit.attacks.fedgat",
    "fedgat_ldp_features": "graphfed.audit.attacks.fedgat_ldp",
    "fedgraph_embeddings": "graphfed.audit.attacks.fedgraph",
}


def get_check(name: str) -> Check:
    """The check called `name`."""
    check: Check = importlib.import_module(CHECKS[name]).CHECK
    return check


def register(name: str, module: str) -> None:
    """Add a check from another package: `module` is imported when a run is audited."""
    if CHECKS.get(name, module) != module:
        raise InputError(f"check {name!r} is already registered from {CHECKS[name]}; choose another name")
    CHECKS[name] = module
