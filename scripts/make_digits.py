"""Make graphfed/data/graphs/files/digits.safetensors from scikit-learn's copy of the handwritten digits.

The data set is the test part of the UCI "Optical Recognition of Handwritten Digits" (E. Alpaydin, C. Kaynak,
1998; CC BY 4.0): 1 797 images of 8x8 pixels with values 0..16. Each image is joined to its 5 nearest others.

Run: python scripts/make_digits.py [output file]
"""

import sys
from pathlib import Path

import numpy as np

from graphfed.files import write_tensors

K = 5
OUTPUT = Path(__file__).parents[1] / "graphfed" / "data" / "files" / "digits.safetensors"


def make_digits() -> dict[str, np.ndarray]:
    """pixels uint8 [1797, 64], labels uint8 [1797], edges int16 [2, m] with u < v, sorted and unique."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    pixels = digits.data.astype(np.int64)
    n = len(pixels)
    # Squared distances in integers are exact, and ties go to the lower number: the same graph on every
    # machine.
    squared = (pixels**2).sum(1)
    distance = squared[:, None] + squared[None, :] - 2 * pixels @ pixels.T
    np.fill_diagonal(distance, np.iinfo(np.int64).max)
    neighbour = np.argsort(distance, axis=1, kind="stable")[:, :K].ravel()
    node = np.repeat(np.arange(n), K)
    key = np.unique(np.minimum(node, neighbour) * n + np.maximum(node, neighbour))
    return {
        "pixels": pixels.astype(np.uint8),
        "labels": digits.target.astype(np.uint8),
        "edges": np.stack((key // n, key % n)).astype(np.int16),
    }


if __name__ == "__main__":
    output = Path(sys.argv[1]) if len(sys.argv) > 1 else OUTPUT
    write_tensors(output, make_digits(), {"source": "scikit-learn load_digits, 5 nearest neighbours"})
    print(f"wrote {output} ({output.stat().st_size} bytes)")
