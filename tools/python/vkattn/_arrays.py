"""Arrays: numpy's on the host, Array on a device, and how both become tensors of a problem."""

import math
import operator
import sys
from typing import Optional

import numpy as np

from . import _abi
from ._buffers import Buffer, NoBuffer
from ._device import session_of

_BFLOAT16: Optional[np.dtype] = None  # then dtype="bfloat16" takes arrays of uint16 or of two bytes, "V2"
try:
    import ml_dtypes  # type: ignore

    _BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
except ImportError:
    pass

_DTYPES = {np.dtype(np.float32): _abi.VKATTN_DTYPE_FLOAT32, np.dtype(np.float16): _abi.VKATTN_DTYPE_FLOAT16}
if _BFLOAT16 is not None:
    _DTYPES[_BFLOAT16] = _abi.VKATTN_DTYPE_BFLOAT16


def dtype_of(array, name, dtype=None):
    """The VkattnDtype of an array's elements. Nothing is cast: TypeError."""
    own = np.dtype(array.dtype).newbyteorder("=")
    if dtype is not None and str(dtype) not in ("bfloat16", "float16", "float32"):
        raise TypeError(f"dtype: {dtype} is not float32, float16 or bfloat16")
    if str(dtype) == "bfloat16":
        if own == np.uint16 or own == np.dtype("V2") or own == _BFLOAT16:
            return _abi.VKATTN_DTYPE_BFLOAT16
        raise TypeError(f"{name}: {own} holds no bfloat16; they are uint16, V2 or ml_dtypes' bfloat16")
    if dtype is not None and own != np.dtype(str(dtype)):
        raise TypeError(f"{name}: is {own}, and dtype says {dtype}")
    if own not in _DTYPES:
        raise TypeError(f"{name}: {own} is not float32, float16 or bfloat16 (dtype=\"bfloat16\" says that uint16 is)")
    return _DTYPES[own]


