"""Attention as PyTorch operators: functions of tensors and plain values.

Where torch.library has custom operators they are registered as such, and torch.compile takes them as they are: it asks
`register_fake` for shapes, and calls the functions when the program runs. Elsewhere they are an autograd function.
"""

import contextlib
import functools
import inspect
import re

import numpy as np
import torch

from . import _torch_cuda
from . import attention as _forward
from . import attention_backward as _backward
from ._attention import _real, _whole

# The options of vkattn.attention() by their type in an operator's schema: those that are tensors here, and the others.
TENSORS = ("mask", "sinks", "slopes", "kv_lengths", "query_offsets", "block_map")
_PLAIN = {
    "causal": "bool", "window": "int[]", "softcap": "float", "scale": "float?", "align": "str", "slopes_of": "str",
    "block_size": "int[]", "layout": "str", "precision": "str?", "kernel": "str?", "tuning": "str?",
    "num_splits": "int", "batch_invariant": "bool", "max_scratch_bytes": "int", "max_dispatch_flops": "int",
    "device": "str?",
}
OPTIONS = (*TENSORS, *_PLAIN)
_TYPES = {"sinks": torch.float32, "slopes": torch.float32, "kv_lengths": torch.int32, "query_offsets": torch.int32,
          "block_map": torch.uint8}
_OPTIONS_SCHEMA = ", ".join([*(f"Tensor? {name}" for name in TENSORS),
                             *(f"{kind} {name}" for name, kind in _PLAIN.items())])


class _HostPlace:
    """How tensors become numpy arrays, and those become tensors: without a copy where the tensors are on the CPU."""

    ordered = contextlib.nullcontext

    @staticmethod
    def array(tensor):
        """The tensor's memory as a numpy array; bfloat16 as uint16."""
        tensor = tensor.detach().cpu().resolve_neg()
        return tensor.view(torch.int16).numpy().view(np.uint16) if tensor.dtype == torch.bfloat16 else tensor.numpy()

    @staticmethod
    def tensor(array, dtype, device):
        """The array's memory as a tensor of this type, copied if the device is another one."""
        tensor = torch.from_numpy(array.view(np.int16) if array.dtype == np.uint16 else array)
        return (tensor.view(torch.bfloat16) if dtype == torch.bfloat16 else tensor).to(device)


def _place_of(tensor, device):
    """Where the work of a tensor is done: on its own device if vkattn has it, else by way of the host's memory."""
    return _torch_cuda.place_of(tensor.device, device, _HostPlace) if tensor.is_cuda else _HostPlace


def values_of(options):
    """The options as an operator takes them: tensors first, in order, then plain values."""
    plain = [_plain(name, options[name]) if name in options else value for name, value in _PLAIN_DEFAULTS.items()]
    return [options.get(name) for name in TENSORS] + plain


def _plain(name, value):
    """A value of the type that the schema says. What is wrong with it says vkattn.attention, if it has that type."""
    kind = _PLAIN[name]
    if value is None and kind.endswith("?"):
        return None
    if kind == "bool":
        return bool(value)
    if kind == "int":
        return _whole(value, name, 0, 2**63 - 1)
    if kind.startswith("float"):
        return _real(value, name)
    if kind == "int[]":
        try:
            first, second = value
        except (TypeError, ValueError):
            raise ValueError(f"{name}: {value!r} is not two numbers") from None
        return tuple(-1 if side is None else _whole(side, name, -1, 2**63 - 1) for side in (first, second))
    if name == "device":
        value = getattr(value, "uuid", value)
    if name in ("align", "device") and isinstance(value, (int, np.integer)):
        value = str(int(value))
    if not isinstance(value, str):
        raise TypeError(f"{name}: {value!r} is no text")
    return value


_PLAIN_DEFAULTS = {name: _plain(name, inspect.signature(_forward).parameters[name].default) for name in _PLAIN}


def _options_of(q, values, place):
    """The options as vkattn.attention() takes them."""
    named = dict(zip(OPTIONS, values))
    options = {name: place.array(_of_type(named[name], name)) for name in TENSORS if named[name] is not None}
    options.update({name: named[name] for name in _PLAIN})
    options["window"], options["block_size"] = tuple(options["window"]), tuple(options["block_size"])
    if re.fullmatch(r"-?\d+", options["align"]):
        options["align"] = int(options["align"])
    options["dtype"] = "bfloat16" if q.dtype == torch.bfloat16 else None
    if place is not _HostPlace:
        options["device"] = None  # that of the Arrays
    return options


def _of_type(tensor, name):
    """A tensor on a GPU as one of the only type that an Array may have there; others are checked on the host."""
    wanted = _TYPES.get(name)
    if not tensor.is_cuda or wanted is None:
        return tensor
    if tensor.dtype == wanted or (tensor.dtype.is_floating_point and wanted == torch.float32) or (
            tensor.dtype == torch.bool and name == "block_map"):
        return tensor.to(wanted).contiguous()
    return tensor.cpu()


