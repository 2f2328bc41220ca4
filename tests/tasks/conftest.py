"""Every test works in a folder of its own."""

from law_fixtures import three_clients
from run_fixtures import finished, own_folder

__all__ = ["finished", "own_folder", "three_clients"]
