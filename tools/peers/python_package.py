#!/usr/bin/env python3
"""Measures what vkattn's Python package costs beside PyTorch's own attention: a call, a copy and a training step.

usage: python_package.py call [--repeats N]
       python_package.py copy [--mib N] [--repeats N]
       python_package.py gpt [--dtype float16|bfloat16] [--steps N] [--layers N] [--rows N] [--batch N]

The package is found as `import vkattn` finds it: installed, or by PYTHONPATH. Needs PyTorch; tensors are CUDA's where
PyTorch has a device, and the host's elsewhere. Each command prints a JSON object.

  call  medians of vkattn.attention on small Arrays (2 heads, 64 rows, head_dim 64, float16) and of its C
        function, so that the difference is Python's; means of a loop of vkattn.torch's and of PyTorch's calls on
        tensors of that size, until the calls return and until the device is done; microseconds
  copy  GB/s, read and written together, of copies between a tensor of PyTorch and the memory of an Array as a tensor;
        medians
  gpt   the losses of a GPT (width 768, 12 heads of 64) that learns the letters of this repository's pages, first with
        vkattn's attention and then with PyTorch's, from the same seed: the first, the last, the largest difference,
        and the median milliseconds of a step
"""
import argparse
import functools
import json
import statistics
import sys
import time
from pathlib import Path

try:
    import torch
    from torch import nn
    from torch.nn import functional as F

    import vkattn
    import vkattn.torch
    from vkattn._library import library
except ModuleNotFoundError as error:
    sys.exit(f"python_package.py: {error}; it needs PyTorch, and the package vkattn installed or in PYTHONPATH")

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
HEADS, HEAD_DIM = 12, 64
WIDTH = HEADS * HEAD_DIM
WARM_CALLS = 20
# Steps whose time does not count: pipelines are built in the first, and memory that can be kept is made.
WARM_STEPS = 5


def synchronize():
    if DEVICE == "cuda":
        torch.cuda.synchronize()


def seconds(run, repeats):
    """The median time of a call, behind some that do not count."""
    for _ in range(WARM_CALLS):
        run()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def timed(function, times):
    @functools.wraps(function, assigned=())
    def call(*arguments):
        start = time.perf_counter()
        result = function(*arguments)
        times.append(time.perf_counter() - start)
        return result

    return call


def measure_arrays(repeats):
    """Returns the seconds of vkattn.attention on Arrays, which waits for the device, and of its C function."""
    tensor = torch.ones(1, 2, 64, 64, dtype=torch.float16)
    q, k, v = (vkattn.array(tensor.numpy()) for _ in range(3))
    functions, name, inside = library()._functions, "vkattn_runtime_run_forward", []
    original = functions[name]
    functions[name] = timed(original, inside)
    try:
        whole = seconds(lambda: vkattn.attention(q, k, v), repeats)
    finally:
        functions[name] = original
    return whole, statistics.median(inside[WARM_CALLS:])


def measure_call(arguments):
    whole, inside = measure_arrays(arguments.repeats)
    result = {"arrays_us": 1e6 * whole, "c_function_us": 1e6 * inside, "python_us": 1e6 * (whole - inside)}
    q, k, v = (torch.ones(1, 2, 64, 64, dtype=torch.float16, device=DEVICE) for _ in range(3))
    for name, attention in attentions().items():
        for _ in range(WARM_CALLS):
            attention(q, k, v)
        synchronize()
        start = time.perf_counter()
        for _ in range(arguments.repeats):
            attention(q, k, v)
        returned = time.perf_counter() - start
        synchronize()
        done = time.perf_counter() - start
        result[f"{name}_returns_us"] = 1e6 * returned / arguments.repeats
        result[f"{name}_done_us"] = 1e6 * done / arguments.repeats
    return result


def measure_copy(arguments):
    tensor = torch.ones(arguments.mib << 18, dtype=torch.float32, device=DEVICE)
    other = torch.empty_like(tensor)
    # Without CUDA there is no memory that both have: a copy goes through the host then.
    array = vkattn.empty(tuple(tensor.shape), "float32")
    shared = array.torch() if DEVICE == "cuda" else torch.from_numpy(array.numpy())

    def gbps(to, source):
        def copy():
            to.copy_(source)
            synchronize()

        return 2e-9 * tensor.numel() * tensor.element_size() / seconds(copy, arguments.repeats)

    return {
        "mib": arguments.mib,
        "to_array_gbps": gbps(shared, tensor),
        "from_array_gbps": gbps(other, shared),
        "within_torch_gbps": gbps(other, tensor),
    }


def by_definition(q, k, v, is_causal):
    """Stands in where PyTorch has no attention of its own, which is before 2.0."""
    scores = q.float() @ k.float().transpose(-2, -1) * q.shape[-1] ** -0.5
    if is_causal:
        scores = scores.masked_fill(torch.ones_like(scores[0, 0], dtype=torch.bool).triu(1), float("-inf"))
    return (torch.softmax(scores, -1) @ v.float()).to(q.dtype)


