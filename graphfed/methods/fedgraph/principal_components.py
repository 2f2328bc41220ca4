"""The principal components that FedGraph's actor sees weights on: fitted once, then never changed.

(Refitted in every round, as the authors' program does, their signs flip and the state turns around.)"""

from collections.abc import Iterator

import numpy as np
import scipy.linalg
import torch
from torch import Tensor

from graphfed.errors import GraphfedError, InputError
from graphfed.memory import memory_bytes

__all__ = ["check_memory", "fit_projection"]

#: Columns of the weights, or rows, that are multiplied at a time, in float64.
BLOCK = 4096


def check_memory(rows: int, width: int, beside: int, fix: str) -> None:
    """InputError, before anything is computed, where `rows` weights of `width` numbers, what it takes to find
    their components, and `beside` bytes do not fit into the memory that is free."""
    small = min(rows, width)
    need = 4 * rows * width + 8 * (3 * small**2 + max(rows, width) * min(BLOCK, width)) + beside
    free, _ = memory_bytes()
    if free is not None and need > free:
        raise InputError(
            f"learning needs about {need / 1e9:.1f} GB of memory, for the weights of the first episode "
            f"({rows} times {width} numbers), their principal components and the replay buffer; "
            f"{free / 1e9:.1f} GB are free; {fix}"
        )


def fit_projection(rows: np.ndarray, most: int) -> dict[str, Tensor]:
    """The mean [n_W] and the first components [c, n_W] of rows [R, n_W] float32, float64, with orthonormal
    rows; c: `most`, or the rank of the rows where that is less. The largest number of each component is
    positive, so that its sign says nothing. pca.scale: the root mean square of all coordinates, so that those
    over it are neither tiny nor huge.

    GraphfedError where all rows are the same."""
    mean = rows.mean(0, dtype=np.float64)
    wide = rows.shape[0] <= rows.shape[1]
    products = _row_products(rows, mean) if wide else _column_products(rows, mean)
    small = len(products)
    first = max(0, small - most)
    values, vectors = scipy.linalg.eigh(products, subset_by_index=[first, small - 1], overwrite_a=True)
    values, vectors = values[::-1], vectors[:, ::-1]
    # What float64 products cannot tell from nothing, and what is left of float32 weights by rounding.
    kept = values > max(rows.shape) * np.finfo(np.float64).eps * max(values[0], 0.0)
    if not kept.any():
        raise GraphfedError(
            "the weights did not move in the first episode, so there is nothing that a policy could see; use "
            "more rounds, or a larger learning rate"
        )
    values, vectors = values[kept], vectors[:, kept]
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
    """Some columns after the other, centred, in float64."""
    for start in range(0, rows.shape[1], BLOCK):
        at = slice(start, start + BLOCK)
        yield at, rows[:, at] - mean[at]


def _row_products(rows: np.ndarray, mean: np.ndarray) -> np.ndarray:
    """X X^T of the centred rows X, [R, R]."""
    total = np.zeros((len(rows), len(rows)))
    for _, block in _blocks(rows, mean):
        total += block @ block.T
    return total


def _column_products(rows: np.ndarray, mean: np.ndarray) -> np.ndarray:
    """X^T X of the centred rows X, [n_W, n_W]."""
    total = np.zeros((rows.shape[1], rows.shape[1]))
    for start in range(0, len(rows), BLOCK):
        block = rows[start : start + BLOCK] - mean
        total += block.T @ block
    return total


def _times(rows: np.ndarray, mean: np.ndarray, vectors: np.ndarray) -> np.ndarray:
    """U^T X of the centred rows X, [c, n_W]; vectors U [R, c]."""
    product = np.empty((vectors.shape[1], rows.shape[1]))
    for at, block in _blocks(rows, mean):
        product[:, at] = vectors.T @ block
    return product
