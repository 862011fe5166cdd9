"""Trains a small model of characters whose attention, forward and backward, is vkattn's.

    python3 docs/train_characters.py                     # on the best Vulkan device
    python3 docs/train_characters.py --attention torch   # the same model, weights and batches with PyTorch's attention

It needs PyTorch 1.13 or later, and draws the losses with matplotlib if that is there.
"""

import argparse
import pathlib
import time

import torch
from torch import nn
from torch.nn import functional


def vkattn_attention(q, k, v, device):
    """Causal attention on a Vulkan device. PyTorch's autograd takes the gradients through it."""
    import vkattn.torch  # here, so that `--attention torch` runs without it

    return vkattn.torch.scaled_dot_product_attention(q, k, v, is_causal=True, device=device)


def torch_attention(q, k, v, device):
    """The same without vkattn, in float32, because PyTorch does not have all of float16 on the CPU."""
    kind, q, k, v = q.dtype, q.float(), k.float(), v.float()
    if hasattr(functional, "scaled_dot_product_attention"):
        return functional.scaled_dot_product_attention(q, k, v, is_causal=True).to(kind)
    scores = q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5  # PyTorch before 2.0: written out
    later = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
    return (scores.masked_fill(later, -torch.inf).softmax(-1) @ v).to(kind)


class Block(nn.Module):
    """A layer: each position looks at itself and those before it, and then thinks for itself."""

    def __init__(self, args):
        super().__init__()
        width = args.heads * args.head_dim
        self.args, self.norm1, self.norm2 = args, nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        # q, k and v are views of one tensor, (batch, heads, positions, head dim). vkattn reads them where they are.
        packed = self.qkv(self.norm1(x)).to(getattr(torch, self.args.dtype))
        q, k, v = packed.unflatten(-1, (3, self.args.heads, self.args.head_dim)).permute(2, 0, 3, 1, 4)
        attention = vkattn_attention if self.args.attention == "vkattn" else torch_attention
        x = x + self.out(attention(q, k, v, self.args.device).transpose(1, 2).flatten(2).to(x.dtype))
        return x + self.mlp(self.norm2(x))


class Model(nn.Module):
    """Gives for each position the logits of the character that follows."""

    def __init__(self, characters, args):
        super().__init__()
        width = args.heads * args.head_dim
        self.characters, self.positions = nn.Embedding(characters, width), nn.Embedding(args.context, width)
        self.blocks = nn.Sequential(*(Block(args) for _ in range(args.layers)))
        self.head = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, characters))

    def forward(self, tokens):
        return self.head(self.blocks(self.characters(tokens) + self.positions.weight))


def train(model, tokens, args):
    """Returns the loss of each step."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    losses = []
    for step in range(1, args.steps + 1):
        start = time.perf_counter()
        places = torch.randint(len(tokens) - args.context, (args.batch, 1)) + torch.arange(args.context + 1)
        loss = functional.cross_entropy(model(tokens[places[:, :-1]]).flatten(0, 1), tokens[places[:, 1:]].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        milliseconds = 1000 * (time.perf_counter() - start)  # many in the first step, which compiles vkattn's pipelines
        if step in (1, args.steps) or step % args.every == 0:
            print(f"step {step:5}  loss {losses[-1]:.5f}  {milliseconds:8.1f} ms", flush=True)
    return losses


@torch.no_grad()
def sample(model, tokens, args):
    """Continues the text's beginning. The window's length stays the same, so that one plan of vkattn's serves all."""
    tokens = tokens[:args.context]
    for _ in range(args.sample):
        logits = model(tokens[None, -args.context:])[0, -1]
        tokens = torch.cat([tokens, torch.multinomial((logits / 0.7).softmax(-1), 1)])  # 0.7: rather likely ones
    return tokens[args.context:]


def save(losses, path):
    """Draws the losses, or writes them as CSV where there is no matplotlib: returns the file's path."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        path = path.with_suffix(".csv")
    if path.suffix == ".csv":
        path.write_text("step,loss\n" + "".join(f"{step},{loss}\n" for step, loss in enumerate(losses, 1)))
        return path
    axes = Figure().subplots()  # rather than pyplot, which may want a screen
    axes.plot(range(1, len(losses) + 1), losses)
    axes.set(xlabel="step", ylabel="loss, nats per character")
    axes.figure.savefig(path)
    return path


def main():
    readme = pathlib.Path(__file__).resolve().parent.parent / "README.md"
    parser = argparse.ArgumentParser(formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--text", type=pathlib.Path, default=readme, help="a text in UTF-8, to learn from")
    parser.add_argument("--attention", choices=("vkattn", "torch"), default="vkattn", help="who computes attention")
    parser.add_argument("--device", help="vkattn's: an index, or a part of a name; None is the best one")
    parser.add_argument("--dtype", choices=("float32", "float16", "bfloat16"), default="float32", help="of q, k and v")
    parser.add_argument("--plot", type=pathlib.Path, default="loss.png", help="where the losses go; .csv: as numbers")
    for name, value, says in (("steps", 200, "how long it learns"), ("every", 20, "steps from line to line"),
                              ("seed", 1, "of all chance"), ("layers", 2, "of the model"), ("heads", 4, "of a layer"),
                              ("head-dim", 32, "of a head"), ("context", 64, "characters that the model sees"),
                              ("batch", 8, "pieces of text a step"), ("sample", 200, "characters written at the end")):
        parser.add_argument(f"--{name}", type=int, default=value, help=says)
    args = parser.parse_args()
    text = args.text.read_text(encoding="utf-8")
    if len(text) <= args.context:
        parser.error(f"--text: has {len(text)} characters, not more than --context {args.context}")
    alphabet = sorted(set(text))
    tokens = torch.tensor([alphabet.index(character) for character in text])

    torch.manual_seed(args.seed)
    model = Model(len(alphabet), args)
    losses = train(model, tokens, args)
    print("".join(alphabet[token] for token in sample(model, tokens, args)))
    print(f"losses: {save(losses, args.plot)}")


if __name__ == "__main__":
    main()
