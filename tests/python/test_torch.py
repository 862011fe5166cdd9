"""vkattn.torch against PyTorch in float64, values and gradients.

VKATTN_TORCH_DEVICE=cuda runs all of it with tensors on a GPU. Its driver takes seconds to compile a pipeline: with
VKATTN_TORCH_PART=0/8 a process tries the first of eight parts of the combinations.
"""

import doctest
import importlib.util
import itertools
import os
import unittest

import numpy as np

HAS_TORCH = importlib.util.find_spec("torch") is not None
HAS_REGISTRY = False
DEVICE = os.environ.get("VKATTN_TORCH_DEVICE", "cpu")
if HAS_TORCH:
    import torch
    import vkattn.torch
    from vkattn import _torch_ops
    if importlib.util.find_spec("torch.nn.attention"):
        from torch.nn import attention
        HAS_REGISTRY = hasattr(attention, "register_flash_attention_impl")
    if DEVICE != "cpu":
        torch.set_default_device(DEVICE)

ALLOWED = {"float32": 3e-5, "float16": 6e-3, "bfloat16": 5e-2}  # of the largest element


def exact(q, k, v, mask, is_causal, scale):
    """PyTorch's definition, step by step."""
    group = q.shape[-3] // k.shape[-3] if q.dim() > 2 else 1
    if group > 1:
        k, v = (x.repeat_interleave(group, -3) for x in (k, v))
    scores = q @ k.transpose(-2, -1) * (q.shape[-1] ** -0.5 if scale is None else scale)
    if is_causal:
        scores = scores.masked_fill(~torch.ones(scores.shape[-2:]).tril().bool(), -torch.inf)
    if mask is not None and mask.dtype == torch.bool:
        scores = scores.masked_fill(~mask, -torch.inf)
    elif mask is not None:
        scores = scores + mask
    return torch.softmax(scores, -1) @ v


