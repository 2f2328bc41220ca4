"""The one table of checks. Adding a check is one file and one row."""

import importlib

from graphfed.audit.base import Check
from graphfed.errors import InputError

__all__ = ["CHECKS", "get_check", "register"]

#: name -> the module whose CHECK it is, in the order of the table on the screen
CHECKS: dict[str, str] = {
    "clear_transfers": "graphfed.audit.clear_transfers",
    "membership": "graphfed.audit.membership",
    "training_counts": "graphfed.audit.training_counts",
    "label_histogram": "graphfed.audit.label_histogram",
    "fedgcn_features": "graphfed.audit.fedgcn_features",
    "split_features": "graphfed.audit.split_features",
    "split_labels": "graphfed.audit.split_labels",
    "lumos_features": "graphfed.audit.lumos_features",
    "cnfgnn_inputs": "graphfed.audit.cnfgnn_inputs",
    "fedgat_features": "graphfed.audit.fedgat_features",
    "fedgat_ldp_features": "graphfed.audit.fedgat_ldp_features",
    "fedgraph_embeddings": "graphfed.audit.fedgraph_embeddings",
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
