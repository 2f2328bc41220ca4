"""Reproductions of papers' tables and figures: a module for each paper, and the modules that run, show and
draw them.
"""

__all__ = ["PAPERS"]

#: The papers that have a module of their name here, with the paper as its `PAPER`.
PAPERS = ("cnfgnn", "fedgat", "fedgcn", "fedgraph", "lumos", "sapgnn")
