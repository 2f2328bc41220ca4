"""graphfed: train graph neural networks across parties that may not show each other their graphs."""

__version__ = "0.1.0"
