"""Bundles: values that travel together through the functions of a kernel, constants as constants.

As in flash: a family imports no other, and what an image is named after is in its family.
"""

import triton
from triton.language.core import _aggregate, base_value, constexpr


def bundle(cls):
    """The class with the fields that ``cls`` annotates, made of their values in order or by name.

    A field may have any value of a kernel, a constant too, a tuple or another bundle.
    """
    names = tuple(cls.__annotations__)

    @triton.constexpr_function
    def __init__(self, *values, **named):
        given = {**dict(zip(names, values)), **named}  # noqa: B905 (a field too few is an error of its own)
        for name, value in given.items():
            setattr(self, name, value if isinstance(value, base_value) else constexpr(value))

    cls.__init__ = __init__
    cls.__annotations__ = dict.fromkeys(names, base_value)
    return _aggregate(cls)
