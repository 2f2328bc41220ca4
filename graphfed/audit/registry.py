"""The table of checks. A new check of graphfed is one module and one row; plug-ins add their own checks
(`graphfed.plugins`).
"""

from graphfed.audit.base import Check
from graphfed.plugins import Registry

__all__ = ["CHECKS"]

#: The checks of graphfed in the order of the table on the screen, and the module that declares each as CHECK.
_BUILT_IN = {
    "plaintext_transfers": "plaintext_transfers",
    "membership": "membership",
    "training_counts": "training_counts",
    "label_histogram": "label_histogram",
    "fedgcn_features": "fedgcn",
    "split_features": "sapgnn_features",
    "split_labels": "sapgnn_labels",
    "lumos_features": "lumos",
    "released_classes": "prediction_release",
    "cnfgnn_inputs": "cnfgnn",
    "fedgat_features": "fedgat",
    "fedgat_ldp_features": "fedgat_ldp",
    "neighbour_sums": "attention_sums",
    "fedgraph_embeddings": "fedgraph",
}

CHECKS = Registry(
    "check",
    "graphfed.audits",
    "CHECK",
    {name: f"graphfed.audit.attacks.{module}:CHECK" for name, module in _BUILT_IN.items()},
    lambda: Check,
)
