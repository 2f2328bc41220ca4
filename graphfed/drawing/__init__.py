"""Draws all pictures of graphfed: for reports, `graphfed data inspect`, policies and reproductions.

charts.py    kinds of charts: lines and points, bars, heatmaps
networks.py  nodes and edges on a plane: a graph and its clients, sensors on a map
canvas.py    turns a grid of charts into an SVG element of a page or into a file, in a common style

Callers pass data and labels. No other package imports matplotlib.
"""
