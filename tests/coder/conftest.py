"""Triton's interpreter, where there is no GPU."""

import math
import os

import numpy as np
import pytest

_FUNCTIONS = {
    "tanh": np.tanh, "expm1": np.expm1, "log1p": np.log1p, "log10": np.log10, "pow": np.power,
    "tan": np.tan, "sinh": np.sinh, "cosh": np.cosh, "asin": np.arcsin, "acos": np.arccos,
    "atan": np.arctan, "atan2": np.arctan2, "erfc": np.vectorize(math.erfc, otypes=[float]),
    "trunc": np.trunc, "nearbyint": np.rint, "fmod": np.fmod,
}  # fmt: skip


@pytest.fixture(autouse=True)
def device_library(monkeypatch):
    """What the interpreter lacks of a device: the functions of its library, sums that wrap."""
    if os.environ.get("TRITON_INTERPRET") != "1":
        return
    import triton.language as tl
    from triton.language.extra import libdevice
    from triton.runtime.interpreter import ReduceOps, TensorHandle

    def wrapping_sum(self, tile):
        data = tile.handle.data
        total = np.sum(data, axis=self.axis, keepdims=self.keep_dims, dtype=data.dtype)
        return self.to_tensor(total, tile.dtype)

    def standing_in(function):
        def call(*tensors):
            first = tensors[0]
            values = function(*(t.handle.data for t in tensors)).astype(first.handle.data.dtype)
            return tl.tensor(TensorHandle(values, first.handle.dtype), first.type)

        return call

    for name, function in _FUNCTIONS.items():
        monkeypatch.setattr(libdevice, name, standing_in(function))
    # numpy adds whole numbers up in int64, a device in the type they have
    monkeypatch.setattr(ReduceOps, "sum", wrapping_sum)
