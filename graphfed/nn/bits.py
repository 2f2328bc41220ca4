"""Bits eight to a byte, as they are sent: bit k of byte b of a row is its element 8 b + k."""

import torch
from torch import Tensor

__all__ = ["pack_bits", "unpack_bits"]


def pack_bits(bits: Tensor) -> Tensor:
    """[N, d] bool -> [N, ceil(d / 8)] uint8; what is left over of a row's last byte is 0."""
    n, width = bits.shape
    size = (width + 7) // 8
    packed = torch.zeros(n, size, dtype=torch.uint8, device=bits.device)
    for k in range(min(8, width)):
        column = bits[:, k::8].to(torch.uint8)
        packed[:, : column.shape[1]] |= column << k
    return packed


def unpack_bits(packed: Tensor, width: int) -> Tensor:
    """[N, ceil(d / 8)] uint8 -> [N, d] bool, for `width` = d."""
    bits = torch.empty(len(packed), 8 * packed.shape[1], dtype=torch.bool, device=packed.device)
    for k in range(8):
        bits[:, k::8] = (packed >> k) & 1
    return bits[:, :width]
