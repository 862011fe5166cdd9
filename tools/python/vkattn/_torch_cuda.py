"""PyTorch's CUDA tensors over the memory of Arrays, and Arrays over that of tensors."""

import contextlib
import functools
import warnings

import numpy as np
import torch

from ._arrays import Array, allocated
from ._cuda import driver
from ._device import devices, session_of

_DTYPES = {np.dtype(name): getattr(torch, name) for name in (
    "float16", "float32", "float64", "bool", "uint8", "int8", "int16", "int32", "int64")}
_NUMPY_DTYPES = {kind: dtype for dtype, kind in _DTYPES.items()}
_NUMPY_DTYPES[torch.bfloat16] = np.dtype(np.uint16)
_TYPESTRS = {kind: dtype.str for kind, dtype in _NUMPY_DTYPES.items()}
_TYPESTRS[torch.bfloat16] = "<i2"  # whose bits are bfloat16's: torch.as_tensor() does not know that type


def _dtype_of(dtype):
    """The type of PyTorch for one of numpy's."""
    found = _DTYPES.get(dtype) or getattr(torch, dtype.name, None)  # bfloat16 and PyTorch's newer types
    if not isinstance(found, torch.dtype):
        raise TypeError(f"PyTorch has no {dtype}")
    return found


class _View:
    """What torch.as_tensor() reads, and keeps alive: an Array as elements of a type that it knows."""

    def __init__(self, array, typestr):
        self.array = array
        self.__cuda_array_interface__ = {**array.__cuda_array_interface__, "typestr": typestr}


def tensor_of(array, dtype=None):
    """A tensor over an Array's memory. dtype: what its elements are, where the Array has another type of their size."""
    buffer, dtype = array._buffer, dtype or _dtype_of(array.dtype)
    cuda = buffer.session.cuda()
    if not array.size:
        return torch.empty(array.shape, dtype=dtype, device=cuda.torch_device)
    found = torch.as_tensor(_View(array, _TYPESTRS.get(dtype) or array.dtype.str), device=cuda.torch_device)
    cuda.buffers[found.data_ptr()] = buffer
    return found if found.dtype == dtype else found.view(dtype)


def _strides_of(tensor, item_bytes):
    """In bytes. Axes of one element may have any stride in PyTorch; here it is as if the axes inside were dense."""
    strides, dense = [], item_bytes
    for extent, stride in zip(reversed(tensor.shape), reversed(tensor.stride())):
        strides.insert(0, dense if extent == 1 else stride * item_bytes)
        dense = strides[0] * max(1, extent)
    return tuple(strides)


def array_of(tensor, session):
    """An Array of a tensor: over the same memory where that is an Array's, else with a copy, which the current stream
    makes on the device. bfloat16 becomes uint16."""
    tensor = tensor.detach().resolve_neg()
    dtype, cuda = _NUMPY_DTYPES.get(tensor.dtype), session.cuda()
    if dtype is None:
        raise TypeError(f"{tensor.dtype} is no type of vkattn's arrays")
    shape = tuple(tensor.shape)
    strides = _strides_of(tensor, dtype.itemsize)
    buffer = cuda.buffers.get(tensor.untyped_storage().data_ptr())
    if buffer is not None and tensor.numel() and strides[-1:] in ((), (dtype.itemsize,)):
        return Array(buffer, shape, dtype, strides, tensor.data_ptr() - buffer.cuda_address())
    # An axis along which nothing changes stays as it is: a mask that is shared by heads is copied once.
    same = [stride == 0 and extent > 1 for stride, extent in zip(strides[:-1], shape)] + [False] * bool(shape)
    part = tensor[tuple(slice(0, 1) if each else slice(None) for each in same)] if any(same) else tensor
    made = allocated(session, tuple(part.shape), dtype)
    if tensor.numel():
        tensor_of(made, tensor.dtype).copy_(part)
    if part is tensor:
        return made
    return Array(made._buffer, shape, dtype, tuple(0 if each else n for each, n in zip(same, made.strides)))


@functools.lru_cache(maxsize=None)
def _session_of_cuda(index):
    """The session of a CUDA device."""
    uuid = driver().uuid(index)
    session = next((session_of(found) for found in devices() if found.uuid == uuid and not found.refusal), None)
    if session is None:
        raise NotImplementedError(f"cuda:{index} is no Vulkan device of this machine")
    return session


def session_for(torch_device, device=None):
    """The session of a tensor's device. NotImplementedError where vkattn does not have it, or `device` is another."""
    session = _session_of_cuda(torch_device.index) if device is None else session_of(device)
    if session.cuda().ordinal != torch_device.index:
        raise NotImplementedError(f"{session.device.name!r} is not cuda:{torch_device.index}")
    return session


def in_stream_of(tensor, session):
    """What is done within is in the order of PyTorch's current stream on the tensor's device."""
    return session.cuda().ordered_by(torch.cuda.current_stream(tensor.device).cuda_stream)


def is_usable():
    """If PyTorch's current device is one of vkattn's."""
    try:
        return torch.cuda.is_available() and bool(session_for(torch.device("cuda", torch.cuda.current_device())))
    except NotImplementedError:
        return False


class CudaPlace:
    """How the tensors of an operator become Arrays, and Arrays become tensors, on the tensors' own device."""

    def __init__(self, torch_device, session, host):
        self._device, self._session, self._host = torch_device, session, host

    @contextlib.contextmanager
    def ordered(self):
        """What is done within is in the order of PyTorch's current stream."""
        with torch.cuda.device(self._device):
            if torch.cuda.is_current_stream_capturing():
                raise RuntimeError("vkattn's work cannot be captured in a CUDA graph")
        with self._session.cuda().ordered_by(torch.cuda.current_stream(self._device).cuda_stream):
            yield

    def array(self, tensor):
        """An Array of a tensor of this device; of one on the CPU what `host` gives."""
        return array_of(tensor, self._session) if tensor.is_cuda else self._host.array(tensor)

    @staticmethod
    def tensor(array, dtype, device):
        """A tensor of this type on this device."""
        return tensor_of(array, dtype).to(device)


@functools.lru_cache(maxsize=None)
def place_of(torch_device, device, host):
    """A CudaPlace; `host`, of which it warns, where vkattn does not have this device."""
    try:
        return CudaPlace(torch_device, session_for(torch_device, device), host)
    except NotImplementedError as error:
        warnings.warn(f"CUDA tensors go through the host's memory, because {error}", stacklevel=5)
        return host
