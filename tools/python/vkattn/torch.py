"""Attention for PyTorch, with gradients.

Tensors on the CPU are not copied on the host; those of other devices go through the host's memory. The work is done on
the device that `device` names, as in vkattn.attention().

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

from . import attention as _forward
from . import attention_backward as _backward

_FLOATS = (torch.float32, torch.float16, torch.bfloat16)


def _to_numpy(tensor):
    """The tensor's memory as a numpy array; bfloat16 as uint16."""
    tensor = tensor.detach().cpu()
    return tensor.view(torch.int16).numpy().view(np.uint16) if tensor.dtype == torch.bfloat16 else tensor.numpy()


def _to_torch(array, like):
    """The array's memory as a tensor of the type and device of another one."""
    tensor = torch.from_numpy(array.view(np.int16) if array.dtype == np.uint16 else array)
    return (tensor.view(torch.bfloat16) if like.dtype == torch.bfloat16 else tensor).to(like.device)


def _checked(tensor, name, like=None):
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"{name}: {type(tensor).__name__} is no torch.Tensor")
    if tensor.dtype not in _FLOATS:
        raise TypeError(f"{name}: {tensor.dtype} is not torch.float32, torch.float16 or torch.bfloat16")
    if like is not None and (tensor.dtype != like.dtype or tensor.device != like.device):
        raise TypeError(f"{name}: {tensor.dtype} on {tensor.device} is not {like.dtype} on {like.device}, as q is")
    return tensor


def _own(option):
    """An option that stays as it is until the backward, whatever becomes of the caller's array."""
    if isinstance(option, torch.Tensor):
        return _to_numpy(option).copy()
    return option.copy() if isinstance(option, np.ndarray) else option


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, mask, sinks, options):
        options = {name: _own(option) for name, option in options.items()}
        options["dtype"] = "bfloat16" if q.dtype == torch.bfloat16 else None
        given = {name: x for name, x in (("mask", mask), ("sinks", sinks)) if x is not None}
        out, lse = _forward(*map(_to_numpy, (q, k, v)), **{name: _to_numpy(x) for name, x in given.items()}, **options)
        result = _to_torch(out, q)
        # PyTorch sees to it that none of them is changed before the backward.
        ctx.save_for_backward(q, k, v, result, torch.from_numpy(lse), *given.values())
        ctx.names, ctx.options = list(given), options
        return result

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, dout):
        q, k, v, out, lse, *rest = ctx.saved_tensors
        given = dict(zip(ctx.names, rest))
        options = {name: option for name, option in ctx.options.items() if name != "num_splits"}
        if str(options.get("kernel")).startswith("rows"):
            del options["kernel"]  # it has no backward
        wants = {"mask": ctx.needs_input_grad[3], "sinks": ctx.needs_input_grad[4]}
        arrays = {name: _to_numpy(x) for name, x in given.items()}
        found = list(_backward(*map(_to_numpy, (dout, q, k, v, out)), lse.numpy(), dbias=wants["mask"],
                               dsinks=wants["sinks"], **arrays, **options))
        gradients = [_to_torch(found.pop(0), like) for like in (q, k, v)]
        for name in ("mask", "sinks"):
            gradients.append(_to_torch(found.pop(0), given[name]) if wants[name] else None)
        return (*gradients, None)


def attention(q, k, v, *, mask=None, sinks=None, **options):
    """vkattn.attention() of tensors, with gradients for q, k, v, a float mask and sinks of float32. Returns out.

    The options are vkattn.attention()'s. A gradient of a gradient is refused by PyTorch.

    >>> import torch, vkattn.torch
    >>> x = torch.ones(1, 1, 3, 8)
    >>> bool((vkattn.torch.attention(x, x, x) == 1).all())
    True
    """
    for unfit in ("return_lse", "dtype"):
        if unfit in options:
            raise TypeError(f"{unfit}: is no option of vkattn.torch.attention")
    _checked(q, "q")
    _checked(k, "k", q)
    _checked(v, "v", q)
    if mask is not None and getattr(mask, "dtype", None) != torch.bool:
        _checked(mask, "mask", q)
    if sinks is not None and (not isinstance(sinks, torch.Tensor) or sinks.dtype != torch.float32):
        raise TypeError("sinks: is no torch.Tensor of torch.float32")
    for name, option in options.items():
        if isinstance(option, torch.Tensor) and option.requires_grad:
            raise NotImplementedError(f"{name}: has no gradient here; detach() it")
    return _Attention.apply(q, k, v, mask, sinks, options)


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
    for tensor, name in ((query, "query"), (key, "key"), (value, "value")):
        if _checked(tensor, name).dim() < 2:
            raise ValueError(f"{name}: has {tensor.dim()} dimensions, not at least 2")
    if not enable_gqa and query.dim() > 2 and key.dim() > 2 and key.shape[-3] not in (1, query.shape[-3]):
        raise ValueError(f"key: {key.shape[-3]} heads are not the {query.shape[-3]} of query; enable_gqa allows that")
    leading = query.shape[:-2]
    batch, heads = leading[:-1], leading[-1] if leading else 1

    def four(tensor, own_heads):
        try:
            whole = tensor.expand(*batch, own_heads, *tensor.shape[-2:]) if leading else tensor
        except RuntimeError as error:
            raise ValueError(f"key and value do not broadcast to query: {error}") from None
        return whole.reshape(math.prod(batch), own_heads, *tensor.shape[-2:])

    kv_heads = key.shape[-3] if enable_gqa and key.dim() > 2 else heads
    if attn_mask is not None and not isinstance(attn_mask, torch.Tensor):
        raise TypeError(f"attn_mask: {type(attn_mask).__name__} is no torch.Tensor")
    if attn_mask is not None:
        scores = (*leading, query.shape[-2], key.shape[-2])
        try:
            whole = attn_mask.broadcast_to(scores)
        except RuntimeError as error:
            raise ValueError(f"attn_mask: {error}") from None
        if query.dim() > 4 or attn_mask.dim() == 0:
            attn_mask = whole.reshape(-1, heads, *scores[-2:])
    out = attention(four(query, heads), four(key, kv_heads), four(value, kv_heads), mask=attn_mask, causal=is_causal,
                    align="top-left", scale=scale, device=device)
    return out.reshape(*leading, *out.shape[-2:])
