"""Content digests: the names under which everything is remembered."""

import hashlib
import json
import math
from typing import Any


def canonical(value: Any) -> str:
    """The one JSON text of a value: sorted keys, no spaces, non-finite floats as tagged strings.

    Accepts None, bool, int, float, str, lists, tuples and dicts with string keys; raises
    `TypeError` for anything else, so that nothing enters a key by accident.
    """
    return json.dumps(_plain(value), sort_keys=True, separators=(",", ":"), ensure_ascii=True)


def digest(value: Any) -> str:
    """SHA-256 of the canonical text, as 64 hex digits."""
    return hashlib.sha256(canonical(value).encode()).hexdigest()


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else {"float": repr(value)}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        for key in value:
            if not isinstance(key, str):
                raise TypeError(f"a digest takes string keys only, not {key!r}")
        return {key: _plain(item) for key, item in value.items()}
    raise TypeError(f"a digest takes JSON values only, not {type(value).__name__}")
