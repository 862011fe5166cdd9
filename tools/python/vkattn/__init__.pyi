from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NoReturn, Protocol, SupportsFloat, overload, type_check_only

import numpy as np
import numpy.typing as npt

__all__ = ["Array", "Device", "DeviceError", "DeviceLost", "InternalError", "Plan", "array", "attention",
           "attention_backward", "bench", "block_map", "combine", "conformance", "devices", "empty", "plan",
           "version"]

_Host = npt.NDArray[Any]

@type_check_only
class _HasDlpack(Protocol):
    def __dlpack__(self) -> Any: ...

_Tensor = Array | _Host | memoryview | _HasDlpack
_Numbers = Array | _Host | Sequence[float] | Sequence[Sequence[float]]
_Shape = tuple[int, int, int, int]
_KvDtype = str | tuple[str | None, str | None] | None

class DeviceError(RuntimeError): ...
class DeviceLost(DeviceError): ...
class InternalError(RuntimeError): ...

@dataclass(frozen=True)
class Device:
    index: int
    name: str
    type: str
    driver: str
    uuid: str
    vulkan: str
    subgroup_size: int
    shared_memory_bytes: int
    refusal: str

_Device = Device | int | str | None

class Array:
    __array_ufunc__: None
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    strides: tuple[int, ...]
    def __init__(self, buffer: Any, shape: Sequence[int], dtype: npt.DTypeLike, strides: tuple[int, ...] | None = None,
                 offset: int = 0) -> None: ...
    @property
    def device(self) -> Device: ...
    @property
    def ndim(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def nbytes(self) -> int: ...
    def __len__(self) -> int: ...
    def __getitem__(self, key: Any) -> Array: ...
    def __setitem__(self, key: Any, value: _Tensor) -> None: ...
    def __reduce__(self) -> NoReturn: ...
    def numpy(self) -> _Host: ...
    @property
    def __cuda_array_interface__(self) -> dict[str, Any]: ...
    def torch(self) -> Any: ...
    def __array__(self, dtype: npt.DTypeLike | None = None, copy: bool | None = None) -> _Host: ...
    def __dlpack_device__(self) -> tuple[int, int]: ...
    def __dlpack__(self, *, stream: Any = None, max_version: tuple[int, int] | None = None,
                   dl_device: tuple[int, int] | None = None, copy: bool | None = None) -> Any: ...

class Plan:
    def __init__(self, native: Any, problem: Any) -> None: ...
    def explain(self) -> dict[str, Any]: ...

def version() -> str: ...
def devices() -> list[Device]: ...
def bench(*, device: _Device = None, progress: bool = False, **options: Any) -> dict[str, Any]: ...
def conformance(*, device: _Device = None, progress: bool = False, **options: Any) -> dict[str, Any]: ...
def array(value: _Tensor, device: _Device = None) -> Array: ...
def empty(shape: Sequence[int], dtype: npt.DTypeLike = ..., device: _Device = None) -> Array: ...
@overload
def attention(q: _Tensor, k: _Tensor, v: _Tensor | None = None, *, return_lse: Literal[True] = True,
    causal: bool = False, window: tuple[int | None, int | None] = ..., softcap: SupportsFloat = 0.0,
    scale: SupportsFloat | None = None,
    mask: _Tensor | None = None, align: Literal["bottom-right", "top-left"] | int = "bottom-right",
    kv_lengths: _Numbers | None = None, query_offsets: _Numbers | None = None, slopes: _Numbers | None = None,
    slopes_of: Literal["distance", "mask"] = "distance", sinks: _Numbers | None = None,
    block_map: Array | _Host | None = None, block_size: tuple[int, int] = ..., layout: Literal["bhsd",
    "bshd"] = "bhsd", precision: str | None = None, kernel: str | None = None, tuning: str | None = None,
    num_splits: int = 0, batch_invariant: bool = False, max_scratch_bytes: int = 0,
    max_dispatch_flops: int = 0, device: _Device = None,
    dtype: str | None = None, kv_dtype: _KvDtype = None,
    key_scales: _Numbers | None = None, value_scales: _Numbers | None = None,
    value_in_key: int | None = None) -> tuple[Any, Any]: ...
@overload
def attention(q: _Tensor, k: _Tensor, v: _Tensor | None = None, *, return_lse: bool, causal: bool = False,
    window: tuple[int | None, int | None] = ..., softcap: SupportsFloat = 0.0, scale: SupportsFloat | None = None,
    mask: _Tensor | None = None, align: Literal["bottom-right", "top-left"] | int = "bottom-right",
    kv_lengths: _Numbers | None = None, query_offsets: _Numbers | None = None, slopes: _Numbers | None = None,
    slopes_of: Literal["distance", "mask"] = "distance", sinks: _Numbers | None = None,
    block_map: Array | _Host | None = None, block_size: tuple[int, int] = ..., layout: Literal["bhsd",
    "bshd"] = "bhsd", precision: str | None = None, kernel: str | None = None, tuning: str | None = None,
    num_splits: int = 0, batch_invariant: bool = False, max_scratch_bytes: int = 0,
    max_dispatch_flops: int = 0, device: _Device = None,
    dtype: str | None = None, kv_dtype: _KvDtype = None,
    key_scales: _Numbers | None = None, value_scales: _Numbers | None = None,
    value_in_key: int | None = None) -> Any: ...
def attention_backward(dout: _Tensor, q: _Tensor, k: _Tensor, v: _Tensor, out: _Tensor, lse: _Tensor, *,
    dlse: _Tensor | None = None, dbias: bool = False, dsinks: bool = False, causal: bool = False,
    window: tuple[int | None, int | None] = ..., softcap: SupportsFloat = 0.0, scale: SupportsFloat | None = None,
    mask: _Tensor | None = None, align: Literal["bottom-right", "top-left"] | int = "bottom-right",
    kv_lengths: _Numbers | None = None, query_offsets: _Numbers | None = None, slopes: _Numbers | None = None,
    slopes_of: Literal["distance", "mask"] = "distance", sinks: _Numbers | None = None,
    block_map: Array | _Host | None = None, block_size: tuple[int, int] = ..., layout: Literal["bhsd",
    "bshd"] = "bhsd", precision: str | None = None, kernel: str | None = None, tuning: str | None = None,
    num_splits: int = 0, batch_invariant: bool = False, max_scratch_bytes: int = 0,
    max_dispatch_flops: int = 0, device: _Device = None,
    dtype: str | None = None, kv_dtype: _KvDtype = None,
    key_scales: _Numbers | None = None, value_scales: _Numbers | None = None,
    value_in_key: int | None = None) -> tuple[Any, ...]: ...
def block_map(q: _Tensor, k: _Tensor, v: _Tensor | None = None, *, heads: int | None = None, batches: int | None = None,
    causal: bool = False, window: tuple[int | None, int | None] = ..., softcap: SupportsFloat = 0.0,
    scale: SupportsFloat | None = None, mask: _Tensor | None = None, align: Literal["bottom-right",
    "top-left"] | int = "bottom-right", kv_lengths: _Numbers | None = None, query_offsets: _Numbers | None = None,
    slopes: _Numbers | None = None, slopes_of: Literal["distance", "mask"] = "distance",
    sinks: _Numbers | None = None, block_map: Array | _Host | None = None, block_size: tuple[int, int] = ...,
    layout: Literal["bhsd", "bshd"] = "bhsd", precision: str | None = None, kernel: str | None = None,
    tuning: str | None = None, num_splits: int = 0, batch_invariant: bool = False, max_scratch_bytes: int = 0,
    max_dispatch_flops: int = 0, device: _Device = None,
    dtype: str | None = None, kv_dtype: _KvDtype = None,
    key_scales: _Numbers | None = None, value_scales: _Numbers | None = None,
    value_in_key: int | None = None) -> Any: ...
def combine(parts: _Tensor | Sequence[_Tensor], lses: _Tensor | Sequence[_Tensor], *, sinks: _Numbers | None = None,
            device: _Device = None, dtype: str | None = None) -> tuple[Any, Any]: ...
def plan(q: _Tensor | _Shape, k: _Tensor | _Shape, v: _Tensor | _Shape | None = None, *, backward: bool = False,
    dlse: bool = False, dbias: bool = False, dsinks: bool = False,
    causal: bool = False, window: tuple[int | None, int | None] = ..., softcap: SupportsFloat = 0.0,
    scale: SupportsFloat | None = None, mask: _Tensor | None = None, align: Literal["bottom-right",
    "top-left"] | int = "bottom-right", kv_lengths: _Numbers | None = None, query_offsets: _Numbers | None = None,
    slopes: _Numbers | None = None, slopes_of: Literal["distance", "mask"] = "distance",
    sinks: _Numbers | None = None, block_map: Array | _Host | None = None, block_size: tuple[int, int] = ...,
    layout: Literal["bhsd", "bshd"] = "bhsd", precision: str | None = None, kernel: str | None = None,
    tuning: str | None = None, num_splits: int = 0, batch_invariant: bool = False, max_scratch_bytes: int = 0,
    max_dispatch_flops: int = 0, device: _Device = None,
    dtype: str | None = None, kv_dtype: _KvDtype = None,
    key_scales: _Numbers | None = None, value_scales: _Numbers | None = None,
    value_in_key: int | None = None) -> Plan: ...
