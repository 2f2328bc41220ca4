"""Reproductions of papers' tables and figures: a module per paper, and what runs, shows and draws them."""

__all__ = ["PAPERS"]

#: The papers that have a module of their name here, with the paper as its `PAPER`.
PAPERS = ("cnfgnn", "fedgat", "fedgcn", "fedgraph", "lumos", "sapgnn")
