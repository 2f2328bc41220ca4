"""Data: graphs and sensor readings, splits into train/val/test, partitions over clients.

graph.py         the containers of graphs: Graph, Split
sensors.py       the container of sensors' readings: Sensors
datasets.py      load("cora"), load("digits"), ...
splits.py        which nodes are for training, validation and test
windows.py       which windows of readings in time are
partition.py     which client holds which nodes and edges
"""
