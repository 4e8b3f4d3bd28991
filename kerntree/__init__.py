"""kerntree makes a PyTorch operator fast: a tree search over plans, every kernel measured."""

from kerntree.cache.errors import KerntreeError

__all__ = ["KerntreeError", "__version__"]

__version__ = "0.1.0"
