"""Regions of tensors hold the positions that they say, in each other and through views."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kerntree.coder.errors import CannotLowerError
from kerntree.coder.regions import StraddlesError, before_view, run


def positions(r):
    return [r.start + r.step * k for k in range(r.count)]


@st.composite
def runs(draw, extent):
    start, step = draw(st.integers(0, extent - 1)), draw(st.integers(1, 4))
    return run(start, step, draw(st.integers(1, (extent - 1 - start) // step + 1)))


@given(st.data(), st.integers(1, 16))
def test_positions_seen_from_other_positions(data, extent):
    mine, other = data.draw(runs(extent)), data.draw(runs(extent))
    common = set(positions(mine)) & set(positions(other))
    try:
        seen = mine.seen_from(other)
    except StraddlesError:
        assert common != set(positions(mine))
        return
    if seen is None:
        assert not common
    else:
        assert [positions(other)[k] for k in positions(seen)] == positions(mine)
        assert seen.within(other) == mine


@st.composite
def views(draw):
    """Two shapes of as many elements, each of neighbouring factors multiplied."""
    factors = draw(st.lists(st.integers(1, 4), min_size=1, max_size=4))
    shapes = []
    for _ in range(2):
        shape = [1]
        for factor in factors:
            if draw(st.booleans()):
                shape.append(factor)
            else:
                shape[-1] *= factor
        shapes.append(tuple(shape))
    region = tuple(draw(runs(extent)) for extent in shapes[1])
    return *shapes, region


@given(views())
def test_a_region_before_a_view_holds_the_same_elements_in_order(drawn):
    source, shape, region = drawn
    x = np.arange(np.prod(source)).reshape(source)
    try:
        before = before_view(region, shape, source)
    except CannotLowerError:
        return
    wanted = x.reshape(shape)[np.ix_(*map(positions, region))]
    assert (x[np.ix_(*map(positions, before))].reshape(wanted.shape) == wanted).all()


@pytest.mark.parametrize(
    ("shape", "source", "given_run", "before"),
    [
        ((12,), (3, 4), run(4, 1, 4), (run(1, 1, 1), run(0, 1, 4))),
        ((12,), (6, 2), run(1, 2, 6), (run(0, 1, 6), run(1, 1, 1))),
        ((12,), (2, 6), run(0, 2, 6), (run(0, 1, 2), run(0, 2, 3))),
    ],
)
def test_merged_dimensions(shape, source, given_run, before):
    assert before_view((given_run,), shape, source) == before