@unittest.skipUnless(HAS_TORCH, "torch is not installed")
class Torch(unittest.TestCase):
    def check(self, shapes, dtype, mask=None, is_causal=False, scale=None, lies=lambda x: x, **options):
        """Holds out and gradients to the definition. `lies` gives a tensor other strides."""
        kind = getattr(torch, dtype)
        tensors = [lies(torch.randn(shape).to(kind)).requires_grad_() for shape in shapes]
        if mask is not None and mask.dtype != torch.bool:
            mask = mask.detach().clone().to(kind).requires_grad_()
        out = vkattn.torch.scaled_dot_product_attention(*tensors, mask, is_causal=is_causal, scale=scale, **options)
        wide = [x.detach().double().requires_grad_() for x in tensors]
        wide_mask = mask
        if mask is not None and mask.dtype != torch.bool:
            wide_mask = mask.detach().double().requires_grad_()
        right = exact(*wide, wide_mask, is_causal, scale)
        self.assertEqual((out.shape, out.dtype), (right.shape, kind))
        dout = torch.randn(right.shape).to(kind)
        out.backward(dout)
        right.backward(dout.double())
        pairs = [(out.detach(), right.detach())] + [(x.grad, y.grad) for x, y in zip(tensors, wide)]
        if wide_mask is not mask:
            pairs.append((mask.grad, wide_mask.grad))
        for got, wanted in pairs:
            allowed = ALLOWED[dtype] * max(1, wanted.abs().max().item())
            self.assertLessEqual((got.double() - wanted).abs().max().item(), allowed)

    def test_combinations(self):
        """Types, masks and their broadcasts, causal, shared heads, scales and strides: 324 of them."""
        torch.manual_seed(1)
        masks = {"none": None, "causal": None, "bool": torch.rand(9, 21) < 0.8,
                 "bool keys": torch.rand(2, 1, 1, 21) < 0.8, "bool heads": torch.rand(1, 4, 9, 21) < 0.8,
                 "float": torch.randn(9, 21),
                 "float rows": torch.randn(2, 1, 9, 1), "float heads": torch.randn(4, 9, 21),
                 "float whole": torch.randn(2, 4, 9, 21)}
        for mask in masks.values():
            if mask is not None and mask.dtype == torch.bool:
                mask[..., 0] = True  # PyTorch has NaN for rows that see nothing
        strides = {"dense": lambda x: x, "by rows": lambda x: x.transpose(1, 2).contiguous().transpose(1, 2),
                   "a part of rows": lambda x: torch.cat([x, x], -1)[..., :x.shape[-1]]}
        part, parts = map(int, os.environ.get("VKATTN_TORCH_PART", "0/1").split("/"))
        combinations = itertools.product(ALLOWED, masks.items(), (4, 2), (None, -0.2), strides.items())
        tried = 0
        for dtype, (name, mask), kv_heads, scale, (place, lies) in itertools.islice(combinations, part, None, parts):
            shapes = ((2, 4, 9, 16), (2, kv_heads, 21, 16), (2, kv_heads, 21, 24))
            with self.subTest(dtype=dtype, mask=name, kv_heads=kv_heads, scale=scale, strides=place):
                self.check(shapes, dtype, mask, is_causal=name == "causal", scale=scale, lies=lies, enable_gqa=True)
                tried += 1
        self.assertEqual(tried, len(range(part, 324, parts)))

    def test_numbers(self):
        """Slopes and lengths of any type and order mean what they say."""
        x, slopes = torch.randn(2, 4, 9, 16), torch.tensor([0.5, 0.25, 0.125, 0.0625])
        right = vkattn.torch.attention(x, x, x, slopes=slopes, kv_lengths=torch.tensor([3, 9]))
        kinds = (np.uint16, np.uint32, np.uint64, ">i4", np.int8)
        for numbers in [[3, 9], np.array([9, 3])[::-1], *(np.array([3, 9], kind) for kind in kinds)]:
            for same in (slopes.bfloat16(), slopes.double(), slopes.cpu().numpy()):
                out = vkattn.torch.attention(x, x, x, slopes=same, kv_lengths=numbers)
                torch.testing.assert_close(out, right, rtol=0, atol=0)

    def test_float32_mask_of_16_bits(self):
        """A mask that 16 bits would round is not rounded."""
        torch.manual_seed(9)
        q, k, v = (torch.randn(2, 4, 9, 16).bfloat16().requires_grad_() for _ in range(3))
        mask = 10 * torch.randn(9, 9) - 1000
        out = vkattn.torch.scaled_dot_product_attention(q, k, v, mask)
        right = exact(*(x.double() for x in (q, k, v)), mask.double(), False, None)
        self.assertEqual(out.dtype, torch.bfloat16)
        self.assertLess((out.double() - right).abs().max().item(), 2e-2)

    def test_other_derivatives(self):
        """Those that there are not are refused."""
        q = torch.randn(1, 2, 5, 8, requires_grad=True)
        gradient = lambda: torch.autograd.grad(vkattn.torch.attention(q, q, q).sum(), q, create_graph=True)[0]
        with self.assertRaises((RuntimeError, NotImplementedError)):
            gradient().square().sum().backward()
        with torch.autograd.forward_ad.dual_level(), self.assertRaisesRegex(NotImplementedError, "^q: has a tangent"):
            x = torch.autograd.forward_ad.make_dual(q.detach(), torch.ones_like(q))
            vkattn.torch.attention(x, q, q)

    def test_empty(self):
        for batch, rows, keys in ((0, 9, 21), (2, 0, 21), (2, 9, 0)):
            q, k = (torch.randn(batch, 4, n, 16, requires_grad=True) for n in (rows, keys))
            out = vkattn.torch.scaled_dot_product_attention(q, k, k)
            out.sum().backward()
            self.assertEqual((out.shape, q.grad.shape, k.grad.shape), (q.shape, q.shape, k.shape))
            self.assertEqual((out.abs().sum(), q.grad.abs().sum(), k.grad.abs().sum()), (0, 0, 0))

    def test_lse(self):
        """The lse has a gradient, with that of out and alone."""
        torch.manual_seed(6)
        dout, dlse = torch.randn(2, 4, 9, 16), torch.randn(2, 4, 9)
        for both in (True, False):
            tensors = [torch.randn(2, 4, n, 16, requires_grad=True) for n in (9, 21, 21)]
            out, lse = vkattn.torch.attention(*tensors, return_lse=True)
            wide = [x.detach().double().requires_grad_() for x in tensors]
            scores = wide[0] @ wide[1].transpose(-2, -1) / 4
            right = (scores.logsumexp(-1) * dlse).sum()
            if both:
                right = right + (torch.softmax(scores, -1) @ wide[2] * dout).sum()
            right.backward()
            loss = (lse * dlse).sum()
            (loss + (out * dout).sum() if both else loss).backward()
            for got, wanted in zip(tensors, wide):
                wanted = torch.zeros_like(wanted) if wanted.grad is None else wanted.grad
                torch.testing.assert_close(got.grad.double(), wanted, rtol=1e-4, atol=1e-4)

    def test_autocast(self):
        x = torch.randn(2, 4, 9, 16, requires_grad=True)
        with torch.autocast(DEVICE, torch.bfloat16):
            out = vkattn.torch.scaled_dot_product_attention(x, x.bfloat16(), x, torch.zeros(9, 9))
        self.assertEqual(out.dtype, torch.bfloat16)
        out.float().sum().backward()
        self.assertEqual(x.grad.dtype, torch.float32)

    @unittest.skipUnless(HAS_TORCH and hasattr(torch.library, "custom_op"), "this torch has no custom operators")
    def test_compile(self):
        torch.manual_seed(7)
        q, k, v = (torch.randn(2, 4, 9, 16, requires_grad=True) for _ in range(3))
        mask, sinks = torch.randn(4, 9, 9, requires_grad=True), torch.randn(4, requires_grad=True)
        lengths = torch.tensor([9, 5])
        cases = ((lambda q, k, v: vkattn.torch.scaled_dot_product_attention(q * 2, k, v, mask), (q, k, v, mask)),
                 (lambda q, k, v: vkattn.torch.attention(q, k, v * 2, causal=True, kv_lengths=lengths, sinks=sinks),
                  (q, k, v, sinks)),
                 (lambda q, k, v: sum(x.sum() for x in vkattn.torch.attention(q, k, v, window=(3, None),
                                                                              return_lse=True)), (q, k, v)))
        for call, leaves in cases:
            results = []
            for function in (call, torch.compile(call, backend="aot_eager", fullgraph=True)):
                out = function(q, k, v)
                results.append([out, *torch.autograd.grad(out.square().sum(), leaves)])
            for plain, compiled in zip(*results):
                torch.testing.assert_close(plain, compiled, rtol=0, atol=0)
        torch.library.opcheck(torch.ops.vkattn.attention.default,
                              (q, k, v, *_torch_ops.values_of({"mask": mask, "sinks": sinks})))

    @unittest.skipUnless(HAS_REGISTRY and DEVICE == "cuda", "there is no registry, or no CUDA")
    def test_activation_on_cuda(self):
        torch.manual_seed(8)
        sdpa = torch.nn.functional.scaled_dot_product_attention
        dense, by_rows = torch.randn(3, 2, 4, 33, 16).half(), torch.randn(3, 2, 33, 4, 16).transpose(2, 3).bfloat16()
        for x, heads in itertools.product((dense, by_rows), (4, 2)):
            q, k, v = x[0], x[1][:, :heads], x[2][:, :heads]
            results = []
            for name in ("PyTorch", "vkattn", "compiled"):
                leaves = [each.detach().requires_grad_() for each in (q, k, v)]
                if name != "PyTorch":
                    attention.activate_flash_attention_impl("vkattn")
                call = lambda *leaves: sdpa(*leaves, is_causal=True, enable_gqa=True)
                try:
                    with attention.sdpa_kernel(attention.SDPBackend.FLASH_ATTENTION):
                        out = (torch.compile(call, backend="aot_eager") if name == "compiled" else call)(*leaves)
                        results.append([out, *torch.autograd.grad(out.float().square().sum(), leaves)])
                finally:
                    if name != "PyTorch":
                        attention.restore_flash_attention_impl()
            own = vkattn.torch.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
            torch.testing.assert_close(results[1][0], own, rtol=0, atol=0)
            for stock, ours, compiled in zip(*results):
                self.assertEqual((stock.shape, stock.dtype), (ours.shape, ours.dtype))
                self.assertEqual(stock.stride(), ours.stride())
                torch.testing.assert_close(ours, stock, rtol=2e-2, atol=2e-2)
                torch.testing.assert_close(ours, compiled, rtol=0, atol=0)

    @unittest.skipUnless(HAS_REGISTRY and DEVICE == "cpu", "there is no registry of flash attention implementations")
    def test_activation(self):
        """A model changes one line: PyTorch's own attention is vkattn's, until it is restored."""
        torch.manual_seed(8)
        sdpa = torch.nn.functional.scaled_dot_product_attention
        dense, by_rows = torch.randn(3, 2, 4, 33, 16), torch.randn(3, 2, 33, 4, 16).transpose(2, 3)
        mask = torch.randn(33, 33)
        stock = [sdpa(*x, is_causal=True) for x in (dense, by_rows)]
        attention.activate_flash_attention_impl("vkattn")
        try:
            for x, was in zip((dense, by_rows), stock):
                q, k, v = (each.detach().requires_grad_() for each in x)
                out = sdpa(q, k, v, is_causal=True)
                own = vkattn.torch.scaled_dot_product_attention(q, k, v, is_causal=True)
                torch.testing.assert_close(out, own, rtol=0, atol=0)
                self.assertEqual(out.stride(), was.stride())
                for got, wanted in zip(*(torch.autograd.grad(y.square().sum(), (q, k, v)) for y in (out, own))):
                    torch.testing.assert_close(got, wanted, rtol=0, atol=0)
                masked = sdpa(q, k, v, mask)
                torch.testing.assert_close(masked, vkattn.torch.scaled_dot_product_attention(q, k, v, mask), rtol=0,
                                           atol=0)
            q, k, v = dense
            for mask in (torch.randn(1, 33), torch.randn(2, 1, 33, 33), 10 * torch.randn(33, 33) - 1000):
                for kind in (torch.float32, torch.bfloat16):  # beside a mask of float32
                    leaves = [x.to(kind).requires_grad_() for x in (q, k[:, :1], v[:, :1])]
                    wide = [x.detach().double().requires_grad_() for x in leaves]
                    out, right = sdpa(*leaves, mask, enable_gqa=True), exact(*wide, mask.double(), False, None)
                    allowed = 1e-4 if kind == torch.float32 else 5e-2
                    found = torch.autograd.grad(out.sum(), leaves)
                    for got, wanted in zip((out, *found), (right, *torch.autograd.grad(right.sum(), wide))):
                        torch.testing.assert_close(got.double(), wanted, rtol=allowed, atol=allowed)
            nothing = torch.zeros(33, 33, dtype=torch.bool)
            self.assertEqual(sdpa(q, k, v, nothing).abs().max(), 0)
            with self.assertRaisesRegex(NotImplementedError, "^query: vkattn has no float64"):
                sdpa(*(x.double() for x in dense))
            compiled = torch.compile(lambda q: sdpa(q * 2, k, v, is_causal=True), backend="aot_eager", fullgraph=True)
            torch.testing.assert_close(compiled(q), sdpa(q * 2, k, v, is_causal=True), rtol=0, atol=0)
        finally:
            attention.restore_flash_attention_impl()
        torch.testing.assert_close(sdpa(*dense, is_causal=True), stock[0], rtol=0, atol=0)

    def test_shapes(self):
        torch.manual_seed(2)
        self.check(((9, 16), (21, 16), (21, 8)), "float32")
        self.check(((3, 9, 16), (3, 21, 16), (3, 21, 8)), "float32", torch.randn(3, 9, 21))
        self.check(((2, 1, 3, 9, 16), (2, 1, 3, 21, 16), (2, 1, 3, 21, 8)), "float32", torch.randn(2, 1, 1, 9, 21))
        self.check(((2, 4, 9, 16), (1, 4, 21, 16), (1, 4, 21, 8)), "float32", is_causal=True)
        self.check(((1, 4, 9, 16), (2, 4, 21, 16), (2, 4, 21, 8)), "float32")
        self.check(((9, 16), (4, 21, 16), (4, 21, 8)), "float32")
        q = torch.randn(2, 9, 4, 16).transpose(1, 2)
        same = vkattn.torch.attention(q, q, q)
        torch.testing.assert_close(same, vkattn.torch.attention(*(q.contiguous(),) * 3), rtol=0, atol=0)

    def test_wrong_arguments(self):
        x = torch.ones(1, 2, 3, 8)
        sdpa, plain = vkattn.torch.scaled_dot_product_attention, vkattn.torch.attention
        for call, kind, text in (
                (lambda: sdpa(x, x, x, dropout_p=0.1), NotImplementedError, "dropout_p"),
                (lambda: sdpa(x, x, x, x[0], is_causal=True), ValueError, "attn_mask: goes"),
                (lambda: sdpa(x, x, x, torch.ones(4, 3)), ValueError, "attn_mask"),
                (lambda: sdpa(x[0, 0, 0], x, x), ValueError, "query: has 1"),
                (lambda: sdpa(x.repeat(1, 2, 1, 1), x, x), ValueError, "key: 2 heads"),
                (lambda: plain(x.double(), x, x), TypeError, "q: torch.float64"),
                (lambda: plain(x, x.half(), x), TypeError, "k: torch.float16"),
                (lambda: plain(x, x, 1), TypeError, "v: int"),
                (lambda: plain(x, x, x, mask=torch.ones(3, 3).long()), TypeError, "mask: torch.int64"),
                (lambda: plain(x, x, x, dtype="bfloat16"), TypeError, "dtype: is no"),
                (lambda: sdpa(x, x, x, [[True]]), TypeError, "attn_mask: list"),
                (lambda: plain(x, x, x, sinks=[1.0, 2.0]), TypeError, "sinks"),
                (lambda: plain(x, x, x, align="nonsense"), ValueError, "align"),
                (lambda: plain(x, x, x, align=2.0), TypeError, "align"),
                (lambda: plain(x, x, x, window=(1.5, 0)), TypeError, "window"),
                (lambda: plain(x, x, x, num_splits="a"), TypeError, "num_splits"),
                (lambda: plain(x, x, x, scale="a"), TypeError, "scale"),
                (lambda: plain(x, x, x, softcap=None), TypeError, "softcap"),
                (lambda: plain(x, x, x, kernel=3), TypeError, "kernel"),
                (lambda: plain(x, x, x, max_scratch_bytes=2**63), ValueError, "max_scratch_bytes"),
                (lambda: plain(x, x, x, kv_lengths=["a"]), TypeError, "kv_lengths"),
                (lambda: plain(x, x, x, kv_lengths=torch.ones(1).bfloat16()), TypeError, "kv_lengths"),
                (lambda: sdpa(x, x, x, torch.ones(3, 3).long()), TypeError, "attn_mask: torch.int64"),
                (lambda: sdpa(x.repeat(2, 1, 1, 1), x, x.repeat(3, 1, 1, 1)), ValueError, "value: the axes"),
                (lambda: sdpa(x.to_sparse(), x, x), TypeError, "query: torch.sparse"),
                (lambda: plain(x, x, x, window=1), ValueError, "window")):
            with self.subTest(text), self.assertRaises(kind) as raised:
                call()
            self.assertTrue(str(raised.exception).startswith(text), str(raised.exception))

    def test_what_happens_before_the_backward(self):
        torch.manual_seed(4)
        x = torch.randn(2, 4, 9, 16, requires_grad=True)
        out = vkattn.torch.attention(x, x, x)
        out.mul_(2)  # of memory that the backward reads
        with self.assertRaisesRegex(RuntimeError, "inplace"):
            out.sum().backward()
        lengths = np.array([3, 9], np.int32)
        for change in (0, 2):
            x.grad = None
            out = vkattn.torch.attention(x, x, x, kv_lengths=lengths)
            lengths -= change
            out.square().sum().backward()
            first = x.grad.clone() if change == 0 else first
        torch.testing.assert_close(x.grad, first, rtol=0, atol=0)
        out = vkattn.torch.attention(x[:, :, :2], x, x, kernel="rows")
        out.sum().backward()  # the kernel has no backward: the planner chooses

    def test_sinks(self):
        torch.manual_seed(5)
        x, sinks = torch.randn(2, 4, 9, 16), torch.randn(4, requires_grad=True)
        dout = torch.randn(2, 4, 9, 16)
        vkattn.torch.attention(x, x, x, sinks=sinks).backward(dout)
        wide = sinks.detach().double().requires_grad_()
        scores = x.double() @ x.double().transpose(-2, -1) / 4
        column = wide[None, :, None, None].expand(2, 4, 9, 1)
        weights = torch.softmax(torch.cat([scores, column], -1), -1)[..., :-1]
        (weights @ x.double()).backward(dout.double())
        torch.testing.assert_close(sinks.grad.double(), wide.grad, rtol=1e-4, atol=1e-4)
        with self.assertRaisesRegex(NotImplementedError, "^slopes: "):
            vkattn.torch.attention(x, x, x, slopes=torch.ones(4, requires_grad=True))

    def test_docs(self):
        self.assertEqual(doctest.testmod(vkattn.torch).failed, 0)

    def test_module(self):
        """A layer of a model learns."""
        torch.manual_seed(3)
        project = torch.nn.Linear(16, 48)
        x, target = torch.randn(2, 12, 16), torch.randn(2, 12, 16)
        optimizer = torch.optim.Adam(project.parameters(), lr=0.03)
        losses = []
        for _ in range(30):
            q, k, v = (part.reshape(2, 12, 2, 8).transpose(1, 2) for part in project(x).chunk(3, -1))
            out = vkattn.torch.attention(q, k, v, causal=True).transpose(1, 2).reshape(2, 12, 16)
            loss = (out - target).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        self.assertLess(losses[-1], 0.8 * losses[0])


if __name__ == "__main__":
    unittest.main()
