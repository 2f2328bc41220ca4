"""The names of the tasks that methods declare. `graphfed.tasks` has a module for each task."""

CLASSIFICATION, LINK_PREDICTION = "classification", "link_prediction"
FORECASTING = "forecasting"
