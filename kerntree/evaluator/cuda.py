"""The driver's memory calls, by ctypes: device memory that another process may open.

Torch's own sharing between processes counts references in shared memory that a walled-in child
does not have; a handle of the driver is sixty-four bytes that can travel as text. Nothing here
creates a context: torch's must be current (see `child_ground` and `oracle_ground`).
"""

import ctypes
import re
from typing import Any

HANDLE_BYTES = 64
_GRANULE = 2 << 20  # the driver may place smaller allocations beside others, and share both
_LAZY_PEER_ACCESS = 1
_OUT_OF_MEMORY = 2
_ATTRIBUTES = {
    "clock": 13,  # kHz
    "processors": 16,
    "memory_clock": 36,  # kHz
    "bus_width": 37,  # bits
    "cache": 38,  # bytes of L2
    "capability_major": 75,
    "capability_minor": 76,
}


class CudaError(RuntimeError):
    """A call of the driver failed; `code` is its number."""

    def __init__(self, call: str, code: int, name: str) -> None:
        super().__init__(f"{call}: {name} ({code})")
        self.code = code

    @property
    def out_of_memory(self) -> bool:
        return self.code == _OUT_OF_MEMORY


class _Handle(ctypes.Structure):
    _fields_ = (("reserved", ctypes.c_ubyte * HANDLE_BYTES),)


class Driver:
    """libcuda, as far as blocks need it. Raises `CudaError`; `OSError` where there is none."""

    def __init__(self, library: Any = None) -> None:
        self._cuda = ctypes.CDLL("libcuda.so.1") if library is None else library
        if library is None:
            _declare(self._cuda)

    def ready(self) -> bool:
        """Whether a context is current in this thread."""
        context = ctypes.c_void_p()
        self._call("cuCtxGetCurrent", ctypes.byref(context))
        return bool(context.value)

    def attribute(self, name: str, *, ordinal: int = 0) -> int:
        """A number that the driver knows of a device: a key of `_ATTRIBUTES`."""
        device, value = ctypes.c_int(), ctypes.c_int()
        self._call("cuDeviceGet", ctypes.byref(device), ordinal)
        self._call("cuDeviceGetAttribute", ctypes.byref(value), _ATTRIBUTES[name], device)
        return value.value

    def version(self) -> int:
        """The newest CUDA that the driver speaks, as 1000 x major + 10 x minor."""
        value = ctypes.c_int()
        self._call("cuDriverGetVersion", ctypes.byref(value))
        return value.value

    def allocate(self, count: int) -> int:
        """The address of `count` bytes or a few more, in memory shared with nothing else."""
        pointer = ctypes.c_uint64()
        rounded = -(-max(count, 1) // _GRANULE) * _GRANULE
        self._call("cuMemAlloc_v2", ctypes.byref(pointer), rounded)
        return pointer.value

    def free(self, address: int) -> None:
        self._call("cuMemFree_v2", address)

    def extent(self, address: int) -> int:
        """Bytes from an address to the end of its allocation."""
        base, size = ctypes.c_uint64(), ctypes.c_size_t()
        self._call("cuMemGetAddressRange_v2", ctypes.byref(base), ctypes.byref(size), address)
        return base.value + size.value - address

    def export(self, address: int) -> str:
        """The handle of an allocation, as hexadecimal text."""
        handle = _Handle()
        self._call("cuIpcGetMemHandle", ctypes.byref(handle), address)
        return bytes(handle.reserved).hex()

    def open(self, handle: str) -> int:
        """The address of another process's allocation here; raises `ValueError` for no handle."""
        if not is_handle(handle):
            raise ValueError("not the text of a memory handle")
        pointer = ctypes.c_uint64()
        raw = _Handle.from_buffer_copy(bytes.fromhex(handle))
        self._call("cuIpcOpenMemHandle_v2", ctypes.byref(pointer), raw, _LAZY_PEER_ACCESS)
        return pointer.value

    def close(self, address: int) -> None:
        """Ends what `open` began."""
        self._call("cuIpcCloseMemHandle", address)

    def _call(self, name: str, *arguments: Any) -> None:
        code = getattr(self._cuda, name)(*arguments)
        if code != 0:
            text = ctypes.c_char_p()
            self._cuda.cuGetErrorName(code, ctypes.byref(text))
            raise CudaError(name, code, (text.value or b"unknown").decode())


def is_handle(text: object) -> bool:
    """Whether a value that came from a child is the text of a handle."""
    return isinstance(text, str) and re.fullmatch("[0-9a-f]{128}", text) is not None


def _declare(cuda: Any) -> None:
    pointer, number, size = ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t
    address = ctypes.c_uint64
    for name, arguments in {
        "cuCtxGetCurrent": (pointer,),
        "cuDeviceGet": (pointer, number),
        "cuDeviceGetAttribute": (pointer, number, number),
        "cuDriverGetVersion": (pointer,),
        "cuMemAlloc_v2": (pointer, size),
        "cuMemFree_v2": (address,),
        "cuMemGetAddressRange_v2": (pointer, pointer, address),
        "cuIpcGetMemHandle": (pointer, address),
        "cuIpcOpenMemHandle_v2": (pointer, _Handle, ctypes.c_uint),
        "cuIpcCloseMemHandle": (address,),
        "cuGetErrorName": (number, pointer),
    }.items():
        function = getattr(cuda, name)
        function.argtypes, function.restype = arguments, number
