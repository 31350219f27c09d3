"""Operations that stay single operations of the compiled program when a pipeline maps a layer over its stages."""

from __future__ import annotations

from typing import Any


def einsum(equation: str, *operands: Any) -> Any:
    """torch.einsum."""
    import torch

    return torch.einsum(equation, *operands)
