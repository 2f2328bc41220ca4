"""Bits packed, eight to a byte, as they are sent: bit k of byte b of a row is the row's element 8 b + k."""

import torch
from torch import Tensor


def pack_bits(bits: Tensor) -> Tensor:
    """Pack the bits of each row into bytes.

    Args:
        bits: [N, d] bool.

    Returns:
        [N, ceil(d / 8)] uint8. The unused bits of a row's last byte are 0.
    """
    n, width = bits.shape
    size = (width + 7) // 8
    packed = torch.zeros(n, size, dtype=torch.uint8, device=bits.device)
    for k in range(min(8, width)):
        column = bits[:, k::8].to(torch.uint8)
        packed[:, : column.shape[1]] |= column << k
    return packed


def unpack_bits(packed: Tensor, width: int) -> Tensor:
    """Unpack the bytes of `pack_bits`.

    Args:
        packed: [N, ceil(d / 8)] uint8. The bits after the first d of a row are ignored.
        width: d, the number of bits of each row.

    Returns:
        [N, d] bool.
    """
    bits = torch.empty(len(packed), 8 * packed.shape[1], dtype=torch.bool, device=packed.device)
    for k in range(8):
        bits[:, k::8] = (packed >> k) & 1
    return bits[:, :width]
