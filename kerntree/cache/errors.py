"""Errors of the memory, and the root of all errors that kerntree raises on purpose."""


class KerntreeError(Exception):
    """What a user can be told: the message names the thing, the reason and the remedy."""


class CacheError(KerntreeError):
    """The memo or a journal cannot be used."""
