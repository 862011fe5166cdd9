"""The shared libraries, and what their statuses become in Python."""

import ctypes
import os
import threading
from pathlib import Path

from . import _abi


class DeviceError(RuntimeError):
    """A Vulkan call failed on the device."""


class DeviceLost(DeviceError):
    """The device is lost: its driver has reset or removed it. Nothing of it can be used again in this process."""


class InternalError(RuntimeError):
    """A fault of vkattn. Please report the message."""


_OUT_OF_DEVICE_MEMORY = -2

_EXCEPTIONS = {
    _abi.VKATTN_INVALID_ARGUMENT: ValueError,
    _abi.VKATTN_UNSUPPORTED: NotImplementedError,
    _abi.VKATTN_OUT_OF_HOST_MEMORY: MemoryError,
    _abi.VKATTN_DEVICE_ERROR: DeviceError,
    _abi.VKATTN_DEVICE_LOST: DeviceLost,
}

# What arguments that the C ABI names are called in Python. The first part that fits counts.
_ARGUMENTS = (
    ("problem.softmax_scale", "scale"), ("problem.window_left", "window"), ("problem.window_right", "window"),
    ("problem.num_heads_q", "q"), ("problem.seqlen_q", "q"), ("problem.query_strides", "q"),
    ("problem.num_heads_kv", "k"), ("problem.seqlen_kv", "k"), ("problem.key_strides", "k"),
    ("problem.value_strides", "v"), ("problem.head_dim_qk", "q"), ("problem.head_dim_v", "v"),
    ("problem.mask", "mask"), ("problem.query_offset", "align"), ("problem.slopes", "slopes"),
    ("problem.block_rows", "block_size"), ("problem.block_keys", "block_size"), ("problem.block_map", "block_map"),
    ("problem.key_dtype", "k"), ("problem.value_dtype", "v"),
    ("problem.value_in_key", "value_in_key"),
    ("args.query_offsets", "query_offsets"), ("args.key_scales", "key_scales"), ("args.value_scales", "value_scales"),
    ("args.query", "q"), ("args.key", "k"), ("args.value", "v"),
    ("options.", ""), ("problem.", ""), ("backward.", ""), ("combine.", ""), ("args.", ""),
)


def argument(field):
    """The argument in Python that a field of the C ABI is."""
    for name, python in _ARGUMENTS:
        if field.startswith(name):
            return python or field[len(name):]
    return field


class Library:
    """Both libraries, loaded from the package's own folder or from the one that VKATTN_LIBRARY names."""

    def __init__(self):
        folder = Path(os.environ.get("VKATTN_LIBRARY") or Path(__file__).parent / "lib")
        version = f"{_abi.VKATTN_VERSION_MAJOR}.{_abi.VKATTN_VERSION_MINOR}"
        self._libraries = [ctypes.CDLL(str(folder / f"{name}.so.{version}"))
                           for name in ("libvkattn", "libvkattn_runtime")]
        self._functions = {name: self._bind(name, *kinds) for name, kinds in _abi.FUNCTIONS.items()}
        self._defaults = {}

    def _bind(self, name, result, kinds):
        function = next(getattr(library, name) for library in self._libraries if hasattr(library, name))
        function.restype, function.argtypes = result, kinds
        return function

    def __getattr__(self, name):
        return self._functions[name]

    def call(self, name, *arguments):
        """Calls a function that returns a status, and raises what it says."""
        error = _abi.VkattnError()
        if self._functions[name](*arguments, ctypes.byref(error)) != _abi.VKATTN_OK:
            raise exception_of(error)

    def text(self, name, *arguments):
        """The text that a function like vkattn_plan_describe gives."""
        length = ctypes.c_size_t()
        self.call(name, *arguments, None, 0, ctypes.byref(length))
        buffer = ctypes.create_string_buffer(length.value + 1)
        self.call(name, *arguments, ctypes.cast(buffer, ctypes.c_char_p), len(buffer), ctypes.byref(length))
        return buffer.value.decode()

    def made(self, kind):
        """A struct with its defaults."""
        defaults = self._defaults.get(kind)
        if defaults is None:
            defaults = self._defaults[kind] = bytes(self._initialized(kind))
        return kind.from_buffer_copy(defaults)

    def _initialized(self, kind):
        struct = kind()
        name = "vkattn_" + "".join("_" + c.lower() if c.isupper() else c for c in kind.__name__[6:]).lstrip("_")
        init = self._functions.get(f"{name}_init_sized")
        if init is not None:
            init(ctypes.byref(struct), ctypes.sizeof(struct))
        else:
            struct.struct_size = ctypes.sizeof(struct)
        return struct


def exception_of(error):
    """The exception of a VkattnError."""
    kind = _EXCEPTIONS.get(error.status, InternalError)
    if error.status == _abi.VKATTN_DEVICE_ERROR and error.vk_result == _OUT_OF_DEVICE_MEMORY:
        kind = MemoryError
    field, message = argument(error.field.decode()), error.message.decode()
    return kind(f"{field}: {message}" if field else message)


_lock = threading.Lock()
_library = None
if hasattr(os, "register_at_fork"):  # the child has no thread that could release what another thread held
    os.register_at_fork(after_in_child=lambda: globals().update(_lock=threading.Lock()))


def library():
    """The libraries, which are loaded when they are needed first."""
    global _library
    if _library is None:
        with _lock:
            if _library is None:
                _library = Library()
    return _library
