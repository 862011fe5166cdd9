"""Attention for PyTorch, with gradients.

Tensors on the CPU are not copied on the host, and the device is the one that `device` names, as in vkattn.attention().
CUDA tensors stay on their own device, in the order of its current stream. Others go through the host's memory.

>>> import torch, vkattn.torch
>>> q, k, v = (torch.randn(1, 2, 9, 16, requires_grad=True) for _ in range(3))
>>> out = vkattn.torch.attention(q, k, v, causal=True)
>>> out.sum().backward()
>>> q.grad.shape
torch.Size([1, 2, 9, 16])
"""

import math

import numpy as np
import torch
from torch.autograd import forward_ad

from . import _torch_flash, _torch_ops
from ._device import open_sessions

_FLOATS = (torch.float32, torch.float16, torch.bfloat16)


def _checked(tensor, name, like=None):
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"{name}: {type(tensor).__name__} is no torch.Tensor")
    if tensor.layout != torch.strided:
        raise TypeError(f"{name}: {tensor.layout} is not torch.strided")
    if forward_ad.unpack_dual(tensor).tangent is not None:
        raise NotImplementedError(f"{name}: has a tangent, and vkattn has no forward mode of differentiation")
    if tensor.dtype not in _FLOATS:
        raise TypeError(f"{name}: {tensor.dtype} is not torch.float32, torch.float16 or torch.bfloat16")
    if like is not None and (tensor.dtype != like.dtype or tensor.device != like.device):
        raise TypeError(f"{name}: {tensor.dtype} on {tensor.device} is not {like.dtype} on {like.device}, as q is")
    return tensor


def _as_tensor(option, name):
    """Numbers as a tensor, which stays as it is until the backward, whatever becomes of the caller's array."""
    if isinstance(option, torch.Tensor) and option.dtype == torch.bfloat16:
        return option.float()  # numpy has no bfloat16
    if option is None or isinstance(option, torch.Tensor):
        return option
    array = np.asarray(option)
    if array.dtype.kind not in "biuf":
        raise TypeError(f"{name}: {array.dtype} holds no numbers")
    # PyTorch has neither all unsigned types nor other byte orders, nor negative strides.
    kind = np.int64 if array.dtype.kind == "u" and array.dtype.itemsize > 1 else array.dtype.newbyteorder("=")
    return torch.from_numpy(array.astype(kind, order="C"))


def attention(q, k, v, *, mask=None, sinks=None, return_lse=False, **options):
    """vkattn.attention() of tensors, with gradients for q, k, v, a float mask and sinks of float32.

    The options are vkattn.attention()'s. Returns out, and with return_lse=True (out, lse), whose gradients both count.
    A gradient of a gradient is refused by PyTorch.

    >>> import torch, vkattn.torch
    >>> x = torch.ones(1, 1, 3, 8)
    >>> bool((vkattn.torch.attention(x, x, x) == 1).all())
    True
    """
    _checked(q, "q")
    _checked(k, "k", q)
    _checked(v, "v", q)
    for name, tensor in (("q", q), ("k", k), ("v", v)):
        if tensor.dim() != 4:
            raise ValueError(f"{name}: has {tensor.dim()} axes, not 4")
    if mask is not None and getattr(mask, "dtype", None) != torch.bool:
        _checked(mask, "mask", q)
    if sinks is not None and (not isinstance(sinks, torch.Tensor) or sinks.dtype != torch.float32):
        raise TypeError("sinks: is no torch.Tensor of torch.float32")
    for name, option in options.items():
        if name not in _torch_ops.OPTIONS:
            raise TypeError(f"{name}: is no option of vkattn.torch.attention()")
        if isinstance(option, torch.Tensor) and option.requires_grad:
            raise NotImplementedError(f"{name}: has no gradient here; detach() it")
    options = {name: _as_tensor(option, name) if name in _torch_ops.TENSORS else option
               for name, option in options.items()}
    values = _torch_ops.values_of({"mask": mask, "sinks": sinks, **options})
    out, lse = _torch_ops.attention(q, k, v, *values)
    return (out, lse) if return_lse else out


def _under_autocast(tensors):
    """The tensors in the type that torch.autocast says, where it is on."""
    kind = tensors[0].device.type
    if hasattr(torch, "get_autocast_dtype"):
        dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None
    else:
        is_on = torch.is_autocast_cpu_enabled() if kind == "cpu" else torch.is_autocast_enabled()
        dtype = torch.get_autocast_cpu_dtype() if kind == "cpu" else torch.get_autocast_gpu_dtype()
        dtype = dtype if is_on else None
    if dtype is None:
        return tensors
    return [x.to(dtype) if isinstance(x, torch.Tensor) and x.dtype in _FLOATS else x for x in tensors]


