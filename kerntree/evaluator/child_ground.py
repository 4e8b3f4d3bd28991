"""What a candidate stands on in its process: where tensors live, how calls are timed.

On the CPU blocks are shared memory that the supervisor passes on; on a GPU they are device memory
of this process, which the oracle opens by handle.
"""

import time
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

import torch

from kerntree.evaluator.device_block import CudaLending, Lending, Lent
from kerntree.evaluator.refusal import Refused, guarded
from kerntree.evaluator.tensor_block import Layout, map_block

Call = Callable[[Any], Any]
TimedCall = Callable[[], tuple[Any, float]]
_FLUSH_BYTES = 256 << 20
_FLUSHES = 8  # writes of the flush before a call: about half a millisecond, to launch it in
_SHARE = 0.5  # of the device's memory: what torch may allocate for one candidate
_LATE_NS = 20_000  # more than this above what an idle device takes to say so
_IDLE_SAMPLES = 9
_CALLS_BEFORE_CAPTURE = 2


class Ground(Protocol):
    """A device, as a child uses it."""

    device: torch.device

    def begin(self) -> None:
        """Called once, before anything of the candidate's."""
        ...

    def take(self, layout: Layout, fds: list[int]) -> tuple[list[torch.Tensor], dict[str, Any]]:
        """A set of inputs, contiguous and this process's own, and what to reply about it."""
        ...

    def give(self, layout: Layout, fds: list[int], results: list[torch.Tensor]) -> dict[str, Any]:
        """Writes results where the oracle finds them; what to reply about it."""
        ...

    def timed(self, call: Call, args: Any) -> tuple[Any, float]:
        """The result of a call and its nanoseconds."""
        ...

    def captured(self, call: Call, args: Any) -> TimedCall:
        """The call as a graph of launches, which reads `args` and writes its result anew."""
        ...

    def settle(self) -> None:
        """Waits until all that was asked of the device is done; raises what went wrong there."""
        ...

    def release(self) -> None:
        """Lets go of memory that nobody uses."""
        ...


class CpuGround:
    """The processors."""

    device = torch.device("cpu")

    def __init__(self) -> None:
        self._clock = time.perf_counter_ns

    def begin(self) -> None:
        return

    def take(self, layout: Layout, fds: list[int]) -> tuple[list[torch.Tensor], dict[str, Any]]:
        return map_block(fds[0], layout, writable=False), {}

    def give(self, layout: Layout, fds: list[int], results: list[torch.Tensor]) -> dict[str, Any]:
        targets = map_block(fds[0], layout, writable=True)
        for target, source in zip(targets, results, strict=True):
            target.copy_(source)
        return {}

    def timed(self, call: Call, args: Any) -> tuple[Any, float]:
        before = self._clock()
        result = call(args)
        after = self._clock()
        return result, after - before

    def captured(self, call: Call, args: Any) -> TimedCall:
        raise Refused("raised", "the CPU has no graphs of launches")

    def settle(self) -> None:
        return

    def release(self) -> None:
        return


class CudaGround:
    """The current GPU, at float32's full precision unless `tf32`.

    A timed call starts with a cold L2: writes to twice its size go before it. They also keep the
    device busy while the call is launched, so that events around the call hold what the device
    did and not how fast Python is, as long as the launches take less.
    """

    def __init__(self, *, tf32: bool = False, lending: Lending | None = None) -> None:
        self.device = torch.device("cuda", 0)
        self._tf32 = tf32
        self._lending = lending
        self._flush: torch.Tensor | None = None
        self._given: Lent | None = None
        self._idle_ns = 0
        self._clock = time.perf_counter_ns
        self._wait = torch.cuda.synchronize
        self._event = partial(torch.cuda.Event, enable_timing=True)

    def begin(self) -> None:
        pin_matmul(tf32=self._tf32)
        torch.zeros(1, device=self.device)  # the context is torch's
        torch.cuda.set_per_process_memory_fraction(_SHARE)
        self._idle_ns = self._idle()  # before there is a candidate that could keep it busy
        self._lending = self._lending or CudaLending()

    def take(self, layout: Layout, fds: list[int]) -> tuple[list[torch.Tensor], dict[str, Any]]:
        lent = self._lent(layout, poison=False)
        return lent.tensors, {"handle": lent.handle}

    def give(self, layout: Layout, fds: list[int], results: list[torch.Tensor]) -> dict[str, Any]:
        self._given = None  # the block before: the oracle has read it
        self._given = self._lent(layout, poison=True)
        for target, source in zip(self._given.tensors, results, strict=True):
            target.copy_(source)
        self.settle()
        return {"handle": self._given.handle}

    def timed(self, call: Call, args: Any) -> tuple[Any, float]:
        return self._between_events(lambda: call(args))

    def captured(self, call: Call, args: Any) -> TimedCall:
        """Warmed up on a stream of its own, as torch asks, then captured."""
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(_CALLS_BEFORE_CAPTURE):
                call(args)
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            result = call(args)

        def replayed() -> Any:
            graph.replay()
            return result

        return lambda: self._between_events(replayed)

    def _between_events(self, call: Callable[[], Any]) -> tuple[Any, float]:
        if self._flush is None:
            cache = torch.cuda.get_device_properties(self.device).L2_cache_size
            count = max(2 * cache, _FLUSH_BYTES)
            self._flush = torch.empty(count, dtype=torch.uint8, device=self.device)
        start, end = self._event(), self._event()
        for _ in range(_FLUSHES):
            self._flush.zero_()
        start.record()
        result = call()
        end.record()
        guarded("raised", end.synchronize)
        before = self._clock()
        guarded("raised", self._wait)  # work on other streams counts as well
        late = self._clock() - before - self._idle_ns
        return result, start.elapsed_time(end) * 1e6 + (late if late > _LATE_NS else 0)

    def _idle(self) -> int:
        """Nanoseconds that waiting for an idle device takes at most, of a few tries."""
        tries = []
        for _ in range(_IDLE_SAMPLES):
            self._wait()
            before = self._clock()
            self._wait()
            tries.append(self._clock() - before)
        return max(tries)

    def settle(self) -> None:
        self._wait()

    def release(self) -> None:
        self._given = None
        torch.cuda.empty_cache()

    def _lent(self, layout: Layout, *, poison: bool) -> Lent:
        assert self._lending is not None, "begin comes first"
        return self._lending.lend(layout, poison=poison)


def pin_matmul(*, tf32: bool) -> None:
    """Whether this process's products and convolutions of float32 may round to TF32."""
    torch.backends.cuda.matmul.allow_tf32 = tf32
    torch.backends.cudnn.allow_tf32 = tf32


def ground_named(kind: str, *, tf32: bool = False) -> Ground:
    """The ground of a device type: `"cpu"` or `"cuda"`."""
    return CudaGround(tf32=tf32) if kind == "cuda" else CpuGround()
