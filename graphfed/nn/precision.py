"""Matrix products in a shorter floating-point format than the other operations.

Weights, states, sums and gradients are float32. With products in bfloat16, both factors of a product are
rounded to a significand of 8 bits; the processor adds up the terms in float32.
"""

from typing import Any

import torch
from torch import Tensor

from graphfed.errors import InputError, did_you_mean, shown


def product_dtype(name: str, device: torch.device | str) -> torch.dtype | None:
    """Convert a setting to the argument `products` of the networks.

    Args:
        name: The setting, "float32" or "bfloat16".
        device: The torch device that computes the products.

    Returns:
        None for "float32": products have the dtype of the weights. torch.bfloat16 for "bfloat16".

    Raises:
        InputError: For another name, or for bfloat16 on a device that has no instructions for it.
    """
    if name == "float32":
        return None
    if name != "bfloat16":
        hint = did_you_mean(name, ("float32", "bfloat16"))
        raise InputError(f"the dtype of products must be float32 or bfloat16; got {shown(name)}; {hint}")
    if not has_fast_bfloat16(device):
        raise InputError(
            f"bfloat16: {torch.device(device).type} has no fast products in bfloat16 here "
            "(an x86 processor needs avx512_bf16 or amx); use float32"
        )
    return torch.bfloat16


def has_fast_bfloat16(device: torch.device | str) -> bool:
    """Check whether a device has instructions for products of bfloat16 numbers.

    Returns:
        True if it has. False if it would emulate the products.
    """
    kind = torch.device(device).type
    if kind == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    if kind != "cpu":
        return False
    capabilities: dict[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()
    if capabilities:
        # Names differ between architectures, but those of bfloat16 instructions have bf16 in them.
        return any(has is True and "bf16" in name for name, has in capabilities.items())
    # Older versions of torch have no `get_capabilities`.
    checks = (getattr(torch.cpu, f"_is_{name}_supported", None) for name in ("avx512_bf16", "amx_tile"))
    return any(check is not None and bool(check()) for check in checks)


def product(x: Tensor, weight: Tensor, products: torch.dtype | None) -> Tensor:
    """Multiply two tensors in a given dtype. Differentiable.

    Args:
        x: [..., F], in the dtype of the network's states.
        weight: [F, H], or any tensor that can follow `x` in a matrix product.
        products: The dtype of the product (see `product_dtype`). None: that of `x`.

    Returns:
        x @ weight, [..., H], in the dtype of `x`.
    """
    if products is None or products == x.dtype:
        return x @ weight
    # Casts are differentiable: the backward products have the shorter dtype too, their sums that of `x`.
    return (x.to(products) @ weight.to(products)).to(x.dtype)
