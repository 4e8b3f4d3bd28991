"""Stores past the caches: gathered in a block of their own, and written out when it is full."""

from collections.abc import Sequence
from dataclasses import dataclass

from kerntree.coder.emit.addresses import Addresses
from kerntree.coder.emit.cpp_text import STORED
from kerntree.coder.emit.lines import Lines
from kerntree.coder.emit.names import identifier
from kerntree.coder.emit.nest import Nest
from kerntree.coder.kernel import Store


@dataclass(frozen=True)
class Stream:
    """A store that goes past the caches, the block before it, and the block's place."""

    store: Store
    ctype: str
    buffer: str
    place: str


@dataclass(frozen=True)
class Streams:
    """Writes the blocks of streamed stores."""

    nest: Nest
    addresses: Addresses
    lines: Lines

    def declare(self, stores: Sequence[Store]) -> tuple[Stream, ...]:
        """Declares a block for each of the stores that can be streamed."""
        if not self.nest.wide or not self.nest.schedule.stream:
            return ()
        streamed = [store for store in stores if self._can_stream(store)]
        return tuple(self._declare(store, streamed) for store in streamed)

    def flush(self, streams: Sequence[Stream]) -> None:
        """Writes the blocks to their places; one that is not full goes through the caches."""
        for s in streams:
            self.lines.put(f"if (lanes == LANES) stream<{s.ctype}, LANES>({s.buffer}, {s.place});")
            self.lines.put(f"else memcpy({s.place}, {s.buffer}, lanes * sizeof({s.ctype}));")

    def end(self) -> None:
        """Makes a thread's streamed stores visible to others, where it has any."""
        if self.nest.schedule.stream and "stream" in self.lines.helpers:
            self.lines.put("end_stream();")

    def _can_stream(self, store: Store) -> bool:
        in_place = store.access.tensor in self.addresses.in_place
        return store.access.strides[self.nest.lane] == 1 and not in_place

    def _declare(self, store: Store, streamed: Sequence[Store]) -> Stream:
        self.lines.helpers.add("stream")
        tensor = identifier(store.access.tensor)
        mine = [s for s in streamed if s.access.tensor == store.access.tensor]
        number = f"_{mine.index(store)}" if len(mine) > 1 else ""
        stream = Stream(
            store,
            STORED[store.dtype],
            f"block_of_{tensor}{number}",
            f"{tensor} + {self.addresses.offset(store.access, lane='0')}",
        )
        self.lines.put(f"alignas(64) {stream.ctype} {stream.buffer}[LANES];")
        return stream
