"""Sparse matrices from the arrays of an untrusted file. All arrays are checked before any is converted."""

import numpy as np
import scipy.sparse as sp

# A data file states the width of a model's first layer, so the width is bounded. The widest set in use has
# 10^5 columns.
MAX_WIDTH = 10**7


def csr_from_arrays(
    data: np.ndarray, indices: np.ndarray, indptr: np.ndarray, shape: tuple[int, int]
) -> sp.csr_matrix:
    """Build a float32 csr matrix [n, F] from numbers [nnz], columns [nnz] and row starts [n + 1].

    Raises:
        ValueError: An array is damaged; the message names the array. No number overflows, is truncated or is
            rounded to a whole number.
    """
    arrays = {"data": data, "indices": indices, "indptr": indptr}
    kinds: dict[str, str] = {"data": "biuf", "indices": "iu", "indptr": "iu"}
    for key, array in arrays.items():
        if not isinstance(array, np.ndarray) or array.ndim != 1 or array.dtype.kind not in kinds[key]:
            what = "numbers" if key == "data" else "integers"
            form = f"dtype {getattr(array, 'dtype', None)} and shape {getattr(array, 'shape', None)}"
            raise ValueError(f"{key} has {form}; expected a vector of {what}")
    if not (len(shape) == 2 and all(type(n) is int and n >= 0 for n in shape)) or shape[1] > MAX_WIDTH:
        raise ValueError(f"the shape is not two whole numbers, the second at most {MAX_WIDTH}")
    n, width = shape
    if len(indptr) != n + 1:
        raise ValueError(f"indptr has {len(indptr)} entries; expected {n + 1} for {n} rows")
    if int(indptr[0]) != 0 or not (indptr[1:] >= indptr[:-1]).all() or int(indptr[-1]) != len(indices):
        raise ValueError(f"indptr does not rise from 0 to the {len(indices)} indices")
    if len(data) != len(indices):
        raise ValueError(f"{len(data)} values for {len(indices)} indices")
    if len(indices) and not (int(indices.min()) >= 0 and int(indices.max()) < width):
        worst = int(indices.min()) if int(indices.min()) < 0 else int(indices.max())
        raise ValueError(f"column {worst} is outside 0..{width - 1}")
    with np.errstate(over="ignore"):  # a value outside float32 becomes infinite, which is refused below
        values = data.astype(np.float32)
    if not np.isfinite(values).all():
        raise ValueError(f"value {int(np.flatnonzero(~np.isfinite(values))[0])} is not a finite float32")
    return sp.csr_matrix((values, indices.astype(np.int32), indptr.astype(np.int64)), shape=shape)
