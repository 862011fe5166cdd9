"""Attention, its gradients, and the merge of parts."""

import ctypes
import functools
import inspect
import json
import math
from dataclasses import dataclass
from typing import Tuple

import numpy as np

from . import _abi
from ._arrays import Array, Tensors, as_host_array, dtype_of
from ._buffers import NoBuffer
from ._device import NativePlan, session_of
from ._library import library

_LAYOUTS = {"bhsd": (0, 1, 2, 3), "bshd": (0, 2, 1, 3)}
_PRECISIONS = {None: 0, "storage": 0, "float16": 1, "f16": 1, "bfloat16": 2, "bf16": 2}
_CAUSES = {"distance": 0, "mask": 1}


def _byref(struct):
    return ctypes.byref(struct)


def _axes(array, layout):
    """The array with axes (batch, head, sequence, head dim)."""
    if layout == "bhsd":
        return array
    order = _LAYOUTS[layout]
    return Array(array._buffer, [array.shape[i] for i in order], array.dtype, tuple(array.strides[i] for i in order),
                 array._offset)


# ggml's types, of blocks of 32 elements, with the bytes of a block; and single bytes, 32 of which count as a block.
_BLOCKS = {"q8_0": (_abi.VKATTN_DTYPE_Q8_0, 34), "q4_0": (_abi.VKATTN_DTYPE_Q4_0, 18),
           "q4_1": (_abi.VKATTN_DTYPE_Q4_1, 20), "q5_0": (_abi.VKATTN_DTYPE_Q5_0, 22),
           "q5_1": (_abi.VKATTN_DTYPE_Q5_1, 24), "iq4_nl": (_abi.VKATTN_DTYPE_IQ4_NL, 18),
           "int8": (_abi.VKATTN_DTYPE_INT8, 32), "e4m3": (_abi.VKATTN_DTYPE_FLOAT8_E4M3, 32),
           "e5m2": (_abi.VKATTN_DTYPE_FLOAT8_E5M2, 32)}
_BLOCK_ELEMENTS = 32


def _kv_dtypes(kv_dtype):
    """What kv_dtype says of k and of v: names, or None."""
    both = (kv_dtype, kv_dtype) if isinstance(kv_dtype, str) or kv_dtype is None else kv_dtype
    if not isinstance(both, (tuple, list)) or len(both) != 2:
        raise TypeError(f"kv_dtype: {kv_dtype!r} is no name of a type, and no pair of them")
    for name in both:
        if name is not None and name not in (*_BLOCKS, "float32", "float16", "bfloat16"):
            raise ValueError(f"kv_dtype: {name!r} is none of {', '.join(_BLOCKS)}, float32, float16 and bfloat16")
    return both


def _kept_dtype(array, name, kept, dtype):
    """The VkattnDtype of keys or values. Blocks are uint8, whose last axis has the bytes of a row."""
    if kept not in _BLOCKS:
        return dtype_of(array, name, kept or dtype)
    if array.dtype != np.uint8 and (array.dtype, kept) != (np.int8, "int8"):
        raise TypeError(f"{name}: is {array.dtype}, and {kept} is held in uint8")
    kind, size = _BLOCKS[kept]
    if not array.shape or not array.shape[-1] or array.shape[-1] % size:
        raise ValueError(f"{name}: rows of {array.shape[-1] if array.shape else 0} bytes are no whole blocks of "
                         f"{kept}, which have {size} each")
    return kind


