"""Experiments: one run, several side by side, and the folder they leave.

config.py     options and settings, checked before anything happens
settings.py   the words for settings: names, ranges, what other programs call them
source.py     what a user may give as data
inspect.py    a graph before training: numbers, sites, methods that can use it
run.py        one method on one partitioned graph
train.py      rounds, validation, early stopping, scoring
checkpoint.py what is saved between rounds
reopen.py     a run's folder -> its config and inputs
resume.py     go on with what was interrupted
predict.py    use the model of a finished run
plan.py       what comparisons, sweeps and reproductions share
compare.py    methods side by side over seeds, on the same splits
sweep.py      settings chosen on validation
recipe.py     a paper's runs and printed figures, as a data file
reproduce.py  a paper's tables and figures from its recipe
recipe_plots.py  these as a table for the screen and as a drawing
policy_learning.py  FedGraph's sampling policy, learned and written into a file
policy_environment.py  a federation that trains, as a Gymnasium environment
policy_ddpg.py, policy_bandit.py  what learns
jobs.py       runs several at a time, each in a process of its own
track.py      finished runs handed on to TensorBoard or MLflow
doctor.py     what this machine can run
sites.py      a run in separate processes
state.py      what training knows between rounds, as tensors and JSON
folder.py     the files of a run
progress.py   what a person sees meanwhile
"""
