"""Matrix products in a shorter format than everything around them.

Weights, states, sums and gradients stay float32; with bfloat16 products both factors are rounded to 8 bits of
mantissa on the way into a product, whose own sums the processor makes in float32."""

from typing import Any

import torch
from torch import Tensor

from graphfed.errors import InputError, did_you_mean, shown

__all__ = ["has_fast_bfloat16", "product", "product_dtype"]


def product_dtype(name: str, device: torch.device | str) -> torch.dtype | None:
    """What the networks take as `products`: None for "float32", the weights' own; torch.bfloat16 for
    "bfloat16".

    Raises InputError for another name, and for bfloat16 on a device that would only emulate it."""
    if name == "float32":
        return None
    if name != "bfloat16":
        hint = did_you_mean(name, ("float32", "bfloat16"))
        raise InputError(f"products are made in float32 or bfloat16, got {shown(name)}; {hint}")
    if not has_fast_bfloat16(device):
        raise InputError(
            f"bfloat16: {torch.device(device).type} has no fast products in bfloat16 here "
            "(an x86 processor needs avx512_bf16 or amx); use float32"
        )
    return torch.bfloat16


def has_fast_bfloat16(device: torch.device | str) -> bool:
    """Whether the device multiplies bfloat16 by instructions of its own."""
    kind = torch.device(device).type
    if kind == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    if kind != "cpu":
        return False
    told: dict[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()
    if told:
        return any(has is True and "bf16" in name for name, has in told.items())
    # Before torch could be asked for all of them at once.
    asked = (getattr(torch.cpu, f"_is_{name}_supported", None) for name in ("avx512_bf16", "amx_tile"))
    return any(ask is not None and bool(ask()) for ask in asked)


def product(x: Tensor, weight: Tensor, products: torch.dtype | None) -> Tensor:
    """x @ weight, made in the dtype `products` (None: their own), in x's own dtype. Differentiable."""
    if products is None or products == x.dtype:
        return x @ weight
    return (x.to(products) @ weight.to(products)).to(x.dtype)
