"""Packed bits against numpy, which packs them too."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from graphfed.nn.bits import pack_bits, unpack_bits


@given(st.integers(0, 6), st.integers(0, 40), st.integers(0, 2**32 - 1))
def test_bits_come_back_and_are_packed_as_numpy_packs_them(rows: int, width: int, seed: int) -> None:
    bits = np.random.default_rng(seed).random((rows, width)) < 0.5
    packed = pack_bits(torch.from_numpy(bits))
    assert np.array_equal(packed.numpy(), np.packbits(bits, axis=1, bitorder="little"))
    assert torch.equal(unpack_bits(packed, width), torch.from_numpy(bits))


@pytest.mark.parametrize("width", [7, 8, 9])
def test_a_byte_holds_eight(width: int) -> None:
    assert pack_bits(torch.ones(2, width, dtype=torch.bool)).shape == (2, (width + 7) // 8)
