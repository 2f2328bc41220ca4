"""Reproductions of papers' tables and figures: a module for each paper, and the modules that run, show and
draw them.
"""

#: The papers that have a module of their name here, with the paper as its `PAPER`.
PAPERS = ("cnfgnn", "fedgat", "fedgcn", "fedgraph", "lumos", "sapgnn")
