"""Errors that planners, coders and the readers of problems raise."""

from kerntree.cache.errors import KerntreeError


class ProblemError(KerntreeError):
    """The problem file cannot be used; the message says where and why."""


class CannotRealizeError(KerntreeError):
    """A coder cannot apply this strategy to this candidate; the search tries another."""


class SettingsError(KerntreeError):
    """An option or a settings file holds a value that cannot be used."""
