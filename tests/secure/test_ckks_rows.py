"""Weighted sums of rows that lie packed: what they are off by, in every layout."""

import numpy as np
import pytest
import scipy.sparse as sp

from graphfed.errors import InputError
from graphfed.secure.ckks import PARAMETERS, Evaluator, IdealEvaluator, IdealKeyHolder, KeyHolder, Layout

pytest.importorskip("tenseal", reason="encryption needs the extra secure")

PRODUCT = PARAMETERS["product"]
#: Many rows in a ciphertext, some, one, and a row in two.
WIDTHS = pytest.mark.parametrize("width", [12, 1100, 4096, 4100])


@pytest.fixture(scope="module")
def real() -> tuple[KeyHolder, Evaluator]:
    holder = KeyHolder.make("product")
    return holder, Evaluator.load("product", holder.public())


def summed(parties, x: np.ndarray, weights: sp.csr_matrix, layout: Layout) -> np.ndarray:
    """Encrypted, added up with weights, decrypted: [n, width]."""
    holder, evaluator = parties
    unit, place = np.divmod(np.arange(weights.shape[0]), layout.rows)
    made = evaluator.weighted_rows(holder.encrypt(layout.repeat(x)), weights, unit, place, layout)
    assert made.shape == (layout.ciphertexts(weights.shape[0]), PRODUCT.product_bytes)
    return layout.unpack(holder.decrypt(made), unit, place)


@WIDTHS
def test_packed_sums_are_within_the_stated_error_and_the_ideal_form_of_them_too(width, real):
    """1e-8 for each of the rows that a ciphertext's sums are of."""
    rng, layout = np.random.default_rng(width), Layout(width, PRODUCT.slots)
    x = rng.normal(0, 3, (6, width))
    weights = sp.random(7, 6, 0.4, format="csr", random_state=4) * 40
    weights = sp.csr_matrix(weights + sp.csr_matrix(np.eye(7, 6, -1) + np.eye(7, 6) * -7.5))
    exact = weights @ x
    allowed = 2e-7 * (abs(weights) @ np.abs(x)) + 1e-8 * 6
    assert (np.abs(summed(real, x, weights, layout) - exact) <= allowed).all()
    ideal = IdealKeyHolder.make("product")
    parties = ideal, IdealEvaluator.load("product", ideal.public())
    assert np.abs(summed(parties, x, weights, layout) - exact).max() < 1e-9


@WIDTHS
def test_packed_sums_at_the_limit_are_right(width, real):
    layout = Layout(width, PRODUCT.slots)
    x = np.full((2, width), PRODUCT.largest - 1)
    weights = sp.csr_matrix([[PRODUCT.weight / 2, PRODUCT.weight / 2]])
    exact = (PRODUCT.largest - 1) * PRODUCT.weight
    assert np.abs(summed(real, x, weights, layout) - exact).max() <= 2e-7 * exact + 2e-8


def test_a_row_without_weights_and_weights_that_are_too_large_are_refused(real):
    layout, x = Layout(12, PRODUCT.slots), np.ones((2, 12))
    for weights, words in (
        ([[0.0, 0.0], [1.0, 0.0]], "row 0 .* all zero"),
        ([[200.0, -57.0]], "at most 256"),
    ):
        with pytest.raises(InputError, match=words):
            summed(real, x, sp.csr_matrix(weights), layout)
