"""The run journal: append-only, one event a line, checked and fsynced before it is believed."""

import hashlib
import json
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from kerntree.cache.errors import CacheError

_UNWRITTEN = b"\0" * 16  # what a file system shows of a block that never reached the disk


@dataclass(frozen=True)
class Event:
    """One thing that happened: position from 0, unix time in seconds, kind and JSON data."""

    sequence: int
    time: float
    kind: str
    data: dict[str, Any]


class Journal:
    """The events of one run. One process writes; any number may read."""

    def __init__(self, path: Path, events: list[Event], *, dropped: int, descriptor: int) -> None:
        self.path = path
        self.dropped = dropped
        self._events = events
        self._descriptor = descriptor

    @classmethod
    def open(cls, path: Path, *, clock: Callable[[], float] = time.time) -> Self:
        """Opens or creates a journal for writing; a torn last line is cut off.

        `dropped` is the number of bytes cut. Raises `CacheError` for damage elsewhere.
        """
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            _sync_directory(path.parent)
            events, whole = _read(path)
            size = os.fstat(descriptor).st_size
            os.ftruncate(descriptor, whole)
            os.lseek(descriptor, whole, os.SEEK_SET)
            os.fsync(descriptor)
        except OSError as error:
            raise CacheError(f"the journal {path} cannot be opened: {error}") from error
        journal = cls(path, events, dropped=size - whole, descriptor=descriptor)
        journal._clock = clock
        return journal

    _clock: Callable[[], float] = time.time

    @property
    def events(self) -> tuple[Event, ...]:
        return tuple(self._events)

    def append(self, kind: str, data: dict[str, Any]) -> Event:
        """Writes one event and waits until it is on the disk.

        Raises `CacheError` if that fails (a full disk); the journal then ends with the event
        before.
        """
        event = Event(len(self._events), self._clock(), kind, json.loads(json.dumps(data)))
        line = _encode(event)
        start = os.lseek(self._descriptor, 0, os.SEEK_CUR)
        try:
            written = 0
            while written < len(line):
                written += os.write(self._descriptor, line[written:])
            os.fsync(self._descriptor)
        except OSError as error:
            os.ftruncate(self._descriptor, start)
            os.lseek(self._descriptor, start, os.SEEK_SET)
            raise CacheError(
                f"the journal {self.path} cannot be written: {error}; "
                "free some space, then resume the run"
            ) from error
        self._events.append(event)
        return event

    def close(self) -> None:
        """Closes the file; may be called twice."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def read_events(path: Path) -> tuple[Event, ...]:
    """The events of a journal that another process may be writing; raises `CacheError`."""
    try:
        return tuple(_read(path)[0])
    except OSError as error:
        raise CacheError(f"the journal {path} cannot be read: {error}") from error


def _read(path: Path) -> tuple[list[Event], int]:
    """All whole events, and the number of bytes they take."""
    content = path.read_bytes()
    lines = content.split(b"\n")
    events: list[Event] = []
    position = 0
    for number, line in enumerate(lines[:-1], start=1):
        event = _decode(line, len(events))
        if event is None:
            if position + len(line) + 1 == len(content) and _UNWRITTEN in line:
                break  # the last line: its end may reach the disk before its middle
            raise CacheError(
                f"{path}, line {number}: damaged; restore the file, "
                f"or keep its first {number - 1} lines to resume from there"
            )
        events.append(event)
        position += len(line) + 1
    return events, position


def _encode(event: Event) -> bytes:
    body = json.dumps(
        {
            "sequence": event.sequence,
            "time": event.time,
            "kind": event.kind,
            "data": event.data,
        },
        separators=(",", ":"),
    )
    return f'{{"checksum":"{_checksum(body)}",{body[1:]}\n'.encode()


def _decode(line: bytes, sequence: int) -> Event | None:
    prefix, length = b'{"checksum":"', 16
    if not line.startswith(prefix) or line[len(prefix) + length :][:2] != b'",':
        return None
    body = b"{" + line[len(prefix) + length + 2 :]
    try:
        text = body.decode()
        if _checksum(text).encode() != line[len(prefix) :][:length]:
            return None
        fields = json.loads(text)
    except ValueError:
        return None
    if fields["sequence"] != sequence:
        return None
    return Event(sequence, fields["time"], fields["kind"], fields["data"])


def _checksum(body: str) -> str:
    return hashlib.sha256(body.encode()).hexdigest()[:16]


def _sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