class Array:
    """Data on a device, from one call to the next.

    Calls that are given an Array return Arrays, and copy nothing between host and device. Slices share the memory:
    their steps are positive, and 1 along the last axis. An assignment to a slice copies to the device, `numpy()` and
    `numpy.asarray()` copy to the host.

    >>> import numpy as np, vkattn
    >>> x = vkattn.array(np.arange(24, dtype=np.float32).reshape(1, 2, 3, 4))
    >>> x[:, 1:].shape
    (1, 1, 3, 4)
    >>> x[:, 1:, 2] = np.ones(4, np.float32)
    >>> np.asarray(x)[0, :, 2]
    array([[ 8.,  9., 10., 11.],
           [ 1.,  1.,  1.,  1.]], dtype=float32)
    """

    __slots__ = ("_buffer", "_offset", "shape", "dtype", "strides", "__weakref__")
    __array_ufunc__ = None  # numpy computes nothing with what is on a device

    def __init__(self, buffer, shape, dtype, strides=None, offset=0):
        self._buffer, self._offset = buffer, offset
        self.shape, self.dtype = tuple(shape), np.dtype(dtype)
        self.strides = strides if strides is not None else _dense(self.shape, self.dtype.itemsize)

    @property
    def device(self):
        """The Device that the data is on."""
        return self._buffer.session.device

    @property
    def ndim(self):
        """The number of axes."""
        return len(self.shape)

    @property
    def size(self):
        """The number of elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self):
        """The size of the elements in bytes."""
        return self.size * self.dtype.itemsize

    def __len__(self):
        if not self.shape:
            raise TypeError("len() of an Array without axes")
        return self.shape[0]

    def __repr__(self):
        return f"vkattn.Array(shape={self.shape}, dtype={self.dtype}, device={self.device.name!r})"

    def __getitem__(self, key):
        keys = list(key) if isinstance(key, tuple) else [key]
        if any(isinstance(k, bool) or not isinstance(k, (slice, int, np.integer, type(...))) for k in keys):
            raise IndexError("an Array is indexed by slices, integers and ...")
        if keys.count(Ellipsis) > 1:
            raise IndexError("an Array is indexed by one ... at most")
        if Ellipsis in keys:
            at = keys.index(Ellipsis)
            keys[at:at + 1] = [slice(None)] * (self.ndim - len(keys) + 1)
        if len(keys) > self.ndim:
            raise IndexError(f"{len(keys)} indices of an Array of {self.ndim} axes")
        keys += [slice(None)] * (self.ndim - len(keys))
        offset, shape, strides = self._offset, [], []
        for axis, (index, extent, stride) in enumerate(zip(keys, self.shape, self.strides)):
            if not isinstance(index, slice):
                if not -extent <= index < extent:
                    raise IndexError(f"index {index} of axis {axis} with {extent} elements")
                offset += int(index) % extent * stride
                continue
            start, stop, step = index.indices(extent)
            if step < 0 or (axis == self.ndim - 1 and step != 1):
                raise IndexError("steps are positive, and 1 along the last axis")
            count = len(range(start, stop, step))
            offset += start * stride if count else 0
            shape.append(count)
            strides.append(stride * step)
        return Array(self._buffer, shape, self.dtype, tuple(strides), offset)

    def __setitem__(self, key, value):
        view = self[key]
        value = value.numpy() if isinstance(value, Array) else as_host_array(value, "value")
        if value.dtype != view.dtype:
            raise TypeError(f"value: is {value.dtype}, and the Array is {view.dtype}")
        value = np.ascontiguousarray(np.broadcast_to(value, view.shape))
        if not value.size:
            return
        # The trailing axes that lie densely are written at once.
        run, axis = view.dtype.itemsize, view.ndim
        while axis and (view.strides[axis - 1] == run or view.shape[axis - 1] == 1):
            axis -= 1
            run *= view.shape[axis]
        for i, index in enumerate(np.ndindex(view.shape[:axis])):
            offset = view._offset + sum(n * stride for n, stride in zip(index, view.strides))
            view._buffer.write(value.ctypes.data + i * run, run, offset)

    def __reduce__(self):
        raise TypeError("an Array is on a device: send its numpy() instead")

    def numpy(self):
        """A copy in the host's memory."""
        if self.size == 0:
            return np.empty(self.shape, self.dtype)
        span = sum((n - 1) * s for n, s in zip(self.shape, self.strides)) + self.dtype.itemsize
        memory = np.empty(span, np.uint8)
        self._buffer.read(memory.ctypes.data, span, self._offset)
        view = np.ndarray(self.shape, self.dtype, memory, 0, self.strides)
        return view if view.flags.c_contiguous else view.copy()

    def __array__(self, dtype=None, copy=None):
        if copy is False:
            raise ValueError("an Array is on a device: its data is copied to the host")
        found = self.numpy()
        return found if dtype is None else found.astype(dtype, copy=False)

    def __dlpack_device__(self):
        return (1, 0)

    def __dlpack__(self, *, stream=None, max_version=None, dl_device=None, copy=None):
        """A copy in the host's memory, as numpy gives it."""
        if stream is not None:
            raise BufferError("the host's memory has no streams")
        if dl_device not in (None, (1, 0)):
            raise BufferError(f"dl_device: {dl_device} is not the host, (1, 0)")
        if copy is False:
            raise BufferError("an Array is on a device: its data is copied to the host")
        return self.numpy().__dlpack__()

    @property
    def __cuda_array_interface__(self):
        """The memory as CUDA sees it: AttributeError where CUDA does not have the device."""
        try:
            self._buffer.session.cuda()
        except NotImplementedError as error:
            raise AttributeError(str(error)) from None
        address = self._buffer.cuda_address() + self._offset if self.size else 0
        kind = self.dtype.str if self.dtype.kind in "biuf" else f"<u{self.dtype.itemsize}"
        return {"shape": self.shape, "typestr": kind, "data": (address, False), "version": 3, "strides": self.strides}

    def torch(self):
        """A torch CUDA tensor over the same memory, without a copy, which keeps the memory alive.

        What PyTorch has written, in any stream, the next call sees, and what a call has written, PyTorch sees.
        NotImplementedError says why where CUDA does not have the device.
        """
        from ._torch_cuda import tensor_of
        return tensor_of(self)

    def _memory(self):
        return self._buffer.address + self._offset

    def _without_data(self):
        return Array(NoBuffer(self._buffer.session), self.shape, self.dtype)

    def _made_again(self, session):
        """A dense Array of this shape and type, which are known to be right."""
        made = Array.__new__(Array)
        made._buffer, made._offset = Buffer(session, self.nbytes), 0
        made.shape, made.dtype, made.strides = self.shape, self.dtype, self.strides
        return made


def _dense(shape, item_bytes):
    strides = [item_bytes]
    for extent in reversed(shape[1:]):
        strides.insert(0, strides[0] * max(1, extent))
    return tuple(strides[:len(shape)])


def _is_cuda(value):
    """If it is a torch tensor in CUDA's memory."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor) and value.is_cuda


def as_host_array(value, name):
    """A numpy array of whatever has its data in the host's memory: by DLPack, the buffer protocol, or __array__."""
    if isinstance(value, np.ndarray):
        array = value
    elif _is_cuda(value):
        raise TypeError(f"{name}: is a tensor in CUDA's memory; vkattn.array() makes an Array of it, and vkattn.torch "
                        "takes it as it is")
    elif hasattr(value, "__dlpack__") and not hasattr(value, "__array__"):
        array = np.from_dlpack(value)
    elif hasattr(value, "__array__") or isinstance(value, (memoryview, bytearray, bytes)):
        array = np.asarray(value)
    else:
        raise TypeError(f"{name}: {type(value).__name__} is no array")
    return array.astype(array.dtype.newbyteorder("="), copy=False)


