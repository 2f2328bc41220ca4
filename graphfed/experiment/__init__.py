"""Experiments: one run, several side by side, and the folder they leave.

config.py     options and settings, checked before anything happens
run.py        one method on one partitioned graph
train.py      rounds, validation, early stopping, scoring
checkpoint.py what is saved between rounds
reopen.py     a run's folder -> its config and inputs
resume.py     go on with what was interrupted
predict.py    use the model of a finished run
compare.py    methods side by side over seeds, on the same splits
folder.py     the files of a run
progress.py   what a person sees meanwhile
"""
