"""The papers' methods are tested in float64."""

from law_fixtures import float64, three_clients

__all__ = ["float64", "three_clients"]
