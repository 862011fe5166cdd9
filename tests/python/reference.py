"""Attention in numpy, float64: what vkattn's results are held to. It shares no code with the package."""

import numpy as np


def visible(problem, shape):
    """A bool array (batch, heads, rows, keys) of what bounds and lengths leave."""
    batch, heads, rows, keys = shape
    seen = np.zeros(shape, bool)
    left, right = problem.get("window", (-1, -1))
    for b in range(batch):
        lengths = problem.get("kv_lengths")
        length = min(max(int(lengths[b]), 0), keys) if lengths is not None else keys
        align = problem.get("align", "bottom-right")
        offset = {"top-left": 0, "bottom-right": length - rows}.get(align, align)
        if problem.get("query_offsets") is not None:
            offset = int(problem["query_offsets"][b])
        place = np.arange(rows)[:, None] + offset
        key = np.arange(keys)[None, :]
        ok = key < length
        if problem.get("causal"):
            ok = ok & (key <= place)
        if left >= 0:
            ok = ok & (key >= place - left)
        if right >= 0:
            ok = ok & (key <= place + right)
        seen[b] = ok
    return seen


def whole(array, shape):
    """An array of heads that divide the query's, and of extents 1, in the shape (batch, heads, rows, keys)."""
    array = np.asarray(array)
    array = array.reshape((1,) * (4 - array.ndim) + array.shape)
    if array.shape[1] not in (1, shape[1]):
        array = np.repeat(array, shape[1] // array.shape[1], axis=1)
    return np.broadcast_to(array, shape)


def scores_of(q, k, problem):
    """The final scores, -inf where hidden, the softcap's derivative, and where the mask is added."""
    group = q.shape[1] // k.shape[1]
    shape = q.shape[:3] + (k.shape[2],)
    scale = problem.get("scale")
    scale = 1 / np.sqrt(q.shape[3]) if scale is None else scale
    s = scale * np.einsum("bhid,bhjd->bhij", q, np.repeat(k, group, 1))
    cap = problem.get("softcap", 0)
    derivative = np.ones_like(s)
    if cap:
        tanh = np.tanh(s / cap)
        s, derivative = cap * tanh, 1 - tanh * tanh
    seen = visible(problem, shape)
    asks = np.ones(shape, bool)
    if problem.get("block_map") is not None:
        rows, keys = problem["block_size"]
        blocks = np.asarray(problem["block_map"])
        blocks = np.repeat(np.repeat(blocks, rows, 2), keys, 3)[:, :, :shape[2], :shape[3]]
        blocks = whole(blocks, shape)
        seen, asks = seen & (blocks != 0), blocks > 1
    if problem.get("slopes") is not None and problem.get("slopes_of", "distance") == "distance":
        assert problem.get("align", "bottom-right") == "bottom-right"
        offset = shape[3] - shape[2]
        distance = np.abs(np.arange(shape[2])[:, None] + offset - np.arange(shape[3])[None, :])
        slopes = np.asarray(problem["slopes"], np.float64)
        s = s - (slopes if slopes.ndim == 2 else slopes[None])[:, :, None, None] * distance
    mask = problem.get("mask")
    if mask is not None and np.asarray(mask).dtype == bool:
        seen = seen & (whole(mask, shape) | ~asks)
    elif mask is not None:
        added = np.where(asks, whole(np.asarray(mask, np.float64), shape), 0)
        seen = seen & ~np.isneginf(added)
        s = s + np.where(seen, added, 0)
    return np.where(seen, s, -np.inf), derivative, asks


def attention(q, k, v, round_weights=lambda p: p, **problem):
    """out and lse."""
    q, k, v = (np.asarray(x, np.float64) for x in (q, k, v))
    group = q.shape[1] // k.shape[1]
    s, _, _ = scores_of(q, k, problem)
    sinks = problem.get("sinks")
    sink = np.full(s.shape[1], -np.inf) if sinks is None else np.asarray(sinks, np.float64)
    sink = np.broadcast_to(sink[None, :, None], s.shape[:3])
    highest = np.maximum(s.max(-1, initial=-np.inf), sink)
    base = np.where(np.isneginf(highest), 0, highest)
    weights = np.exp(s - base[..., None])
    total = weights.sum(-1) + np.exp(sink - base)
    with np.errstate(divide="ignore"):
        lse = np.log(total) + base
    weights = round_weights(weights)
    out = np.einsum("bhij,bhjd->bhid", weights, np.repeat(v, group, 1))
    return out / np.where(total == 0, 1, total)[..., None], lse


def gradients(dout, q, k, v, dlse=None, **problem):
    """dq, dk, dv, dbias before it is summed to the mask's shape, dsinks."""
    dout, q, k, v = (np.asarray(x, np.float64) for x in (dout, q, k, v))
    group = q.shape[1] // k.shape[1]
    out, lse = attention(q, k, v, **problem)
    s, derivative, asks = scores_of(q, k, problem)
    lse = np.where(np.isneginf(lse), 0, lse)
    p = np.exp(s - lse[..., None])
    dv = np.einsum("bhij,bhid->bhjd", p, dout)
    dp = np.einsum("bhid,bhjd->bhij", dout, np.repeat(v, group, 1))
    delta = (dout * out).sum(-1)
    if dlse is not None:
        delta = delta - np.asarray(dlse, np.float64)
    ds = p * (dp - delta[..., None])
    dbias = np.where(asks, ds, 0)
    scale = problem.get("scale")
    ds = ds * derivative * (1 / np.sqrt(q.shape[3]) if scale is None else scale)
    dq = np.einsum("bhij,bhjd->bhid", ds, np.repeat(k, group, 1))
    dk = np.einsum("bhij,bhid->bhjd", ds, q)

    def over_group(x):
        return x.reshape(x.shape[0], -1, group, *x.shape[2:]).sum(2)

    dsinks = None
    if problem.get("sinks") is not None:
        some = ~np.isneginf(s).all(-1)
        weight = np.exp(np.asarray(problem["sinks"], np.float64)[None, :, None] - lse)
        dsinks = -(np.where(some, weight * delta, 0)).sum((0, 2))
    return dq, over_group(dk), over_group(dv), dbias, dsinks


def to_mask(dbias, shape):
    """dbias summed over what the mask of this shape broadcasts."""
    full = (1,) * (4 - len(shape)) + tuple(shape)
    if full[1] not in (1, dbias.shape[1]):
        dbias = dbias.reshape(dbias.shape[0], full[1], -1, *dbias.shape[2:]).sum(2)
    axes = tuple(i for i in range(4) if full[i] == 1 and dbias.shape[i] != 1)
    return dbias.sum(axes, keepdims=True).reshape(shape)


def error_bound(exact, naive, dtype):
    """What may differ at most: twice the error of the naive computation, and a last place of the largest element."""
    largest = np.abs(exact).max(initial=0)
    place = {"float16": 2.0**-10, "bfloat16": 2.0**-7, "float32": 1e-6}[str(dtype)]
    return 2 * np.abs(exact - naive).max(initial=0) + place * largest + 1e-7


def q8_0(array):
    """ggml's q8_0 of an array, blocks along its last axis: a float16 factor and 32 signed bytes each."""
    blocks = np.asarray(array, np.float32).reshape(array.shape[:-1] + (-1, 32))
    factor = (np.abs(blocks).max(-1, keepdims=True) / 127).astype(np.float16)
    numbers = np.rint(blocks / np.where(factor == 0, 1, factor).astype(np.float32)).clip(-128, 127).astype(np.int8)
    stored = np.concatenate([factor.view(np.uint8), numbers.view(np.uint8)], -1)
    return stored.reshape(array.shape[:-1] + (-1,))


def of_q8_0(stored):
    """The float32 values of such an array."""
    blocks = stored.reshape(stored.shape[:-1] + (-1, 34))
    factor = np.ascontiguousarray(blocks[..., :2]).view(np.float16).astype(np.float32)
    return (factor * np.ascontiguousarray(blocks[..., 2:]).view(np.int8)).reshape(stored.shape[:-1] + (-1,))
