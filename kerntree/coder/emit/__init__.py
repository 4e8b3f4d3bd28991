"""Programs as stand-alone Python modules."""

from kerntree.coder.emit.module import emit_module

__all__ = ["emit_module"]
