"""The kinds of inputs on which a candidate is checked; names only, torch-free."""

from typing import Literal, get_args

Distribution = Literal[
    "given",  # what `get_inputs` yields under the seed
    "shifted",  # a constant of a few standard deviations added to each tensor
    "scaled",  # eight times as large
    "sign_flipped",
    "heavy_tailed",  # each element times a log-normal factor
    "outliers",  # a few very large elements, in the first, a middle and the last rows and columns
    "zeros",  # a quarter of the elements, and the whole last row, exactly zero
    "strided",  # the given values in storage that is not contiguous
]

DISTRIBUTIONS: tuple[Distribution, ...] = get_args(Distribution)
"""All of them, in the order in which a check runs them. Only float tensors are changed."""
