#!/usr/bin/env python3
"""The suites of `vkattn bench --suite` by PyTorch's attention backends, in the same JSON: one object on stdout.

usage: torch_sdpa.py prefill|decode|llama [--pass forward|backward|both] [--dtype f16|bf16|f32]
                     [--backends flash,cudnn,efficient] [--repeats N]
       torch_sdpa.py prefill|decode|llama --list

Needs PyTorch 2.5 or later with CUDA; --list, the names of the cases, needs neither. Times are medians of CUDA events
around blocks of runs, behind a warm-up, a backend a case.
"""
import argparse
import itertools
import json

try:
    import torch
    import torch.nn.functional as F
    from torch.nn.attention import SDPBackend, sdpa_kernel
except ModuleNotFoundError:
    torch = None

BACKENDS = {"flash": "FLASH_ATTENTION", "cudnn": "CUDNN_ATTENTION", "efficient": "EFFICIENT_ATTENTION"}
DTYPES = {"f16": "float16", "bf16": "bfloat16", "f32": "float32"}
WARM_MS = 500
BLOCK_MS = 40
ROTATE_BYTES = 256 << 20  # several times the caches
MOST_RUNS = 300  # that fit a launch queue
QUEUEING_CYCLES = 60_000  # 30 us: what a launch takes; more would be a pause in which the device cools


def cases_of(suite):
    """(name, batch, query heads, kv heads, queries, keys, head_dim, causal); the names are vkattn's."""
    if suite == "decode":
        for batch, n in ((1, 8192), (1, 65536), (8, 8192), (8, 65536), (32, 8192)):
            yield f"decode b{batch} n{n}", batch, 32, 8, 1, n, 128, False
        return
    if suite == "llama":
        for d in (64, 128):
            for n in (4096, 16384):
                yield f"llama d{d} n{n}", 1, 16, 16, n, n, d, False
        return
    for d in (64, 128, 256):
        for causal in (False, True):
            for n in (512, 1024, 2048, 4096, 8192, 16384):
                name = f"prefill d{d}{' causal' if causal else ''} n{n}"
                yield name, 16384 // n, 2048 // d, 2048 // d, n, n, d, causal


def time_ms(run, repeats):
    """Of a run; short ones one behind the other, as vkattn's, and all queued before the first begins."""

    def block(runs, pause=QUEUEING_CYCLES):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda._sleep(pause * runs)
        start.record()
        for _ in range(runs):
            run()
        end.record()
        late = start.query()
        torch.cuda.synchronize()
        # Launches that took longer than the pause would be timed, too.
        again = late and runs > 1 and pause < 16 * QUEUEING_CYCLES
        return block(runs, 2 * pause) if again else start.elapsed_time(end) / runs

    runs, warm = 1, 0.0
    while warm < WARM_MS:
        ms = block(runs)
        warm += ms * runs
        runs = max(1, min(int(BLOCK_MS / ms), 4 * runs, MOST_RUNS))
    return sorted(block(runs) for _ in range(repeats))[repeats // 2]


def runs_of(which, tensors, attention):
    """What is timed: each call takes the next set of tensors. The gradients are those of query, key and value."""
    if which == "forward":
        return lambda: attention(*next(tensors))
    if which == "both":

        def both():
            qkv = next(tensors)
            out = attention(*qkv)
            torch.autograd.grad(out, qkv, out.detach())  # any gradient of out's shape

        return both
    # The forward has run before the clock does; its graph is kept.
    first = next(tensors)
    sets = [first]
    while (qkv := next(tensors)) is not first:
        sets.append(qkv)
    graphs = itertools.cycle([(out, qkv, torch.randn_like(out)) for qkv in sets for out in [attention(*qkv)]])

    def backward():
        out, qkv, dout = next(graphs)
        torch.autograd.grad(out, qkv, dout, retain_graph=True)

    return backward


# Products, of which each has 2 * head_dim operations for a row and a key.
PRODUCTS = {"forward": 2, "backward": 5, "both": 7}


def measure(case, which, dtype, backend, repeats):
    name, batch, heads_q, heads_kv, queries, keys, d, causal = case
    elements = 2 * batch * d * (heads_q * queries + heads_kv * keys)  # of q, k, v and out
    sets = max(1, min(ROTATE_BYTES // (elements * dtype.itemsize), 16))

    def random(heads, n):
        return torch.randn(batch, heads, n, d, device="cuda", dtype=dtype, requires_grad=which != "forward")

    def attention(q, k, v):
        return F.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=heads_q != heads_kv)

    tensors = itertools.cycle(
        [(random(heads_q, queries), random(heads_kv, keys), random(heads_kv, keys)) for _ in range(sets)]
    )
    out = {"name": name}
    try:
        with sdpa_kernel(backend):
            ms = time_ms(runs_of(which, tensors, attention), repeats)
    except RuntimeError as error:
        return out | {"refused": str(error).splitlines()[0]}
    pairs = queries * (queries + 1) / 2 if causal else queries * keys
    return out | {
        "ms": ms,
        "tflops": PRODUCTS[which] * 2 * batch * heads_q * pairs * d / ms * 1e-9,
        "gbps": elements * dtype.itemsize / ms * 1e-6,
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("suite", choices=("prefill", "decode", "llama"))
    parser.add_argument("--pass", dest="which", choices=PRODUCTS, default="forward")
    parser.add_argument("--dtype", choices=DTYPES, default="f16")
    parser.add_argument("--backends", default="flash,cudnn,efficient")
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--list", action="store_true")
    arguments = parser.parse_args()
    if arguments.list:
        print(*(case[0] for case in cases_of(arguments.suite)), sep="\n")
        return
    if torch is None:
        parser.exit(1, "torch_sdpa.py: there is no PyTorch 2.5 or later\n")
    for name in arguments.backends.split(","):
        if name not in BACKENDS:
            parser.error(f"--backends: '{name}' is not one of {', '.join(BACKENDS)}")
        print(
            json.dumps(
                {
                    "tool": f"torch {torch.__version__} {name}",
                    "device": torch.cuda.get_device_name(),
                    "suite": arguments.suite,
                    "pass": arguments.which,
                    "dtype": arguments.dtype,
                    "cases": [
                        measure(
                            case,
                            arguments.which,
                            getattr(torch, DTYPES[arguments.dtype]),
                            getattr(SDPBackend, BACKENDS[name]),
                            arguments.repeats,
                        )
                        for case in cases_of(arguments.suite)
                    ],
                }
            ),
            flush=True,
        )


if __name__ == "__main__":
    main()
