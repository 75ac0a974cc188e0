"""Elements and slices of blocks, for triton's interpreter."""

import numpy as np
import triton.language as tl
from triton.runtime.interpreter import TensorHandle


def get_element(src, indice):
    """One element of a block."""
    element = np.array([src.handle.data[tuple(map(_number, indice))]])
    return tl.tensor(TensorHandle(element, src.dtype), src.dtype)


def extract_slice(ful, offsets, sizes, strides):
    """A part of a block."""
    part = ful.handle.data[_part(offsets, sizes, strides)].copy()
    kind = tl.block_type(ful.dtype, list(part.shape))
    return tl.tensor(TensorHandle(part, ful.dtype), kind)


def insert_slice(ful, sub, offsets, sizes, strides):
    """A block with a part of it replaced."""
    whole = ful.handle.data.copy()
    whole[_part(offsets, sizes, strides)] = sub.handle.data
    return tl.tensor(TensorHandle(whole, ful.dtype), ful.type)


def _number(value):
    return int(value.handle.data.item()) if isinstance(value, tl.tensor) else int(value)


def _part(offsets, sizes, strides):
    axes = zip(offsets, sizes, strides, strict=True)
    return tuple(
        slice(at, at + size * step, step)
        for at, size, step in (map(_number, axis) for axis in axes)
    )
