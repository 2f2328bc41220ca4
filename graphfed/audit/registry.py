"""The table of checks. A new check of graphfed is one module and one row; plug-ins add their own checks
(`graphfed.plugins`).
"""

from graphfed.audit.base import Check
from graphfed.plugins import Registry

#: The checks of graphfed in the order of the table on the screen, and where each is declared.
_BUILT_IN = {
    "plaintext_transfers": "plaintext_transfers:CHECK",
    "membership": "membership:CHECK",
    "training_counts": "training_counts:CHECK",
    "label_histogram": "label_histogram:CHECK",
    "fedgcn_features": "fedgcn:CHECK",
    "split_features": "sapgnn:FEATURES",
    "split_labels": "sapgnn:LABELS",
    "lumos_features": "lumos:CHECK",
    "released_classes": "prediction_release:CHECK",
    "cnfgnn_inputs": "cnfgnn:CHECK",
    "fedgat_features": "fedgat:CHECK",
    "fedgat_ldp_features": "fedgat_ldp:CHECK",
    "neighbour_scores": "attention_sums:SCORES",
    "neighbour_sums": "attention_sums:CHECK",
    "halo_features": "halo:FEATURES",
    "halo_labels": "halo:LABELS",
    "fedsage_gradients": "fedsage:CHECK",
    "fedgraph_embeddings": "fedgraph:CHECK",
}

CHECKS = Registry(
    "check",
    "graphfed.audits",
    "CHECK",
    {name: f"graphfed.audit.attacks.{place}" for name, place in _BUILT_IN.items()},
    lambda: Check,
)
