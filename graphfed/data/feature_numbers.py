"""The numbers in which features are stored."""

from typing import Any

import numpy as np

#: From here on, float32 does not have every whole number.
LARGE = 2.0**24


def feature_numbers(x: Any) -> np.ndarray:
    """Convert dense features of any dtype and shape to the numbers that a graph stores.

    They are float32, unless float32 changes a number of at least `LARGE`: times since 1970, account numbers,
    amounts in cents. Then all are in float64, and these keep the digits by which they differ until
    features=scaled has subtracted their centre. A number outside float32 becomes infinite.
    """
    with np.errstate(over="ignore"):
        narrow = np.ascontiguousarray(x, dtype=np.float32)
    if not narrow.size or max(narrow.max(), -narrow.min()) < LARGE:
        return narrow
    wide = np.asarray(x, dtype=np.float64)
    # Each number alone decides, so it is the same in a client's file and in the whole graph.
    changed = (np.abs(wide) >= LARGE) & (wide != narrow) & np.isfinite(narrow)
    return np.where(changed, wide, narrow) if changed.any() else narrow
