"""Experiments: one run, several side by side, and the folder they leave.

config.py     options and settings, checked before anything happens
run.py        one method on one partitioned graph
train.py      rounds, validation, early stopping, scoring
compare.py    methods side by side over seeds, on the same splits
folder.py     the files of a run
progress.py   what a person sees meanwhile
"""
