"""`digits`: scikit-learn's handwritten digits as a k-nearest-neighbour graph, shipped with the package."""

from pathlib import Path

import numpy as np

from graphfed.data.graphs.graph import Graph, make_graph
from graphfed.files import read_tensors

FILE = Path(__file__).parent / "files" / "digits.safetensors"


def load_digits(structure_only: bool = False) -> Graph:
    """Load 1 797 images of handwritten digits, each joined to its 5 nearest neighbours.

    The features are 8x8 pixels in [0, 1] (F = 64), and the digit is the class (C = 10). The images are the
    test part of UCI's "Optical Recognition of Handwritten Digits" (Alpaydin and Kaynak, 1998).
    scripts/make_digits.py writes the file.
    """
    tensors, _ = read_tensors(FILE)
    # The file has whole numbers from 0 to 16, which take a quarter of the space of floats.
    x = None if structure_only else tensors["pixels"].astype(np.float32) / 16
    names = tuple(str(digit) for digit in range(10))
    return make_graph("digits", x, tensors["labels"], tensors["edges"], class_names=names)
