"""Every test works in a folder of its own."""

from run_fixtures import own_folder

__all__ = ["own_folder"]
