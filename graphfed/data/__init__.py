"""Data: graphs and sensor readings, splits into train/val/test, partitions over sites.

graph.py         the containers: Graph, Split, Sensors
datasets.py      load("cora"), load("digits"), ...
splits.py        which vertices are for training, validation and test
partition.py     which site holds which vertices and edges
"""
