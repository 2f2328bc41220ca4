"""Layers that take shared weights or one set per client, on the stacked rows of a cohort."""
