"""Errors of runs and of the command line."""

from kerntree.cache.errors import KerntreeError


class RunError(KerntreeError):
    """A run directory cannot be used."""
