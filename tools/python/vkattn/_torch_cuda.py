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


def array_of(tensor, session):
    """An Array of a tensor: over the same memory where that is an Array's, else with a copy, which the current stream
    makes on the device. bfloat16 becomes uint16."""
    tensor = tensor.detach().resolve_neg()
    dtype, cuda = _NUMPY_DTYPES.get(tensor.dtype), session.cuda()
    if dtype is None:
        raise TypeError(f"{tensor.dtype} is no type of vkattn's arrays")
    shape, item = tuple(tensor.shape), dtype.itemsize
    strides = tuple(stride * item for stride in tensor.stride())
    buffer = cuda.buffers.get(tensor.untyped_storage().data_ptr())
    if buffer is not None and tensor.numel() and (not shape or shape[-1] == 1 or strides[-1] == item):
        return Array(buffer, shape, dtype, strides, tensor.data_ptr() - buffer.cuda_address())
    if 0 not in strides[:-1]:
        made = allocated(session, shape, dtype)
        if tensor.numel():
            tensor_of(made, tensor.dtype).copy_(tensor)
        return made
    # An axis along which nothing changes stays as it is: a mask that is shared by heads is copied once.
    alike = [stride == 0 and axis < tensor.dim() - 1 for axis, stride in enumerate(strides)]
    made = array_of(tensor[tuple(slice(0, 1) if same else slice(None) for same in alike)].clone(), session)
    return Array(made._buffer, shape, dtype, tuple(0 if same else n for same, n in zip(alike, made.strides)))


def session_for(torch_device, device=None):
    """The session of a tensor's device. NotImplementedError where vkattn does not have it, or `device` is another."""
    index = torch_device.index
    if device is not None:
        session = session_of(device)
    else:
        uuid = driver().uuid(index)
        session = next((session_of(found) for found in devices() if found.uuid == uuid and not found.refusal), None)
        if session is None:
            raise NotImplementedError(f"cuda:{index} is no Vulkan device of this machine")
    if session.cuda().ordinal != index:
        raise NotImplementedError(f"{session.device.name!r} is not cuda:{index}")
    return session


def is_usable():
    """If PyTorch's current device is one of vkattn's."""
    try:
        return torch.cuda.is_available() and bool(session_for(torch.device("cuda", torch.cuda.current_device())))
    except NotImplementedError:
        return False


class CudaPlace:
    """How the tensors of an operator become Arrays, and Arrays become tensors, on the tensors' own device."""

    def __init__(self, torch_device, session):
        self._device, self._session = torch_device, session

    @contextlib.contextmanager
    def ordered(self):
        """What is done within is in the order of PyTorch's current stream."""
        if torch.cuda.is_current_stream_capturing():
            raise RuntimeError("vkattn's work cannot be captured in a CUDA graph")
        with self._session.cuda().ordered_by(torch.cuda.current_stream(self._device).cuda_stream):
            yield

    def array(self, tensor):
        """An Array of a tensor of this device, or a numpy array of one on the CPU."""
        return array_of(tensor, self._session) if tensor.is_cuda else tensor.detach().numpy()

    def tensor(self, array, like):
        """A tensor of the type of another one."""
        return tensor_of(array, like.dtype)


@functools.lru_cache(maxsize=None)
def place_of(torch_device, device):
    """A CudaPlace, or None where vkattn does not have this device, of which it warns."""
    try:
        return CudaPlace(torch_device, session_for(torch_device, device))
    except NotImplementedError as error:
        warnings.warn(f"CUDA tensors go through the host's memory, because {error}", stacklevel=5)
        return None
