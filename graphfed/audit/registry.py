"""The one table of checks. Adding a check to graphfed is one file and one row; a plug-in adds its own
(`graphfed.plugins`)."""

from graphfed.audit.base import Check
from graphfed.plugins import Registry

__all__ = ["CHECKS"]

#: The names, in the order of the table on the screen; each is that of the module whose CHECK it is.
_OWN = {
    "plaintext_transfers": "plaintext_transfers",
    "membership": "membership",
    "training_counts": "training_counts",
    "label_histogram": "label_histogram",
    "fedgcn_features": "fedgcn",
    "split_features": "sapgnn_features",
    "split_labels": "sapgnn_labels",
    "lumos_features": "lumos",
    "cnfgnn_inputs": "cnfgnn",
    "fedgat_features": "fedgat",
    "fedgat_ldp_features": "fedgat_ldp",
    "fedgraph_embeddings": "fedgraph",
}

CHECKS = Registry(
    "check",
    "graphfed.audits",
    "CHECK",
    {name: f"graphfed.audit.attacks.{module}:CHECK" for name, module in _OWN.items()},
    lambda: Check,
)
