"""Errors of the coders."""

from kerntree.cache.errors import KerntreeError


class CannotLowerError(KerntreeError):
    """These operators do not fit one kernel of ours; the message says why."""