def _on_device(function):
    """Tries again with what PyTorch keeps of the device's memory."""

    @functools.wraps(function)
    def tried(*arguments):
        try:
            return function(*arguments)
        except MemoryError:
            if not torch.cuda.is_initialized():
                raise
        torch.cuda.empty_cache()  # here the first try's tensors are gone
        return function(*arguments)

    return tried


@_on_device
def forward(q, k, v, *values):
    """out and lse of tensors."""
    place = _place_of(q, values[-1])
    with place.ordered():
        out, lse = _forward(*map(place.array, (q, k, v)), **_options_of(q, values, place))
        return place.tensor(out, q.dtype, q.device), place.tensor(lse, torch.float32, q.device)


@_on_device
def backward(dout, dlse, q, k, v, out, lse, dbias, dsinks, *values):
    """The gradients of q, k and v, with `dbias` that of the mask, and with `dsinks` that of the sinks."""
    place = _place_of(q, values[-1])
    with place.ordered():
        options = _options_of(q, values, place)
        options["num_splits"] = 0  # the backward does not split the keys
        if "rows" in str(options["kernel"]):
            options["kernel"] = None  # it has no backward
        found = _backward(*map(place.array, (dout, q, k, v, out, lse.contiguous())),
                          dlse=None if dlse is None else place.array(dlse.contiguous()), dbias=dbias, dsinks=dsinks,
                          **options)
        mask, sinks = values[:2]
        likes = [q, k, v] + [mask] * dbias + [sinks] * dsinks
        return [place.tensor(array, like.dtype, like.device) for array, like in zip(found, likes)]


def _fake_forward(q, k, v, *values):
    layout = values[OPTIONS.index("layout")]
    batch, heads, rows = (q.shape[i] for i in ((0, 1, 2) if layout == "bhsd" else (0, 2, 1)))
    return (q.new_empty((*q.shape[:3], v.shape[3])),
            q.new_empty((batch, heads, rows), dtype=torch.float32))


def _fake_backward(dout, dlse, q, k, v, out, lse, dbias, dsinks, *values):
    return [x.new_empty(x.shape) for x in [q, k, v] + [values[0]] * dbias + [values[1]] * dsinks]


def _save(ctx, inputs, output):
    """Keeps for the backward what it reads. PyTorch sees to it that no tensor is changed until then."""
    count = 3 + len(TENSORS)
    ctx.save_for_backward(*inputs[:count], *output)
    ctx.plain = inputs[count:]
    ctx.set_materialize_grads(False)


def _differentiate(ctx, dout, dlse):
    q, k, v, *tensors, out, lse = ctx.saved_tensors
    dbias, dsinks = ctx.needs_input_grad[3:5]
    if dout is None:  # the lse alone has a gradient
        dout = torch.zeros_like(out)
    found = list(operators["backward"](dout, dlse, q, k, v, out, lse, dbias, dsinks, *tensors, *ctx.plain))
    gradients = found[:3] + [found[3] if dbias else None, found[-1] if dsinks else None]
    return (*gradients, *[None] * (len(OPTIONS) - 2))


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx, *inputs):
        output = operators["forward"](*inputs)
        _save(ctx, inputs, output)
        return output

    @staticmethod
    def backward(ctx, dout, dlse):
        if torch.is_grad_enabled():  # once_differentiable would be silent where dout needs no gradient
            raise RuntimeError("vkattn.torch: a gradient of a gradient was asked for (create_graph), and there is none")
        return _differentiate(ctx, dout, dlse)


def _register():
    """Both functions as operators of PyTorch, by name."""
    if not hasattr(torch.library, "custom_op"):
        return {"forward": forward, "backward": backward}
    tensors, options = "Tensor q, Tensor k, Tensor v", {"mutates_args": ()}
    if "tags" in inspect.signature(torch.library.custom_op).parameters and hasattr(torch.Tag, "cudagraph_unsafe"):
        options["tags"] = (torch.Tag.cudagraph_unsafe,)
    made = {
        "forward": torch.library.custom_op("vkattn::attention", forward, **options,
                                           schema=f"({tensors}, {_OPTIONS_SCHEMA}) -> (Tensor, Tensor)"),
        "backward": torch.library.custom_op(
            "vkattn::attention_backward", backward, **options,
            schema=f"(Tensor dout, Tensor? dlse, {tensors}, Tensor out, Tensor lse, bool dbias, bool dsinks, "
                   f"{_OPTIONS_SCHEMA}) -> Tensor[]"),
    }
    made["forward"].register_fake(_fake_forward)
    made["backward"].register_fake(_fake_backward)
    made["forward"].register_autograd(_differentiate, setup_context=lambda ctx, inputs, output:
                                      _save(ctx, inputs, output))
    return made


operators = _register()


def attention(*inputs):
    """out and lse of tensors and values, with gradients.

    torch.compile is given the operator whole. Elsewhere an autograd function stands around it: the operator's own way
    to gradients takes 150 us of the host (PyTorch 2.14), and the autograd function 6.
    """
    if hasattr(torch.library, "custom_op") and torch.compiler.is_compiling():
        return operators["forward"](*inputs)
    return _Attention.apply(*inputs)
