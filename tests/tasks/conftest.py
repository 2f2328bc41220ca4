"""Every test works in a folder of its own."""

from run_fixtures import finished, own_folder

__all__ = ["finished", "own_folder"]
