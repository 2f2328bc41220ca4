"""The principal components onto which the weights are projected for FedGraph's actor.

They are fitted once and never changed. The authors' program fits them again in every round: the signs of
components then flip, and with them the state.
"""

from collections.abc import Iterator

import numpy as np
import scipy.linalg
import torch
from torch import Tensor

from graphfed.errors import GraphfedError, InputError
from graphfed.memory import memory_bytes

#: The number of columns of the weights, or of rows, that are multiplied at a time, in float64.
BLOCK = 4096


def check_memory(rows: int, width: int, other_bytes: int, advice: str) -> None:
    """Check, before anything is computed, that fitting the projection fits into the free memory.

    Args:
        rows: The number of rows of weights, R.
        width: The numbers of a row, n_W.
        other_bytes: Bytes that are needed in addition.
        advice: What the user can do, for the message.

    Raises:
        InputError: The rows, the computation of their components and the other bytes need more memory than
            is free.
    """
    small = min(rows, width)
    need = 4 * rows * width + 8 * (3 * small**2 + max(rows, width) * min(BLOCK, width)) + other_bytes
    free, _ = memory_bytes()
    if free is not None and need > free:
        raise InputError(
            f"learning needs about {need / 1e9:.1f} GB of memory, for the weights of the first episode "
            f"({rows} times {width} numbers), their principal components and the replay buffer; "
            f"{free / 1e9:.1f} GB are free; {advice}"
        )


def fit_projection(rows: np.ndarray, most: int) -> dict[str, Tensor]:
    """Fit the principal components of rows of weights.

    The largest number of each component, by size, is positive, so that its sign is determined.

    Args:
        rows: The rows, [R, n_W] float32.
        most: The largest number of components.

    Returns:
        All float64. pca.mean: the mean of the rows, [n_W]. pca.components: the first c components, which are
        orthonormal, [c, n_W]; c is `most`, or the rank of the rows if that is smaller. pca.scale: the root
        mean square of all coordinates, a scalar, by which the actor's inputs are divided so that they are
        neither tiny nor huge.

    Raises:
        GraphfedError: All rows are the same.
    """
    mean = rows.mean(0, dtype=np.float64)
    wide = rows.shape[0] <= rows.shape[1]
    products = _row_products(rows, mean) if wide else _column_products(rows, mean)
    small = len(products)
    first = max(0, small - most)
    values, vectors = scipy.linalg.eigh(products, subset_by_index=[first, small - 1], overwrite_a=True)
    values, vectors = values[::-1], vectors[:, ::-1]
    # Smaller values are rounding errors of the float64 products and of the float32 weights.
    is_nonzero = values > max(rows.shape) * np.finfo(np.float64).eps * max(values[0], 0.0)
    if not is_nonzero.any():
        raise GraphfedError(
            "the weights did not change in the first episode, so a policy has nothing to observe; use more "
            "rounds, or a larger learning rate"
        )
    values, vectors = values[is_nonzero], vectors[:, is_nonzero]
    components = _times(rows, mean, vectors) / np.sqrt(values)[:, None] if wide else vectors.T
    largest = np.abs(components).argmax(1)
    signs = np.sign(components[np.arange(len(components)), largest])
    scale = np.sqrt(values.sum() / (len(rows) * len(values)))
    return {
        "pca.mean": torch.from_numpy(mean),
        "pca.components": torch.from_numpy(np.ascontiguousarray(components * signs[:, None])),
        "pca.scale": torch.tensor(scale, dtype=torch.float64),
    }


def _blocks(rows: np.ndarray, mean: np.ndarray) -> Iterator[tuple[slice, np.ndarray]]:
    """Yield the centred rows in blocks of columns, in float64, with the columns of each block."""
    for start in range(0, rows.shape[1], BLOCK):
        columns = slice(start, start + BLOCK)
        yield columns, rows[:, columns] - mean[columns]


def _row_products(rows: np.ndarray, mean: np.ndarray) -> np.ndarray:
    """Compute X X^T of the centred rows X, [R, R]."""
    total = np.zeros((len(rows), len(rows)))
    for _, block in _blocks(rows, mean):
        total += block @ block.T
    return total


def _column_products(rows: np.ndarray, mean: np.ndarray) -> np.ndarray:
    """Compute X^T X of the centred rows X, [n_W, n_W]."""
    total = np.zeros((rows.shape[1], rows.shape[1]))
    for start in range(0, len(rows), BLOCK):
        block = rows[start : start + BLOCK] - mean
        total += block.T @ block
    return total


def _times(rows: np.ndarray, mean: np.ndarray, vectors: np.ndarray) -> np.ndarray:
    """Compute U^T X of the centred rows X, [c, n_W]; vectors U [R, c]."""
    product = np.empty((vectors.shape[1], rows.shape[1]))
    for columns, block in _blocks(rows, mean):
        product[:, columns] = vectors.T @ block
    return product
