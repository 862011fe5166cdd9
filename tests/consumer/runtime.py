"""vkattn from Python with nothing but ctypes: a small forward against plain Python.

usage: runtime.py LIBRARY, the path of libvkattn_runtime
"""

import ctypes
import math
import random
import sys
from ctypes import Structure, byref, c_char, c_char_p, c_float, c_int, c_int64, c_size_t, c_uint32, c_uint64
from ctypes import c_void_p

HEADS, ROWS, KEYS, DIM = 2, 5, 7, 8


class Error(Structure):
    _fields_ = [("status", c_int), ("vk_result", c_int), ("field", c_char * 64), ("message", c_char * 320)]


class Strides(Structure):
    _fields_ = [("batch", c_uint64), ("head", c_uint64), ("seq", c_uint64)]


class Problem(Structure):
    _fields_ = [
        ("struct_size", c_size_t), ("dtype", c_int), ("batch", c_uint32), ("num_heads_q", c_uint32),
        ("num_heads_kv", c_uint32), ("seqlen_q", c_uint32), ("seqlen_kv", c_uint32), ("head_dim_qk", c_uint32),
        ("head_dim_v", c_uint32), ("softmax_scale", c_float), ("softcap", c_float), ("causal", c_uint32),
        ("window_left", c_int64), ("window_right", c_int64), ("align", c_int), ("query_offset", c_int64),
        ("kv_lengths", c_uint32), ("mask", c_int), ("mask_rank", c_uint32), ("mask_extents", c_uint32 * 4),
        ("query_strides", Strides), ("key_strides", Strides), ("value_strides", Strides), ("out_strides", Strides),
        ("alignment_bytes", c_uint32)]


class ForwardArgs(Structure):
    _fields_ = [("struct_size", c_size_t)] + [
        (name, c_uint64)
        for name in ("query", "key", "value", "out", "lse", "mask", "kv_lengths", "query_offsets", "scratch_buffer",
                     "scratch_offset", "scratch_address")]


class Run(Structure):
    _fields_ = [("struct_size", c_size_t), ("time_ms", ctypes.c_double), ("record_us", ctypes.c_double),
                ("submissions", c_uint32), ("segments_at_once", c_uint32), ("progress", c_void_p),
                ("progress_user", c_void_p)]


CacheFailed = ctypes.CFUNCTYPE(None, c_void_p, c_char_p)


class RuntimeOptions(Structure):
    _fields_ = [("struct_size", c_size_t), ("device", c_char_p), ("pipeline_cache", c_char_p),
                ("extra_extensions", c_void_p), ("extra_extension_count", c_uint32), ("api_version", c_uint32),
                ("validation", c_uint32), ("self_test", c_uint64), ("self_test_progress", c_void_p),
                ("self_test_user", c_void_p), ("cache_failed", CacheFailed), ("cache_user", c_void_p)]


class VkattnFailed(Exception):
    pass


class Library:
    """Calls functions by name; a status that is not 0 becomes an exception."""

    def __init__(self, path):
        self.all = ctypes.CDLL(path)  # and, with it, the libvkattn that it needs
        for name, result in (("vkattn_runtime_context", c_void_p), ("vkattn_buffer_address", c_uint64),
                             ("vkattn_version", c_char_p)):
            getattr(self.all, name).restype = result

    def call(self, name, *args):
        error = Error()
        if getattr(self.all, name)(*args, byref(error)) != 0:
            raise VkattnFailed(f"{error.field.decode()}: {error.message.decode()}")

    def zeroed(self, struct):
        made = struct()
        made.struct_size = ctypes.sizeof(made)
        return made


def expected(query, key, value):
    """Attention in plain Python, head by head."""
    out = []
    for head in range(HEADS):
        rows = [[x[(head * n + i) * DIM:][:DIM] for i in range(n)] for x, n in
                ((query, ROWS), (key, KEYS), (value, KEYS))]
        for q in rows[0]:
            weights = [math.exp(sum(a * b for a, b in zip(q, k)) / math.sqrt(DIM)) for k in rows[1]]
            out += [sum(w * v[d] for w, v in zip(weights, rows[2])) / sum(weights) for d in range(DIM)]
    return out