def scaled_dot_product_attention(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, *, scale=None,
                                 enable_gqa=False, device=None):
    """torch.nn.functional.scaled_dot_product_attention, by vkattn.

    query: (..., L, E), key: (..., S, E), value: (..., S, Ev). is_causal counts from the top left, as PyTorch has it. A
    bool mask attends where it is True, a float mask is added; it broadcasts to (..., L, S). A row that may see no key
    is 0. dropout_p has to be 0. With enable_gqa the heads of key and value divide those of query.

    >>> import torch, vkattn.torch
    >>> x = torch.ones(2, 3, 8)
    >>> vkattn.torch.scaled_dot_product_attention(x, x, x, is_causal=True).shape
    torch.Size([2, 3, 8])
    """
    if dropout_p != 0:
        raise NotImplementedError("dropout_p: vkattn has no dropout, it is exact")
    if is_causal and attn_mask is not None:
        raise ValueError("attn_mask: goes without is_causal")
    query, key, value, attn_mask = _under_autocast([query, key, value, attn_mask])
    for tensor, name in ((query, "query"), (key, "key"), (value, "value")):
        if _checked(tensor, name).dim() < 2:
            raise ValueError(f"{name}: has {tensor.dim()} dimensions, not at least 2")
    if attn_mask is not None and (not isinstance(attn_mask, torch.Tensor) or attn_mask.dtype != torch.bool):
        _checked(attn_mask, "attn_mask")
    kind = query.dtype
    if attn_mask is not None and attn_mask.dtype == torch.float32:  # PyTorch allows it beside 16-bit tensors
        query, key, value = query.float(), key.float(), value.float()
    leading, heads, kv_heads = _leading(query, key, value, enable_gqa)
    batch = math.prod(leading[:-1])

    def four(tensor, own_heads):
        return tensor.expand(*leading[:-1], own_heads, *tensor.shape[-2:]).reshape(batch, own_heads, *tensor.shape[-2:])

    if attn_mask is not None:
        scores = (*leading, query.shape[-2], key.shape[-2])
        try:
            whole = attn_mask.broadcast_to(scores)
        except RuntimeError as error:
            raise ValueError(f"attn_mask: {error}") from None
        if len(leading) > 2 or attn_mask.dim() == 0:
            attn_mask = whole.reshape(-1, heads, *scores[-2:])
    out = attention(four(query, heads), four(key, kv_heads), four(value, kv_heads), mask=attn_mask, causal=is_causal,
                    align="top-left", scale=scale, device=device)
    return out.reshape(*leading, *out.shape[-2:]).to(kind)


def _leading(query, key, value, enable_gqa):
    """The axes of the result before rows and head dims, and the heads of query and of key and value."""
    tensors, names = (query, key, value), ("query", "key", "value")
    heads = [tensor.shape[-3] if tensor.dim() > 2 else 1 for tensor in tensors]
    if not enable_gqa and len(set(heads) - {1}) > 1:
        raise ValueError(f"key: {heads[1]} heads are not the {heads[0]} of query; enable_gqa allows that")
    if enable_gqa and heads[1] != heads[2]:
        raise ValueError(f"value: {heads[2]} heads are not the {heads[1]} of key")
    batch = ()
    for tensor, name in zip(tensors, names):
        try:
            batch = torch.broadcast_shapes(batch, tensor.shape[:-3])
        except RuntimeError:
            raise ValueError(f"{name}: the axes {tuple(tensor.shape[:-3])} before its heads do not broadcast to those "
                             f"of the other tensors, {tuple(batch)}") from None
    if not enable_gqa:
        heads = [max(heads) if 0 not in heads else 0] * 3
    if max(tensor.dim() for tensor in tensors) == 2:
        return (), 1, 1
    return (*batch, heads[0]), heads[0], heads[1]


def empty_cache():
    """Gives memory back to the devices that vkattn keeps for later tensors, as torch.cuda.empty_cache() does PyTorch's.

    >>> import vkattn.torch
    >>> vkattn.torch.empty_cache()
    """
    for session in open_sessions():
        session.destroy_spare_buffers()


_torch_flash.register()
