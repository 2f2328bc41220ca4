"""Differential privacy: what a release costs."""