def check_cache(library):
    """A cache file that cannot be written: saving says so, and so does closing, to the callback."""
    heard, refusal, runtime = [], "none", c_void_p()
    options = library.zeroed(RuntimeOptions)
    options.pipeline_cache = b"c" * 250  # too long a name for the temporary file beside it
    options.self_test = 2  # never
    options.cache_failed = CacheFailed(lambda user, why: heard.append(why.decode()))
    library.call("vkattn_runtime_open", byref(options), byref(runtime))
    try:
        library.call("vkattn_runtime_save_cache", runtime)
    except VkattnFailed as error:
        refusal = str(error)
    if heard or not refusal.startswith("options.pipeline_cache: ccc"):
        sys.exit(f"failed: saving says {refusal}, and {heard} was heard")
    library.all.vkattn_runtime_close(runtime)
    if heard != [refusal]:
        sys.exit(f"failed: closing says {heard}")


def main():
    library = Library(sys.argv[1])
    check_cache(library)
    runtime = c_void_p()
    library.call("vkattn_runtime_open", None, byref(runtime))
    context = c_void_p(library.all.vkattn_runtime_context(runtime))
    buffers = []

    def allocate(count):
        buffers.append(c_void_p())
        library.call("vkattn_buffer_create", runtime, c_uint64(4 * count), byref(buffers[-1]))
        return buffers[-1]

    problem = Problem()
    library.all.vkattn_problem_init_sized(byref(problem), c_size_t(ctypes.sizeof(problem)))
    problem.num_heads_q = problem.num_heads_kv = HEADS
    problem.seqlen_q, problem.seqlen_kv = ROWS, KEYS
    problem.head_dim_qk = problem.head_dim_v = DIM
    plan = c_void_p()
    library.call("vkattn_plan_create", context, byref(problem), None, byref(plan))

    random.seed(1)
    args = library.zeroed(ForwardArgs)
    tensors = []
    for name, rows in (("query", ROWS), ("key", KEYS), ("value", KEYS)):
        values = (c_float * (HEADS * rows * DIM))(*(random.uniform(-1, 1) for _ in range(HEADS * rows * DIM)))
        buffer = allocate(len(values))
        library.call("vkattn_buffer_write", buffer, c_uint64(0), values, c_uint64(ctypes.sizeof(values)))
        setattr(args, name, library.all.vkattn_buffer_address(buffer))
        tensors.append(list(values))
    result = (c_float * (HEADS * ROWS * DIM))()
    out = allocate(len(result))
    args.out = library.all.vkattn_buffer_address(out)
    run = library.zeroed(Run)
    library.call("vkattn_runtime_run_forward", runtime, plan, byref(args), byref(run))
    library.call("vkattn_buffer_read", out, c_uint64(0), result, c_uint64(ctypes.sizeof(result)))
    worst = max(abs(a - b) for a, b in zip(result, expected(*tensors)))

    args.query += 2  # half an element
    try:
        library.call("vkattn_runtime_run_forward", runtime, plan, byref(args), byref(run))
        refusal = "none"
    except VkattnFailed as error:
        refusal = str(error)
    library.all.vkattn_plan_destroy(plan)
    for buffer in buffers:
        library.all.vkattn_buffer_destroy(buffer)
    library.all.vkattn_runtime_close(runtime)
    if worst > 1e-5 or run.submissions != 1:
        sys.exit(f"failed: off by {worst:g}, {run.submissions} submissions")
    if not refusal.startswith("args.query: "):
        sys.exit(f"failed: the refusal is {refusal}")
    print(f"vkattn {library.all.vkattn_version().decode()} by ctypes: right")


main()
