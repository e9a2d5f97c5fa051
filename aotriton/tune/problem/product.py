"""Products as users name them."""

from __future__ import annotations


def is_called(product: str, asked: str) -> bool:
    """Whether ``asked`` is a part of the product's name, as h200 is of NVIDIA H200; underscores stand for spaces."""
    return asked.replace("_", " ").lower() in product.replace("_", " ").lower()
