"""What an analyst says of a measured kernel."""

from typing import Literal

from kerntree.plans.frozen import Frozen


class Finding(Frozen):
    """One finding and one recommendation, with the figure it rests on.

    `limit` is what bounds the kernel; `over_floor` is its time over the roofline floor (1.0: at
    the floor); `recommended` lists strategy kinds, the most promising first.
    """

    limit: Literal["launches", "bytes", "operations", "latency", "unknown"]
    statement: str
    over_floor: float | None = None
    recommended: tuple[str, ...] = ()
