"""Weighted sums of rows that lie packed: what they are off by, in every layout."""

import numpy as np
import pytest
import scipy.sparse as sp

from graphfed.crypto.ckks import PARAMETERS, Evaluator, Grid, KeyOwner, Layout, padded_cells
from graphfed.crypto.ckks_ideal import IdealEvaluator, IdealKeyOwner
from graphfed.crypto.errors import ProtocolError
from graphfed.errors import InputError

pytest.importorskip("tenseal", reason="encryption needs the extra secure")

PRODUCT = PARAMETERS["product"]
#: Many rows in a ciphertext, some, one, and a row in two.
WIDTHS = pytest.mark.parametrize("width", [12, 1100, 4096, 4100])


@pytest.fixture(scope="module")
def real() -> tuple[KeyOwner, Evaluator]:
    holder = KeyOwner.make("product")
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
    ideal = IdealKeyOwner.make("product")
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


def test_sums_are_bytes_and_of_no_rows_there_are_none(real):
    ideal = IdealKeyOwner.make("product")
    for holder, evaluator in (real, (ideal, IdealEvaluator.load("product", ideal.public()))):
        layout, nothing = Layout(12, PRODUCT.slots), np.empty(0, dtype=np.int64)
        sealed = holder.encrypt(layout.repeat(np.ones((2, 12))))
        some = evaluator.weighted_rows(sealed, sp.csr_matrix([[1.0, 2.0]]), *np.zeros((2, 1), int), layout)
        none = evaluator.weighted_rows(sealed, sp.csr_matrix((0, 2)), nothing, nothing, layout)
        assert [sums.dtype for sums in (some, none)] == [np.uint8, np.uint8]
        assert none.shape == (0, PRODUCT.product_bytes)


def test_a_sum_of_ciphertexts_is_bytes():
    holder = KeyOwner.make("sum")
    sealed = holder.encrypt(np.ones((2, PARAMETERS["sum"].slots)))
    made = Evaluator.load("sum", holder.public()).add(sealed, np.zeros(2, dtype=int), 1)
    assert (made.dtype, made.shape) == (np.uint8, (1, PARAMETERS["sum"].ciphertext_bytes))


def test_the_most_terms_that_are_promised_can_be_summed():
    assert Grid(670_000).bits == 8
    with pytest.raises(InputError, match="from 1 to 670 000"):
        Grid(680_000)


def test_a_ciphertext_that_is_longer_than_its_place_is_refused():
    assert len(padded_cells(bytes(12), 16)) == 16
    with pytest.raises(ProtocolError, match="TenSEAL gave 13 bytes where at most 12"):
        padded_cells(bytes(13), 16)
