"""The memo: verdicts, samples and completions by content digest, never evicted, JSON only."""

import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import diskcache
from diskcache.core import MODE_RAW

from kerntree.cache.digest import digest
from kerntree.cache.errors import CacheError

_UNLIMITED = 1 << 62  # bytes; diskcache has no word for "no limit"
Json = Any


class JsonDisk(diskcache.Disk):  # type: ignore[misc]
    """Stores JSON text under text keys and refuses every other row.

    The stock disks unpickle what they find, so that a planted row would run code.
    """

    def put(self, key: Any) -> tuple[str, bool]:
        if not isinstance(key, str):
            raise CacheError(f"memo keys are text, not {type(key).__name__}")
        return key, True

    def get(self, key: Any, raw: bool) -> str:
        if not raw or not isinstance(key, str):
            raise CacheError("the memo holds a key that kerntree did not write; delete that file")
        return key

    def store(self, value: Any, read: bool, key: Any = None) -> Any:
        if read:
            raise CacheError("the memo stores JSON values, not files")
        text = json.dumps(value, separators=(",", ":"), allow_nan=False)
        return super().store(text, False, key)

    def fetch(self, mode: int, filename: str | None, value: Any, read: bool) -> Json:
        text_file = mode == 3 and filename is not None  # diskcache.core.MODE_TEXT
        if read or not (mode == MODE_RAW or text_file):
            raise CacheError("the memo holds a row that kerntree did not write; delete that entry")
        text = super().fetch(mode, filename, value, read)
        if not isinstance(text, str):
            raise CacheError("the memo holds a row that is not text; delete that entry")
        try:
            return json.loads(text)
        except ValueError as error:
            raise CacheError(f"the memo holds a damaged row ({error}); delete that entry") from None


class Memo:
    """What is already known, shared by runs and processes.

    An entry is `{"value": …, "parts": …}`: `parts` are the named facts that its key digests, so
    that a key can explain itself.
    """

    def __init__(self, cache: diskcache.Cache, directory: Path) -> None:
        self._cache = cache
        self.directory = directory

    @classmethod
    def open(cls, directory: Path) -> Self:
        """Opens or creates the memo in a directory; raises `CacheError`."""
        try:
            directory.mkdir(parents=True, exist_ok=True)
            cache = diskcache.Cache(
                str(directory),
                disk=JsonDisk,
                eviction_policy="none",
                cull_limit=0,
                size_limit=_UNLIMITED,
                sqlite_synchronous=2,
                statistics=0,
                timeout=30,
            )
        except (OSError, sqlite3.Error) as error:
            raise CacheError(
                f"the memo in {directory} cannot be opened: {error}; "
                "choose another directory with --cache"
            ) from error
        return cls(cache, directory)

    def get(self, key: str) -> Json | None:
        """The stored value, or None; raises `CacheError` for a row we did not write."""
        entry = self._entry(key)
        return None if entry is None else entry["value"]

    def put(self, key: str, value: Json, *, parts: dict[str, Json] | None = None) -> None:
        """Stores a value durably before returning; raises `CacheError` (a full disk, say)."""
        try:
            self._cache.set(key, {"value": value, "parts": parts or {}})
        except (OSError, sqlite3.Error, diskcache.Timeout) as error:
            raise CacheError(
                f"the memo in {self.directory} cannot be written: {error}; free some space"
            ) from error

    def append(self, key: str, samples: list[float]) -> None:
        """Adds samples to those kept under a key, atomically among processes."""
        try:
            with self._cache.transact(retry=True):
                entry = self._entry(key) or {"value": [], "parts": {}}
                self._cache.set(key, {**entry, "value": [*entry["value"], *samples]})
        except (OSError, sqlite3.Error, diskcache.Timeout) as error:
            raise CacheError(
                f"the memo in {self.directory} cannot be written: {error}; free some space"
            ) from error

    def samples(self, key: str) -> list[float]:
        """All samples kept under a key, oldest first."""
        return list(self.get(key) or [])

    def explain(self, first: str, second: str) -> dict[str, tuple[Json, Json]]:
        """The parts in which two keys differ; raises `CacheError` for an unknown key."""
        one, other = (self._parts(key) for key in (first, second))
        names = sorted(one.keys() | other.keys())
        return {n: (one.get(n), other.get(n)) for n in names if one.get(n) != other.get(n)}

    def stats(self) -> dict[str, int]:
        """Number of entries and bytes on disk."""
        return {"entries": len(self._cache), "bytes": int(self._cache.volume())}

    def keys(self) -> Iterator[str]:
        """Every key, in the order of storing."""
        yield from self._cache.iterkeys()

    def close(self) -> None:
        """Closes this process's connection."""
        self._cache.close()

    def _entry(self, key: str) -> dict[str, Json] | None:
        try:
            entry = self._cache.get(key, retry=True)
        except sqlite3.Error as error:
            raise CacheError(f"the memo in {self.directory} is damaged: {error}") from error
        if entry is None:
            return None
        if not isinstance(entry, dict) or entry.keys() != {"value", "parts"}:
            raise CacheError(f"the memo's entry {key[:12]} is not one of kerntree's; delete it")
        return entry

    def _parts(self, key: str) -> dict[str, Json]:
        entry = self._entry(key)
        if entry is None:
            raise CacheError(f"the memo in {self.directory} has no entry {key[:12]}")
        return dict(entry["parts"])


def key_of(parts: dict[str, Json]) -> str:
    """The key that these named facts make."""
    return digest(parts)
