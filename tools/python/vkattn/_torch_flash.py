"""vkattn under torch.nn.functional.scaled_dot_product_attention.

Newer versions of PyTorch (2.11 is one) have a registry of flash attention implementations. `import vkattn.torch`
registers one there, and torch.nn.attention.activate_flash_attention_impl("vkattn") makes PyTorch call it wherever it
would have called its own flash attention, forward and backward. On a CPU these are calls of 3 or 4 axes, one head dim,
and a mask without a gradient; float64 is refused, and with a float32 mask of 16-bit tensors the call is computed in
float32. On a GPU that CUDA and vkattn have, these are calls of 16-bit tensors without a mask.

Results lie in memory as PyTorch's own do, because torch.compile relies on it: out as query does. On a CPU lse and the
gradients lie by (batch, rows, heads), on a GPU the gradients lie as their tensors do.
"""

import importlib
import warnings

import torch

from . import _torch_cuda, _torch_ops

NAME = "vkattn"


def _values(is_causal, mask, scale):
    return _torch_ops.values_of({"causal": is_causal, "align": "top-left", "mask": mask, "scale": scale,
                                 "layout": "bshd"})


def _check(query, dropout_p):
    back = "torch.nn.attention.restore_flash_attention_impl() gives PyTorch's own back"
    if dropout_p != 0:
        raise NotImplementedError(f"dropout_p: vkattn has no dropout, it is exact; {back}")
    if query.dtype == torch.float64:
        raise NotImplementedError(f"query: vkattn has no float64; {back}")


def _computed_in(query, mask):
    """The type to compute in: that of query, or the mask's where that is wider. vkattn's masks have the query's."""
    return query.dtype if mask is None or mask.dtype == torch.bool else torch.promote_types(query.dtype, mask.dtype)


def _turned(*tensors):
    return [x.transpose(1, 2) for x in tensors]


def _placed(found, like):
    """The tensor, or a copy of it that has the type and the strides of another one."""
    if (found.stride(), found.dtype) == (like.stride(), like.dtype):
        return found
    return torch.empty_strided(like.shape, like.stride(), dtype=like.dtype, device=found.device).copy_(found)


def _forward(query, key, value, dropout_p=0.0, is_causal=False, *, attn_mask=None, scale=None):
    _check(query, dropout_p)
    kind = _computed_in(query, attn_mask)
    values = _values(is_causal, attn_mask, scale)
    found, lse = _torch_ops.forward(*_turned(*(x.to(kind) for x in (query, key, value))), *values)
    out = _placed(found.transpose(1, 2), torch.empty_like(query, device="meta"))
    return out, lse.transpose(1, 2).contiguous().transpose(1, 2)


def _backward(grad_out, query, key, value, out, logsumexp, dropout_p, is_causal, *, attn_mask=None, scale=None):
    _check(query, dropout_p)
    kind = _computed_in(query, attn_mask)
    dout, *others = _turned(*(x.to(kind) for x in (grad_out, query, key, value, out)))
    found = _torch_ops.backward(dout, None, *others, logsumexp.contiguous(), False, False,
                                *_values(is_causal, attn_mask, scale))
    return tuple(x.to(query.dtype) for x in _turned(*found))


def _cuda_forward(query, key, value, dropout_p=0.0, is_causal=False, return_debug_mask=False, *, scale=None):
    _check(query, dropout_p)
    if return_debug_mask:
        raise NotImplementedError("return_debug_mask: vkattn has no dropout, whose mask this is")
    found, lse = _torch_ops.forward(*_turned(query, key, value), *_values(is_causal, None, scale))
    out = _placed(found.transpose(1, 2), torch.empty_like(query, device="meta"))
    # Nobody reads the state of dropout's random numbers.
    state, unused = (query.new_empty(shape, dtype=torch.uint64) for shape in ((2,), ()))
    return out, lse, None, None, query.shape[2], key.shape[2], state, unused, query.new_empty(0)


def _cuda_backward(grad_out, query, key, value, out, logsumexp, _cum_seq_q, _cum_seq_k, _max_q, _max_k, dropout_p,
                   is_causal, _philox_seed, _philox_offset, *, scale=None):
    _check(query, dropout_p)
    found = _torch_ops.backward(*_turned(grad_out), None, *_turned(query, key, value, out), logsumexp, False, False,
                                *_values(is_causal, None, scale))
    likes = [torch.empty_like(*_turned(x), device="meta").transpose(1, 2) for x in (query, key, value)]
    return tuple(map(_placed, _turned(*found), likes))


class _Handle:
    """What the registry keeps while the implementation is active."""

    def __init__(self):
        self._library = torch.library.Library("aten", "IMPL")
        with warnings.catch_warnings():  # that a kernel of PyTorch's is overridden, which is what was asked for
            warnings.simplefilter("ignore")
            self._library.impl("_scaled_dot_product_flash_attention_for_cpu", _forward, "CPU")
            self._library.impl("_scaled_dot_product_flash_attention_for_cpu_backward", _backward, "CPU")
            if _torch_cuda.is_usable():
                self._library.impl("_scaled_dot_product_flash_attention", _cuda_forward, "CUDA")
                self._library.impl("_scaled_dot_product_flash_attention_backward", _cuda_backward, "CUDA")

    def remove(self):
        self._library = None


def register():
    """Makes the implementation known to PyTorch's registry, where there is one, and activates nothing."""
    try:
        registry = importlib.import_module("torch.nn.attention")
    except ImportError:
        return
    if hasattr(registry, "register_flash_attention_impl"):
        registry.register_flash_attention_impl(NAME, register_fn=_Handle)
