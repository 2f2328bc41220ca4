"""Data: graphs and sensor readings, splits into train/val/test, partitions over sites.

graph.py         the containers of graphs: Graph, Split
sensors.py       the container of sensors' readings: Sensors
datasets.py      load("cora"), load("digits"), ...
splits.py        which nodes are for training, validation and test
windows.py       which windows of readings in time are
partition.py     which site holds which nodes and edges
"""