def _strides(tensor, name="", block=None):
    """Strides in elements. `block`: the bytes of 32 of them, where they are stored so."""
    if block is not None and any(s % block for n, s in zip(tensor.shape[:3], tensor.strides) if n > 1):
        raise ValueError(f"{name}: its rows, heads and batches do not lie multiples of {block} bytes apart")
    elements, item = (1, tensor.dtype.itemsize) if block is None else (_BLOCK_ELEMENTS, block)
    return _abi.VkattnStrides(*(s // item * elements for s in tensor.strides[:3]))


def _alignment(tensors):
    """What all addresses and strides, in bytes, are multiples of: at most 16."""
    taken = [stride for tensor in tensors for extent, stride in zip(tensor.shape[:3], tensor.strides) if extent > 1]
    least = min(tensor.dtype.itemsize for tensor in tensors)
    return max(math.gcd(16, *taken, *(tensor._offset for tensor in tensors)), least)


def _whole(value, name, least, most):
    """A whole number within limits, because ctypes would cut off the rest."""
    if not isinstance(value, (int, np.integer)):
        raise TypeError(f"{name}: {value!r} is no whole number")
    if not least <= value <= most:
        raise ValueError(f"{name}: {value} is not within {least} .. {most}")
    return int(value)


def _real(value, name):
    """A number, as the C ABI has it."""
    try:
        return float(value)
    except (TypeError, ValueError):
        raise TypeError(f"{name}: {value!r} is no number") from None


def _text(value, name):
    """A text for the C ABI, or None."""
    if value is None:
        return None
    if not isinstance(value, str):
        raise TypeError(f"{name}: {value!r} is no text")
    if "\0" in value:
        raise ValueError(f"{name}: {value!r} has a zero in it")
    return value.encode()


def _heads(array, name, layout):
    if len(array.shape) != 4:
        raise ValueError(f"{name}: has {len(array.shape)} axes, not the 4 of {layout!r}")
    return [_whole(array.shape[i], name, 0, 2**32 - 1) for i in _LAYOUTS[layout]]


class _Call:
    """A problem in the making: its tensors on a device, the problem of the C ABI, and the addresses of its arrays."""

    def __init__(self, q, k, v, *, causal=False, window=(-1, -1), softcap=0.0, scale=None, mask=None,
                 align="bottom-right", kv_lengths=None, query_offsets=None, slopes=None, slopes_of="distance",
                 sinks=None, block_map=None, block_size=(128, 128), layout="bhsd", precision=None, kernel=None,
                 tuning=None, num_splits=0, batch_invariant=False, max_scratch_bytes=0, max_dispatch_flops=0,
                 device=None, dtype=None, kv_dtype=None, key_scales=None, value_scales=None, value_in_key=None,
                 others=()):
        if not isinstance(layout, str) or layout not in _LAYOUTS:
            raise ValueError(f"layout: {layout!r} is not 'bhsd' or 'bshd'")
        self.layout = layout
        self.tensors = Tensors(device, q, k, v, mask, kv_lengths, query_offsets, slopes, sinks, block_map, key_scales,
                               value_scales, *others)
        self.args = {}
        self.problem = library().made(_abi.VkattnProblem)
        if (v is None) != (value_in_key is not None):
            raise TypeError("v: is None, and value_in_key does not say where values lie" if v is None else
                            "value_in_key: excludes v, which is None where values lie in keys")
        kept = _kv_dtypes(kv_dtype)
        if v is None:
            if isinstance(value_in_key, bool):
                raise TypeError(f"value_in_key: {value_in_key} does not say how many elements a value has")
            if value_scales is not None:
                raise ValueError("value_scales: values that lie in keys have key_scales")
            if kept[0] != kept[1]:
                raise ValueError(f"kv_dtype: {kept[1]!r} is another type than that of k, in which values lie")
        self._set_tensors(q, k, v, dtype, kept, value_in_key)
        self._set_bounds(causal, window, softcap, scale, align)
        self._set_mask(mask)
        self._set_arrays(kv_lengths, query_offsets, slopes, slopes_of, sinks)
        self.problem.key_scales = self._scales(key_scales, "key_scales")
        self.problem.value_scales = self._scales(value_scales, "value_scales")
        self._set_map(block_map, block_size)
        self._set_options(precision, kernel, tuning, num_splits, batch_invariant)
        self._set_limits(max_scratch_bytes, max_dispatch_flops)

    def _set_tensors(self, q, k, v, dtype, kept, value_in_key):
        p, names = self.problem, ("q", "k", "v")[:2 if v is None else 3]
        given = [x if isinstance(x, Array) else as_host_array(x, name) for x, name in zip((q, k, v), names)]
        types = [dtype_of(given[0], "q", dtype)]
        types += [_kept_dtype(x, name, kind, dtype) for x, name, kind in zip(given[1:], names[1:], kept)]
        placed = [self.tensors.place(x, name) for x, name in zip(given, names)]
        shapes = [_heads(x, name, self.layout) for x, name in zip(placed, names)]
        blocks = [None] + [_BLOCKS[kind][1] if kind in _BLOCKS else None for kind in kept]
        for shape, block in zip(shapes, blocks):
            if block is not None:
                shape[3] = shape[3] // block * _BLOCK_ELEMENTS
        if v is None:
            shapes.append(shapes[1][:3] + [_whole(value_in_key, "value_in_key", 1, max(shapes[1][3], 1))])
        if shapes[1][:3] != shapes[2][:3]:
            raise ValueError(f"v: batch, heads and sequence {tuple(shapes[2][:3])} are not those of k, "
                             f"{tuple(shapes[1][:3])}")
        if shapes[0][0] != shapes[1][0]:
            raise ValueError(f"k: batch {shapes[1][0]} is not that of q, {shapes[0][0]}")
        if shapes[0][3] != shapes[1][3]:
            raise ValueError(f"k: head dim {shapes[1][3]} is not that of q, {shapes[0][3]}")
        tensors = [_axes(x, self.layout) for x in placed]
        self.query, self.key, self.value = tensors if v is not None else [*tensors, tensors[1]]
        p.dtype, p.key_dtype = types[:2]
        p.value_dtype, p.value_in_key = types[-1], v is None
        p.batch, p.num_heads_q, p.seqlen_q, p.head_dim_qk = shapes[0]
        p.num_heads_kv, p.seqlen_kv, p.head_dim_v = shapes[1][1], shapes[1][2], shapes[2][3]
        strides = list(map(_strides, tensors, names, blocks))
        p.query_strides, p.key_strides, p.value_strides = strides[0], strides[1], strides[-1]
        self.args.update(query=self.query._memory(), key=self.key._memory(), value=self.value._memory())
        self.alike = [x for x, block in zip(tensors, blocks) if block is None]

    def _set_bounds(self, causal, window, softcap, scale, align):
        p = self.problem
        p.causal = bool(causal)
        try:
            left, right = window
        except (TypeError, ValueError):
            raise ValueError(f"window: {window!r} is not (left, right)") from None
        p.window_left, p.window_right = (-1 if side is None else _whole(side, "window", -1, 2**63 - 1)
                                         for side in (left, right))
        p.softcap = _real(softcap, "softcap")
        if scale is not None:
            p.softmax_scale = _real(scale, "scale")
            if math.isnan(p.softmax_scale):  # the C ABI's default
                raise ValueError("scale: is not a number")
        if align == "top-left":
            p.align = _abi.VKATTN_ALIGN_TOP_LEFT
        elif isinstance(align, (int, np.integer)):
            p.align, p.query_offset = _abi.VKATTN_ALIGN_OFFSET, _whole(align, "align", -2**31, 2**31)
        elif align != "bottom-right":
            raise ValueError(f"align: {align!r} is not 'bottom-right', 'top-left' or a number")

    def _set_mask(self, mask):
        if mask is None:
            return
        p = self.problem
        mask = mask if isinstance(mask, Array) else as_host_array(mask, "mask")
        if not 1 <= mask.ndim <= 4:
            raise ValueError(f"mask: has {mask.ndim} axes, not 1 to 4")
        mask = self.tensors.place(mask, "mask")
        if mask.dtype == np.bool_:
            p.mask = _abi.VKATTN_MASK_BOOL
        elif mask.dtype == self.query.dtype:
            p.mask = _abi.VKATTN_MASK_FLOAT
        else:
            try:
                p.mask, p.mask_dtype = _abi.VKATTN_MASK_FLOAT, dtype_of(mask, "mask")
            except TypeError:
                raise TypeError(f"mask: {mask.dtype} is neither bool nor float32, float16 or bfloat16") from None
        p.mask_rank = mask.ndim
        strides = [0] * (4 - mask.ndim) + [s // mask.dtype.itemsize for s in mask.strides]
        for i, extent in enumerate(mask.shape):
            p.mask_extents[i] = _whole(extent, "mask", 0, 2**32 - 1)
        p.mask_strides = _abi.VkattnStrides(*strides[:3])
        self.mask = mask
        self.args["mask"] = mask._memory()

    def _set_arrays(self, kv_lengths, query_offsets, slopes, slopes_of, sinks):
        p, args = self.problem, self.args
        if kv_lengths is not None:
            p.kv_lengths = 1
            args["kv_lengths"] = self.tensors.numbers(kv_lengths, "kv_lengths", np.int32, [(p.batch,)])
        if query_offsets is not None:
            if p.align != _abi.VKATTN_ALIGN_BOTTOM_RIGHT:
                raise ValueError("query_offsets: align says already where rows stand")
            p.align = _abi.VKATTN_ALIGN_OFFSETS
            args["query_offsets"] = self.tensors.numbers(query_offsets, "query_offsets", np.int32, [(p.batch,)])
        if slopes_of not in _CAUSES:
            raise ValueError(f"slopes_of: {slopes_of!r} is not 'distance' or 'mask'")
        if slopes is not None:
            per_batch = len(np.shape(slopes)) == 2
            p.slopes = _abi.VKATTN_SLOPES_PER_BATCH if per_batch else _abi.VKATTN_SLOPES_PER_HEAD
            p.slopes_apply = _CAUSES[slopes_of]
            shapes = [(p.num_heads_q,), (p.batch, p.num_heads_q)]
            args["slopes"] = self.tensors.numbers(slopes, "slopes", np.float32, shapes)
        if sinks is not None:
            p.sinks = 1
            args["sinks"] = self.tensors.numbers(sinks, "sinks", np.float32, [(p.num_heads_q,)])

    def _scales(self, scales, name):
        """Takes the scales of keys or values, and returns what they are of."""
        if scales is None:
            return _abi.VKATTN_SCALES_NONE
        p = self.problem
        shapes = [(1,), (p.num_heads_kv,), (p.batch, p.num_heads_kv, p.seqlen_kv)]
        if not isinstance(scales, Array) and np.shape(scales) == ():
            scales = np.reshape(np.asarray(scales), 1)
        self.args[name] = self.tensors.numbers(scales, name, np.float32, shapes)
        kinds = (_abi.VKATTN_SCALES_ONE, _abi.VKATTN_SCALES_PER_HEAD, _abi.VKATTN_SCALES_PER_ROW)
        return kinds[shapes.index(tuple(np.shape(scales)))]

    def _set_map(self, block_map, block_size):
        if block_map is None:
            return
        p = self.problem
        try:
            rows, keys = block_size
        except (TypeError, ValueError):
            raise ValueError(f"block_size: {block_size!r} is not (rows, keys)") from None
        p.block_rows, p.block_keys = (_whole(size, "block_size", 16, 2**30) for size in (rows, keys))
        shape = np.shape(block_map)
        if len(shape) != 4:
            raise ValueError(f"block_map: has {len(shape)} axes, not the 4 of (batch or 1, heads, blocks of queries, "
                             "blocks of keys)")
        p.block_map = 1
        p.block_map_batches, p.block_map_heads = (_whole(n, "block_map", 0, 2**32 - 1) for n in shape[:2])
        blocks = tuple(-(-n // size) for n, size in ((p.seqlen_q, p.block_rows), (p.seqlen_kv, p.block_keys)))
        if shape[2:] != blocks:
            raise ValueError(f"block_map: {shape[2:]} are not the {blocks} blocks of queries and keys")
        if not isinstance(block_map, Array):
            block_map = as_host_array(block_map, "block_map")
            if block_map.dtype == np.bool_:
                block_map = block_map.astype(np.uint8)
        self.args["block_map"] = self.tensors.numbers(block_map, "block_map", np.uint8, [shape])

    def _set_options(self, precision, kernel, tuning, num_splits, batch_invariant):
        self.options = library().made(_abi.VkattnOptions)
        if not isinstance(precision, (str, type(None))) or precision not in _PRECISIONS:
            raise ValueError(f"precision: {precision!r} is not 'storage', 'float16' or 'bfloat16'")
        self.options.precision = _PRECISIONS[precision]
        self.options.kernel, self.options.tuning = _text(kernel, "kernel"), _text(tuning, "tuning")
        self.options.num_splits = _whole(num_splits, "num_splits", 0, 2**31)
        self.options.batch_invariant = bool(batch_invariant)
        self.option_key = (kernel, tuning)

    def _set_limits(self, max_scratch_bytes, max_dispatch_flops):
        self.options.max_scratch_bytes = _whole(max_scratch_bytes, "max_scratch_bytes", 0, 2**63)
        self.options.max_dispatch_flops = _whole(max_dispatch_flops, "max_dispatch_flops", 0, 2**63)

    def output(self, rows_of, head_dim):
        """An array of the caller's layout, and the same with axes (batch, head, sequence, head dim)."""
        batch, heads, rows, _ = rows_of.shape
        shape = [batch, heads, rows, head_dim]
        made = self.tensors.output([shape[i] for i in _LAYOUTS[self.layout]], rows_of.dtype)
        return made, _axes(made, self.layout)

    def take(self, value, name, like, head_dim):
        """A tensor beside q, k and v, of the shape of rows of `like`."""
        placed = self.tensors.place(value, name)
        if placed.dtype != self.query.dtype:
            raise TypeError(f"{name}: is {placed.dtype}, and q is {self.query.dtype}")
        if len(placed.shape) != 4 or _axes(placed, self.layout).shape != like.shape[:3] + (head_dim,):
            raise ValueError(f"{name}: shape {placed.shape} is not that of the forward's out")
        tensor = _axes(placed, self.layout)
        self.alike.append(tensor)
        return tensor

    def plan(self, create="vkattn_plan_create", backward=None):
        """The plan, new or of an earlier call with the same problem."""
        self.problem.alignment_bytes = _alignment(self.alike)
        structs = [self.problem] + ([] if backward is None else [backward]) + [self.options]
        key = (create, self.option_key, bytes(self.problem), bytes(backward) if backward is not None else b"",
               self.options.precision, self.options.num_splits, self.options.batch_invariant,
               self.options.max_scratch_bytes, self.options.max_dispatch_flops)
        session = self.tensors.session
        return session.plan(key, lambda: NativePlan(session, create, *map(_byref, structs)))

    def arguments(self, kind, **more):
        """The addresses as the C ABI wants them."""
        args = library().made(kind)
        for name, address in {**self.args, **more}.items():
            setattr(args, name, address)
        return args


def _address(tensor):
    return tensor._memory() if tensor.size else 0


@dataclass(frozen=True)
class _Prepared:
    """What calls that are alike have in common: the plan, and what they return."""

    run: str  # the function that runs the plan, and the struct of its addresses
    kind: type
    plan: NativePlan
    outputs: Tuple[Tuple[str, Array], ...]  # names in the struct, and Arrays of the first call, without their data

    def __call__(self, arrays):
        """Runs the plan on other arrays, by their names in the struct, and returns the outputs."""
        session = arrays["query"]._buffer.session
        args, made = library().made(self.kind), []
        for name, value in arrays.items():
            if isinstance(value, Array):
                setattr(args, name, value._memory())
        for name, like in self.outputs:
            made.append(like._made_again(session))
            setattr(args, name, made[-1]._memory())
        session.run(self.run, self.plan, args)
        return made


def _likeness(function, arrays):
    """A key that calls share if one plan and one check of arguments serve them; None if there is none.

    What is not plain is then an Array, all of one device, and none is empty.
    """
    like = [function]
    session = arrays["query"]._buffer.session if isinstance(arrays["query"], Array) else None
    for name, value in arrays.items():
        if isinstance(value, Array):
            if value._buffer.session is not session or not value.size:
                return None
            like += (name, value.shape, value.strides, value.dtype, value._offset % 16)
        elif value is None or isinstance(value, (bool, int, float, str)):
            like += (name, type(value), value)
        elif isinstance(value, tuple) and all(isinstance(x, (int, str, type(None))) for x in value):
            like += (name, value)
        else:
            return None
    return tuple(like) if session is not None else None


def _with_options(function):
    """Shows the options of _Call in the signature of a function that takes them as **options."""
    own = [p for p in inspect.signature(function).parameters.values() if p.kind is not p.VAR_KEYWORD]
    names = {p.name for p in own}
    options = [p for p in inspect.signature(_Call).parameters.values()
               if p.kind is p.KEYWORD_ONLY and p.name not in names | {"others"}]
    signature = inspect.Signature(own + options)

    @functools.wraps(function)
    def checked(*arguments, **given):
        for name in given:
            if name not in signature.parameters:
                raise TypeError(f"{name}: is no option of {function.__name__}()")
        return function(*arguments, **given)

    checked.__signature__ = signature
    return checked


@_with_options
def attention(q, k, v=None, *, return_lse=True, **options):
    """Exact attention: softmax(scale * q . k^T) . v, as FlashAttention computes it.

    q: (batch, heads, rows, head dim), of float32, float16 or bfloat16; k: (batch, kv heads, keys, head dim); v: (batch,
    kv heads, keys, head dim of v), where kv heads divide heads. layout="bshd": heads and rows change places. They are
    numpy arrays, Arrays, or anything with DLPack or the buffer protocol. Strides are taken as they are where the
    library can; types are never cast.

    causal, window=(left, right), align ("bottom-right", "top-left", or the key position of row 0): what rows see; -1 is
    no bound. query_offsets: align of each batch. kv_lengths: keys of each batch.
    mask: bool (True attends) or a float type (added), 1 to 4 axes that broadcast to (batch, heads, rows, keys). Fewer
    heads that divide those of q are shared, and keys behind a last axis that is shorter, but not 1, are hidden.
    scale: default 1 / sqrt(head dim). softcap: scores become softcap * tanh(score / softcap).
    slopes: (heads) or (batch, heads), ALiBi; slopes_of="mask" multiplies the mask instead. sinks: (heads).
    block_map: (batch or 1, heads, blocks of rows, blocks of keys) of 0 hidden, 1 visible, 2 as the mask says, for
    blocks of block_size.
    precision="float16" or "bfloat16": float32 rounded for matrix units. kernel, tuning: in place of the planner's.
    num_splits: parts that the keys are split into. batch_invariant: a row's bits depend on nothing else in the batch.
    max_scratch_bytes, max_dispatch_flops: limits of the device memory for intermediate results, and of the work of one
    dispatch, between which Ctrl-C is heard; 0 is the planner's default.
    device: an index, a part of a name, a UUID or a Device. dtype="bfloat16" says that arrays of uint16 hold bfloat16.
    kv_dtype: of k and v, or of each in a pair, where it is not what their arrays and dtype say: "q8_0", "q4_0", "q4_1",
    "q5_0", "q5_1" and "iq4_nl" are ggml's blocks of 32 elements, in arrays of uint8 whose last axis has a row's bytes;
    "int8", "e4m3" and "e5m2" are single bytes in uint8 or, "int8", in int8. key_scales, value_scales: float32 that
    multiply such bytes: a number, or of shape (1), (kv heads) or (batch, kv heads, keys).
    value_in_key: without v, the value of a key is that many elements at the beginning of its row, as in latent
    attention.

    Returns out, like q with the head dim of v, and lse, float32 (batch, heads, rows), the logarithm of the sum of e to
    the scores; out alone with return_lse=False. Results are numpy arrays, or Arrays if an input is one.

    Raises ValueError and TypeError, which name the argument; NotImplementedError for what the device cannot do;
    MemoryError; DeviceError, and DeviceLost.

    >>> import numpy as np, vkattn
    >>> q, k, v = (np.ones((1, 2, n, 8), np.float32) for n in (3, 5, 5))
    >>> out, lse = vkattn.attention(q, k, v, causal=True)
    >>> out.shape, bool(np.allclose(out, 1))
    ((1, 2, 3, 8), True)
    """
    arrays = {"query": q, "key": k, "value": v, "return_lse": bool(return_lse), **options}
    likeness = _likeness("attention", arrays)
    prepared = q._buffer.session.found(likeness) if likeness is not None else None
    if prepared is not None:
        outputs = prepared(arrays)
        return tuple(outputs) if return_lse else outputs[0]
    call = _Call(q, k, v, **options)
    p = call.problem
    result, out = call.output(call.query, p.head_dim_v)
    p.out_strides = _strides(out)
    call.alike.append(out)
    lse = call.tensors.output((p.batch, p.num_heads_q, p.seqlen_q), np.float32) if return_lse else None
    plan = call.plan()
    args = call.arguments(_abi.VkattnForwardArgs, out=_address(out), lse=_address(lse) if return_lse else 0)
    call.tensors.session.run("vkattn_runtime_run_forward", plan, args)
    if likeness is not None and out.size:
        outputs = [("out", result._without_data())] + ([("lse", lse._without_data())] if return_lse else [])
        call.tensors.session.plan(likeness, lambda: _Prepared("vkattn_runtime_run_forward", _abi.VkattnForwardArgs,
                                                              plan, tuple(outputs)))
    if not return_lse:
        return call.tensors.result(result)
    return call.tensors.result(result), call.tensors.result(lse)


@_with_options
def attention_backward(dout, q, k, v, out, lse, *, dlse=None, dbias=False, dsinks=False, **options):
    """The gradients of sum(dout * out) + sum(dlse * lse), by recomputed tiles.

    dout: like out. out and lse: as attention() has returned them for the same q, k, v and options, which are
    attention()'s but for value_in_key, blocks and single bytes and, where tensors have types of their own, precision.
    dlse: float32 (batch, heads, rows), or None. Returns (dq, dk, dv), each like its tensor; with dbias=True, the
    gradient of a float mask follows, in the mask's shape, and with dsinks=True that of the sinks.
    Raises what attention() raises.

    >>> import numpy as np, vkattn
    >>> q, k, v = (np.ones((1, 2, n, 8), np.float32) for n in (3, 5, 5))
    >>> out, lse = vkattn.attention(q, k, v)
    >>> dq, dk, dv = vkattn.attention_backward(np.ones_like(out), q, k, v, out, lse)
    >>> bool(np.allclose(dv, 3 / 5))
    True
    """
    if _whole(options.get("num_splits", 0), "num_splits", 0, 2**31) > 1:
        raise ValueError("num_splits: the backward does not split the keys")
    arrays = {"dout": dout, "query": q, "key": k, "value": v, "out": out, "lse": lse, "dlse": dlse,
              "dbias_wanted": bool(dbias), "dsinks_wanted": bool(dsinks), **options}
    likeness = _likeness("attention_backward", arrays)
    prepared = q._buffer.session.found(likeness) if likeness is not None else None
    if prepared is not None:
        return tuple(prepared(arrays))
    call = _Call(q, k, v, others=(dout, out, lse, dlse), **options)
    p = call.problem
    of_out = call.take(out, "out", call.query, p.head_dim_v)
    of_dout = call.take(dout, "dout", call.query, p.head_dim_v)
    p.out_strides = _strides(of_out)
    rows = (p.batch, p.num_heads_q, p.seqlen_q)
    addresses = {"out": _address(of_out), "dout": _address(of_dout),
                 "lse": call.tensors.numbers(lse, "lse", np.float32, [rows])}
    backward = library().made(_abi.VkattnBackward)
    backward.dout_strides = _strides(of_dout)
    results = []
    for name, like, dim in (("query", call.query, p.head_dim_qk), ("key", call.key, p.head_dim_qk),
                            ("value", call.value, p.head_dim_v)):
        result, tensor = call.output(like, dim)
        call.alike.append(tensor)
        setattr(backward, f"d{name}_strides", _strides(tensor))
        addresses[f"d{name}"] = _address(tensor)
        results.append(result)
    if dlse is not None:
        backward.dlse = 1
        addresses["dlse"] = call.tensors.numbers(dlse, "dlse", np.float32, [rows])
    if dbias:
        if p.mask != _abi.VKATTN_MASK_FLOAT:
            raise ValueError("dbias: is the gradient of a float mask, and there is none")
        backward.dbias = 1
        results.append(call.tensors.output(call.mask.shape, call.mask.dtype))
        addresses["dbias"] = _address(results[-1])
    if dsinks:
        if not p.sinks:
            raise ValueError("dsinks: is the gradient of sinks, and there are none")
        backward.dsinks = 1
        results.append(call.tensors.output((p.num_heads_q,), np.float32))
        addresses["dsinks"] = _address(results[-1])
    plan = call.plan("vkattn_backward_create", backward)
    args = call.arguments(_abi.VkattnBackwardArgs, **addresses)
    call.tensors.session.run("vkattn_runtime_run_backward", plan, args)
    if likeness is not None and all(result.size for result in results):
        names = ["dquery", "dkey", "dvalue"] + ["dbias"] * bool(dbias) + ["dsinks"] * bool(dsinks)
        outputs = tuple((name, result._without_data()) for name, result in zip(names, results))
        call.tensors.session.plan(likeness, lambda: _Prepared("vkattn_runtime_run_backward", _abi.VkattnBackwardArgs,
                                                              plan, outputs))
    return tuple(map(call.tensors.result, results))


@_with_options
def block_map(q, k, v=None, *, heads=None, batches=None, **options):
    """The block map of a mask, which the device makes: an array for attention's block_map.

    The arguments are attention's, with mask and block_size. A block is 0 where the mask hides all of it, 1 where it
    hides nothing and adds nothing, and 2 otherwise. heads and batches: those of the map; default as the mask has them.

    >>> import numpy as np, vkattn
    >>> q, k, v = (np.ones((1, 1, 64, 8), np.float32) for _ in range(3))
    >>> vkattn.block_map(q, k, v, mask=np.tri(64, dtype=bool), block_size=(32, 32))[0, 0]
    array([[2, 0],
           [1, 2]], dtype=uint8)
    """
    size = options.pop("block_size", (128, 128))
    call = _Call(q, k, v, **options)
    p = call.problem
    if p.mask == _abi.VKATTN_MASK_NONE:
        raise ValueError("mask: there is none, and a block map is made of one")
    shape = (1,) * (4 - call.mask.ndim) + call.mask.shape
    if not isinstance(size, (tuple, list)) or len(size) != 2:
        raise ValueError(f"block_size: {size!r} is not (rows, keys)")
    rows, keys = (-(-n // _whole(s, "block_size", 16, 2**30)) for n, s in zip((p.seqlen_q, p.seqlen_kv), size))
    wanted = (shape[0] if batches is None else _whole(batches, "batches", 0, 2**32 - 1),
              shape[1] if heads is None else _whole(heads, "heads", 1, 2**32 - 1), rows, keys)
    made = call.tensors.output(wanted, np.uint8)
    call._set_map(made, size)
    key = ("block map", bytes(p))
    session = call.tensors.session
    plan = session.plan(key, lambda: NativePlan(session, "vkattn_block_map_create", _byref(p)))
    session.run("vkattn_runtime_run_block_map", plan, call.arguments(_abi.VkattnForwardArgs))
    return call.tensors.result(made)


def combine(parts, lses, *, sinks=None, device=None, dtype=None):
    """Merges attention over disjoint keys: parts of the out, by their lse.

    parts: (parts, batch, heads, rows, head dim), or a list of such arrays without the first axis; lses: float32 (parts,
    batch, heads, rows), likewise. sinks: (heads), if the parts were computed without them. Returns out and lse of the
    whole.

    >>> import numpy as np, vkattn
    >>> q, k, v = (np.random.default_rng(1).standard_normal((1, 2, n, 8), np.float32) for n in (3, 6, 6))
    >>> halves = [vkattn.attention(q, k[:, :, half], v[:, :, half]) for half in (slice(0, 2), slice(2, 6))]
    >>> out, lse = vkattn.combine(*zip(*halves))
    >>> bool(np.allclose(out, vkattn.attention(q, k, v)[0], atol=1e-6))
    True
    """
    tensors = Tensors(device, *_list(parts), *_list(lses), sinks)
    parts, lses = (tensors.place(_stacked(x, name), name) for x, name in ((parts, "parts"), (lses, "lses")))
    if parts.ndim != 5:
        raise ValueError(f"parts: has {parts.ndim} axes, not the 5 of (parts, batch, heads, rows, head dim)")
    if parts.strides[-1] != parts.dtype.itemsize and parts.shape[-1] != 1:
        raise ValueError("parts: the elements of a row do not lie side by side")
    problem = library().made(_abi.VkattnCombine)
    problem.dtype = problem.parts_dtype = dtype_of(parts, "parts", dtype)
    problem.num_parts, problem.batch, problem.num_heads, problem.seqlen_q, problem.head_dim_v = parts.shape
    problem.part_stride = parts.strides[0] // parts.dtype.itemsize
    problem.parts_strides = _abi.VkattnStrides(*(s // parts.dtype.itemsize for s in parts.strides[1:4]))
    out, lse = tensors.output(parts.shape[1:], parts.dtype), tensors.output(parts.shape[1:4], np.float32)
    session = tensors.session
    plan = session.plan(("combine", bytes(problem)),
                        lambda: NativePlan(session, "vkattn_combine_create", _byref(problem)))
    args = library().made(_abi.VkattnCombineArgs)
    lse_address = tensors.numbers(lses, "lses", np.float32, [parts.shape[:4]])
    args.parts, args.parts_lse, args.out, args.lse = _address(parts), lse_address, _address(out), _address(lse)
    if sinks is not None:
        args.sinks = tensors.numbers(sinks, "sinks", np.float32, [(problem.num_heads,)])
    session.run("vkattn_runtime_run_combine", plan, args)
    return tensors.result(out), tensors.result(lse)


def _list(values):
    return list(values) if isinstance(values, (list, tuple)) else [values]


def _stacked(values, name):
    """One array of a list of them, which are joined on the host."""
    if not isinstance(values, (list, tuple)):
        return values
    if not values:
        raise ValueError(f"{name}: is empty")
    return np.stack([as_host_array(x, name) for x in values])


class Plan:
    """How a call would be computed."""

    def __init__(self, native, problem):
        self._native, self._problem = native, problem

    def explain(self):
        """The plan as a dict: kernel, tuning row, tiles, dispatches, scratch, and why each other kernel was refused."""
        return json.loads(self._native.describe())

    def __repr__(self):
        about = self.explain()
        return f"vkattn.Plan(kernel={about['kernel']!r}, dispatches={len(about['dispatches'])})"


@_with_options
def plan(q, k, v=None, *, backward=False, dlse=False, dbias=False, dsinks=False, **options):
    """The plan of attention() with these arguments, or of its backward, without running it.

    dlse: the backward is given a gradient of the lse. dbias, dsinks: it has to find those of the mask and of the sinks.

    q, k and v are arrays, or shapes, whose type is then options' dtype, default float32. With value_in_key there is no
    v.

    >>> import vkattn
    >>> vkattn.plan((1, 8, 512, 64), (1, 8, 512, 64), (1, 8, 512, 64), causal=True).explain()["num_splits"]
    1
    """
    given = [x for x in (q, k, v) if x is not None]
    if any(isinstance(x, (tuple, list)) for x in given):
        if not all(isinstance(x, (tuple, list)) and len(x) == 4 for x in given):
            raise TypeError("q, k and v: are arrays, or shapes of 4 extents")
        if q is None or k is None:
            raise TypeError(f"{'q' if q is None else 'k'}: is None")
        dtype = options.pop("dtype", None)
        try:
            storage = np.dtype(np.uint16 if str(dtype) == "bfloat16" else dtype or np.float32)
        except TypeError as error:
            raise TypeError(f"dtype: {error}") from None
        session = session_of(options.get("device"))
        shapes = [[_whole(n, name, 0, 2**32 - 1) for n in shape] for shape, name in zip(given, "qkv")]
        q, k, v = ([Array(NoBuffer(session), tuple(shape), storage) for shape in shapes] + [v])[:3]
        options["dtype"] = "bfloat16" if str(dtype) == "bfloat16" else None
    call = _Call(q, k, v, **options)
    asked = {"dlse": dlse, "dbias": dbias, "dsinks": dsinks}
    if not backward:
        for name, value in asked.items():
            if value:
                raise ValueError(f"{name}: goes with backward=True")
        return Plan(call.plan(), call.problem)
    gradients = library().made(_abi.VkattnBackward)
    for name, value in asked.items():
        setattr(gradients, name, bool(value))
    return Plan(call.plan("vkattn_backward_create", gradients), call.problem)