def attentions():
    """Returns functions of the same arguments: vkattn's, and what a PyTorch model has without it."""
    own = getattr(F, "scaled_dot_product_attention", by_definition)
    return {
        "vkattn": functools.partial(vkattn.torch.scaled_dot_product_attention, is_causal=True),
        "torch": functools.partial(own, is_causal=True),
    }


class Block(nn.Module):
    def __init__(self, attention, dtype):
        super().__init__()
        self.attention, self.dtype = attention, dtype
        self.norm_attention, self.norm_mlp = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.output = nn.Linear(WIDTH, 3 * WIDTH, bias=False), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x):
        qkv = self.qkv(self.norm_attention(x)).unflatten(-1, (3, HEADS, HEAD_DIM))  # (batch, rows, 3, heads, head_dim)
        out = self.attention(*qkv.permute(2, 0, 3, 1, 4).to(self.dtype))
        x = x + self.output(out.transpose(1, 2).flatten(2).to(x.dtype))
        return x + self.mlp(self.norm_mlp(x))


class Gpt(nn.Module):
    def __init__(self, letters, layers, rows, attention, dtype):
        super().__init__()
        self.embedding, self.position = nn.Embedding(letters, WIDTH), nn.Embedding(rows, WIDTH)
        self.blocks = nn.Sequential(*(Block(attention, dtype) for _ in range(layers)))
        self.head = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, letters))

    def forward(self, tokens):
        return self.head(self.blocks(self.embedding(tokens) + self.position.weight))


def read_letters():
    """The pages of this repository as numbers, and how many different ones there are."""
    docs = Path(__file__).resolve().parents[2] / "docs"
    text = "".join(page.read_text(encoding="utf-8") for page in sorted(docs.glob("*.md")))
    numbers = {letter: number for number, letter in enumerate(sorted(set(text)))}
    return torch.tensor([numbers[letter] for letter in text], device=DEVICE), len(numbers)


def scaler_of(enabled):
    """Returns a GradScaler, by the name that this version of PyTorch has for it."""
    if hasattr(torch, "amp") and hasattr(torch.amp, "GradScaler"):
        return torch.amp.GradScaler("cuda", enabled=enabled)
    return torch.cuda.amp.GradScaler(enabled=enabled)


def train(attention, arguments):
    """(losses, seconds) of each step."""
    letters, count = read_letters()
    if len(letters) < arguments.rows + 2:
        sys.exit(f"python_package.py: --rows: the pages have only {len(letters)} letters")
    dtype = getattr(torch, arguments.dtype)
    torch.manual_seed(1)
    model = Gpt(count, arguments.layers, arguments.rows, attention, dtype).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    # float16 gradients would underflow; those of bfloat16 do not.
    scaler = scaler_of(DEVICE == "cuda" and dtype == torch.float16)
    generator = torch.Generator().manual_seed(2)
    losses, times = [], []
    for _ in range(arguments.steps):
        synchronize()
        start = time.perf_counter()
        begins = torch.randint(len(letters) - arguments.rows - 1, (arguments.batch, 1), generator=generator).to(DEVICE)
        text = letters[begins + torch.arange(arguments.rows + 1, device=DEVICE)]
        with torch.autocast("cuda", dtype, enabled=DEVICE == "cuda"):
            loss = F.cross_entropy(model(text[:, :-1]).float().flatten(0, 1), text[:, 1:].flatten())
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.item())
        times.append(time.perf_counter() - start)
    return losses, times


def measure_gpt(arguments):
    if DEVICE == "cpu":
        arguments.dtype = "float32"  # its products have no other type that all versions of PyTorch compute
    torch.backends.cuda.matmul.allow_tf32 = True  # both models do without the slow products of float32
    result = {name: getattr(arguments, name) for name in ("dtype", "steps", "layers", "rows", "batch")}
    losses_of = {}
    for name, attention in attentions().items():
        losses, times = train(attention, arguments)
        losses_of[name] = losses
        result[name] = {
            "first_loss": losses[0],
            "last_loss": losses[-1],
            "step_ms": 1e3 * statistics.median(times[WARM_STEPS:] or times),
        }
    result["largest_difference"] = max(abs(a - b) for a, b in zip(*losses_of.values()))
    return result


def main():
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0], epilog=__doc__[__doc__.index("The package") :],
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", required=True)
    call, copy, gpt = (commands.add_parser(name) for name in ("call", "copy", "gpt"))
    call.add_argument("--repeats", type=int, default=300)
    copy.add_argument("--mib", type=int, default=1024)
    copy.add_argument("--repeats", type=int, default=20)
    gpt.add_argument("--dtype", choices=("float16", "bfloat16"), default="float16")
    for name, default in (("steps", 200), ("layers", 6), ("rows", 1024), ("batch", 8)):
        gpt.add_argument(f"--{name}", type=int, default=default)
    arguments = parser.parse_args()
    for name, value in vars(arguments).items():
        if isinstance(value, int) and value < 1:
            parser.error(f"--{name}: {value} is not positive")
    measure = {"call": measure_call, "copy": measure_copy, "gpt": measure_gpt}[arguments.command]
    device = torch.cuda.get_device_name() if DEVICE == "cuda" else "CPU"
    print(json.dumps({"torch": torch.__version__, "device": device, "command": arguments.command} | measure(arguments)))


if __name__ == "__main__":
    main()
