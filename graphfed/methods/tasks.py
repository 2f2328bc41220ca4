"""The names of the tasks that methods declare. What a task is stands in its module below `graphfed.tasks`."""

__all__ = ["CLASSIFICATION", "FORECASTING", "LINK_PREDICTION"]

CLASSIFICATION, LINK_PREDICTION = "classification", "link_prediction"
FORECASTING = "forecasting"
