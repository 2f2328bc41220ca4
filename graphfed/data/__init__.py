"""Data sets, splits into train/val/test, and partitions of a graph among clients.

datasets.py      data sets by name: load("cora"), load("digits"), ...
graphs/          the containers Graph and Split, the readers of public graphs, and splits of nodes and edges
sensors/         the container Sensors, the readers of readings and networks, and windows of readings
partitions/      the assignment of nodes and edges to clients
user_files/      graphs and readings that a user describes in a YAML file
"""
