"""What a candidate's exceptions say of it, inside its own process."""

import errno
import traceback
from collections.abc import Callable
from typing import Any

import torch

_REFUSED = {errno.EROFS, errno.EACCES, errno.EPERM, errno.ENETUNREACH, errno.ENETDOWN}
_COMPILERS = ("CompilationError", "CompileTimeAssertionFailure", "OutOfResources", "PTXASError")
_POISONED = {
    "an illegal memory access": "illegal address",
    "illegal address": "illegal address",
    "misaligned address": "misaligned address",
    "illegal instruction": "illegal instruction",
    "device-side assert": "assertion on the device",
    "hardware stack error": "stack error on the device",
    "unspecified launch failure": "launch failure",
    "launch timed out": "launch timed out",
    "invalid program counter": "invalid program counter",
    "uncorrectable ECC error": "memory error of the device",
}
"""What the driver says once a context is of no more use, and how we call it."""
_LAUNCHES = ("invalid configuration argument", "too many resources", "invalid device function",
             "no kernel image", "invalid argument", "cooperative launch")  # fmt: skip


class Refused(Exception):
    """The candidate's fault: a verdict, the stage, a message and more detail."""

    def __init__(self, verdict: str, message: str, detail: str = "") -> None:
        super().__init__(message)
        self.verdict, self.message, self.detail = verdict, message, detail


def guarded(verdict: str, call: Callable[[], Any]) -> Any:
    """Runs the candidate's code; whatever it raises becomes its verdict."""
    try:
        return call()
    except Refused:
        raise
    except BaseException as error:
        raise refusal(error, otherwise=verdict) from None


def refusal(error: BaseException, *, otherwise: str) -> Refused:
    """An exception as a verdict; `otherwise` is that of one that says nothing by itself."""
    text = f"{type(error).__name__}: {error}"
    return Refused(*_judged(error, text, otherwise), _trace(error))


def poisoned(error: BaseException) -> str:
    """Why a device's context is lost for whoever goes on with it, or nothing."""
    text = str(error)
    if not _of_device(error, text):
        return ""
    return next((name for said, name in _POISONED.items() if said in text), "")


def _judged(error: BaseException, text: str, otherwise: str) -> tuple[str, str]:
    said = str(error)
    if isinstance(error, MemoryError | torch.OutOfMemoryError) or "not enough memory" in said:
        return "out of memory", text
    if _of_device(error, said) and ("out of memory" in said or "OUT_OF_MEMORY" in said):
        return "out of memory", text
    if isinstance(error, OSError) and error.errno in _REFUSED:
        return "forbidden", text
    if said.startswith("build failed"):
        return "build failed", said
    if reason := poisoned(error):
        return "crashed", f"the device's context is lost ({reason}): {text}"
    if _of_device(error, said) and any(reason in said for reason in _LAUNCHES):
        return otherwise, f"launch failure: {text}"
    if type(error).__module__.startswith("triton") and type(error).__name__ in _COMPILERS:
        return "build failed", text
    if "PassManager::run failed" in said:
        return "build failed", text
    return otherwise, text


def _of_device(error: BaseException, text: str) -> bool:
    return (
        "CUDA" in text
        or "Triton Error" in text
        or type(error).__name__ in ("AcceleratorError", "CudaError")
    )


def _trace(error: BaseException) -> str:
    return "".join(traceback.format_exception(error))
