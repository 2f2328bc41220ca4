"""Every picture of graphfed: those of reports, of `graphfed data inspect`, of policies and of reproductions.

charts.py    the kinds of charts: lines and points, bars, tables of shares
networks.py  nodes and edges on a plane: a graph and its clients, sensors on a map
canvas.py    a grid of charts as an SVG element of a page or as a file, in the one look that all have

Callers hand over data and labels; nothing else in the package imports matplotlib.
"""