def _span(array):
    """Bytes from the first element to the last of an array without negative strides."""
    return sum((n - 1) * s for n, s in zip(array.shape, array.strides)) + array.itemsize if array.size else 0


def upload(session, array):
    """An Array with the content of a numpy array. Strides that the library takes stay, where they waste little."""
    item = array.itemsize
    if array.dtype.kind not in "biufV" or array.dtype.hasobject:
        raise TypeError(f"value: {array.dtype} holds no numbers")
    fits = array.size and array.ndim and array.strides[-1] in (item, 0 if array.shape[-1] == 1 else item)
    if not (fits and all(s >= 0 and s % item == 0 for s in array.strides) and _span(array) <= 2 * array.nbytes):
        array = np.ascontiguousarray(array).reshape(array.shape)
    buffer = Buffer(session, _span(array))
    buffer.write(array.ctypes.data, _span(array))
    return Array(buffer, array.shape, array.dtype, array.strides if array.size else None)


def array(value, device=None):
    """An Array on a device, with a copy of the data of a numpy array.

    A torch CUDA tensor is copied on its own device; one over the memory of an Array becomes an Array without a copy.

    >>> import numpy as np, vkattn
    >>> vkattn.array(np.zeros((1, 2, 3, 4), np.float16)).nbytes
    48
    """
    if isinstance(value, Array):
        if device is not None and session_of(device) is not value._buffer.session:
            return array(value.numpy(), device)
        return value
    if _is_cuda(value):
        from ._torch_cuda import array_of, in_stream_of, session_for
        session = session_for(value.device, device)
        with in_stream_of(value, session):
            return array_of(value, session)
    return upload(session_of(device), as_host_array(value, "value"))


def empty(shape, dtype=np.float32, device=None):
    """An Array on a device, whose content is not defined.

    >>> import vkattn
    >>> vkattn.empty((2, 4), "float16").shape
    (2, 4)
    """
    return allocated(session_of(device), shape, np.dtype(dtype))


def allocated(session, shape, dtype):
    """An Array in new memory of a session."""
    try:
        shape = tuple(operator.index(extent) for extent in shape)
    except TypeError:
        raise TypeError(f"shape: {shape!r} is not of whole numbers") from None
    size_bytes = math.prod(shape) * dtype.itemsize
    if min(shape, default=0) < 0 or size_bytes >= 1 << 62:
        raise ValueError(f"shape: {shape!r} is no shape of an array")
    return Array(Buffer(session, size_bytes), shape, dtype)


class Tensors:
    """The arrays of one call on a device: uploaded where they are not there, and kept as long as it needs them."""

    def __init__(self, device, *values):
        sessions = {value._buffer.session for value in values if isinstance(value, Array)}
        if len(sessions) > 1:
            raise ValueError("the Arrays are on several devices")
        self.on_device = bool(sessions)
        self.session = sessions.pop() if sessions else session_of(device)
        if self.on_device and device is not None and session_of(device) is not self.session:
            raise ValueError("device: the Arrays are on another one")
        self._kept = []

    def place(self, value, name):
        """An Array of any array."""
        if not isinstance(value, Array):
            value = upload(self.session, as_host_array(value, name))
        elif value.ndim and value.shape[-1] > 1 and value.strides[-1] != value.dtype.itemsize:
            raise ValueError(f"{name}: the elements of a row do not lie side by side")
        self._kept.append(value)
        return value

    def numbers(self, value, name, dtype, shapes):
        """The address of a dense array of numbers, of one of these shapes; 0 for one without elements."""
        if isinstance(value, Array):
            if value.dtype != dtype or value.strides != _dense(value.shape, value.dtype.itemsize):
                raise TypeError(f"{name}: an Array has to be dense, of {np.dtype(dtype)}")
        else:
            value = as_host_array(value, name) if not isinstance(value, (list, tuple)) else np.array(value)
            kinds = "iu" if np.dtype(dtype).kind in "iu" else "iuf"
            if value.dtype.kind not in kinds:
                raise TypeError(f"{name}: {value.dtype} holds no {np.dtype(dtype)}")
            limits = np.iinfo(dtype) if np.dtype(dtype).kind in "iu" else None
            if limits and value.size and (value.min() < limits.min or value.max() > limits.max):
                raise ValueError(f"{name}: a number is not within {limits.min} .. {limits.max}")
            value = np.ascontiguousarray(value, dtype)
        if value.shape not in shapes:
            raise ValueError(f"{name}: shape {value.shape} is not {' or '.join(map(str, shapes))}")
        placed = self.place(value, name)
        return placed._memory() if placed.size else 0

    def output(self, shape, dtype):
        """An Array that a call writes."""
        made = allocated(self.session, shape, np.dtype(dtype))
        self._kept.append(made)
        return made

    def result(self, array):
        """What the caller gets of an output."""
        return array if self.on_device else array.numpy()
