"""attention() and attention_backward() against numpy in float64."""

import itertools
import unittest

import numpy as np
import reference
import vkattn

ROWS, KEYS = 37, 53
MASK = np.random.default_rng(9)
PROBLEMS = {
    "plain": {},
    "causal": {"causal": True},
    "top left": {"causal": True, "align": "top-left"},
    "offset": {"causal": True, "align": -5},
    "offsets": {"causal": True, "query_offsets": [3, 20]},
    "window": {"window": (9, 2)},
    "left window": {"window": (4, -1), "causal": True},
    "scale": {"scale": -0.3},
    "softcap": {"softcap": 3.0},
    "lengths": {"kv_lengths": [53, 20]},
    "no keys": {"kv_lengths": [0, 1], "causal": True},
    "bool mask": {"mask": MASK.random((ROWS, KEYS)) < 0.7},
    "mask of keys": {"mask": MASK.random((2, 1, 1, KEYS)) < 0.7},
    "mask of heads": {"mask": MASK.random((2, ROWS, KEYS)) < 0.7},
    "float mask": {"mask": MASK.standard_normal((2, 4, ROWS, KEYS))},
    "float mask of rows": {"mask": MASK.standard_normal((ROWS, 1))},
    "mask that hides": {"mask": np.where(MASK.random((1, 4, ROWS, KEYS)) < 0.3, -np.inf, 0.5)},
    "slopes": {"slopes": [0.5, 0.25, 1, 0]},
    "slopes of batches": {"slopes": [[0.5, 0.25, 1, 0], [0, 1, 2, 3]]},
    "sinks": {"sinks": [0.5, -1, 2, -np.inf]},
    "block map": {"block_map": MASK.integers(0, 3, (1, 2, 3, 4)).astype(np.uint8), "block_size": (16, 16),
                  "mask": MASK.random((ROWS, KEYS)) < 0.7},
    "splits": {"num_splits": 3},
    "batch invariant": {"batch_invariant": True},
    "tiles": {"kernel": "tiles"},
}
OF_LIBRARY = ("num_splits", "batch_invariant", "kernel")
# The kernels have tests of their own: here each argument is shown to reach them, so that some problems do for float16
# and for the backward.
OF_FLOAT16 = ("causal", "float mask")
OF_BACKWARD = ("causal", "lengths", "mask of keys", "float mask", "float mask of rows", "slopes", "sinks", "block map")


def tensors(dtype, seed=1, layout="bhsd", dims=(24, 40)):
    """q, k, v and dout, 4 query heads to 2 of keys."""
    random = np.random.default_rng(seed)
    shapes = [(2, 4, ROWS, dims[0]), (2, 2, KEYS, dims[0]), (2, 2, KEYS, dims[1]), (2, 4, ROWS, dims[1])]
    made = [random.standard_normal(shape).astype(dtype) for shape in shapes]
    return [np.ascontiguousarray(x.transpose(0, 2, 1, 3)) for x in made] if layout == "bshd" else made


def typed(problem, dtype):
    """The problem with a float mask of the tensors' type."""
    problem = dict(problem)
    if "mask" in problem and problem["mask"].dtype != bool:
        problem["mask"] = problem["mask"].astype(dtype)
    return problem


class Attention(unittest.TestCase):
    def hold(self, got, exact, naive, dtype, what):
        got = np.asarray(got, np.float64)
        self.assertEqual(got.shape, exact.shape, what)
        finite = np.isfinite(exact)
        self.assertTrue((np.isneginf(got) == np.isneginf(exact)).all(), what)
        worst = np.abs(got[finite] - exact[finite]).max(initial=0)
        bound = reference.error_bound(exact[finite], naive[finite], dtype)
        self.assertLessEqual(worst, bound, f"{what}: off by {worst:g}, {bound:g} is allowed")

    def check_forward(self, q, k, v, dtype, problem):
        out, lse = vkattn.attention(q, k, v, **problem)
        known = {name: value for name, value in problem.items() if name not in OF_LIBRARY}
        exact = reference.attention(q, k, v, **known)
        naive = reference.attention(q, k, v, round_weights=lambda p: p.astype(dtype).astype(np.float64), **known)
        self.assertEqual((out.dtype, lse.dtype), (q.dtype, np.float32))
        self.hold(out, exact[0], naive[0], dtype, "out")
        self.hold(lse, exact[1], exact[1], "float32", "lse")
        return out, lse

    def test_forward(self):
        for dtype, (name, problem) in itertools.product(("float32", "float16"), PROBLEMS.items()):
            if dtype == "float16" and name not in OF_FLOAT16:
                continue
            with self.subTest(name, dtype=dtype):
                q, k, v, _ = tensors(dtype)
                self.check_forward(q, k, v, dtype, typed(problem, dtype))

    def test_backward(self):
        for dtype, (name, problem) in itertools.product(("float32", "float16"), PROBLEMS.items()):
            if name not in OF_BACKWARD or (dtype == "float16" and name != "float mask"):
                continue
            with self.subTest(name, dtype=dtype):
                q, k, v, dout = tensors(dtype)
                problem = typed(problem, dtype)
                dlse = np.random.default_rng(2).standard_normal((2, 4, ROWS)).astype(np.float32)
                with_bias = "mask" in problem and problem["mask"].dtype != bool
                wants = {"dbias": with_bias, "dsinks": "sinks" in problem}
                out, lse = vkattn.attention(q, k, v, **problem)
                got = vkattn.attention_backward(dout, q, k, v, out, lse, dlse=dlse, **wants, **problem)
                known = {key: value for key, value in problem.items() if key not in OF_LIBRARY}
                dq, dk, dv, dbias, dsinks = reference.gradients(dout, q, k, v, dlse, **known)
                exact = [dq, dk, dv]
                if with_bias:
                    exact.append(reference.to_mask(dbias, problem["mask"].shape))
                if wants["dsinks"]:
                    exact.append(dsinks)
                self.assertEqual(len(got), len(exact))
                for result, right, what in zip(got, exact, ("dq", "dk", "dv", "dbias or dsinks", "dsinks")):
                    # Rounding of P and dS to the storage type: some last places of the largest element.
                    place = {"float32": 2e-5, "float16": 6e-3}[dtype] * max(1, np.abs(right).max())
                    self.assertEqual(result.shape, right.shape)
                    self.assertLessEqual(np.abs(np.asarray(result, np.float64) - right).max(), place, what)

    def test_layouts_and_strides(self):
        base = tensors("float32")
        out, lse = vkattn.attention(*base[:3], causal=True)
        q, k, v, dout = (np.ascontiguousarray(x.transpose(0, 2, 1, 3)) for x in base)
        turned, same_lse = vkattn.attention(q, k, v, causal=True, layout="bshd")
        np.testing.assert_array_equal(turned.transpose(0, 2, 1, 3), out)
        np.testing.assert_array_equal(same_lse, lse)
        gradients = vkattn.attention_backward(base[3], *base[:3], out, lse, causal=True)
        others = vkattn.attention_backward(dout, q, k, v, turned, lse, causal=True, layout="bshd")
        for one, other in zip(gradients, others):
            np.testing.assert_array_equal(one, other.transpose(0, 2, 1, 3))
        packed = np.zeros((2, ROWS, 3, 4, 24), np.float32)  # (batch, rows, q k v, heads, head dim)
        packed[:] = np.random.default_rng(4).standard_normal(packed.shape)
        views = [packed[:, :, i].transpose(0, 2, 1, 3) for i in range(3)]
        right = vkattn.attention(*map(np.ascontiguousarray, views))[0]
        for name, change in {"views": lambda x: x, "Fortran": np.asfortranarray,
                             "reversed": lambda x: x[:, ::-1][:, ::-1],
                             "negative": lambda x: np.ascontiguousarray(x[:, :, ::-1])[:, :, ::-1],
                             "every other": lambda x: np.repeat(x, 2, 2)[:, :, ::2],
                             "innermost": lambda x: np.repeat(x, 2, 3)[..., ::2],
                             "swapped": lambda x: x.astype(">f4"),
                             "memory": lambda x: memoryview(np.ascontiguousarray(x))}.items():
            with self.subTest(name):
                np.testing.assert_array_equal(vkattn.attention(*map(change, views))[0], right)
        one = np.broadcast_to(views[1][:1], views[1].shape)
        np.testing.assert_array_equal(vkattn.attention(views[0], one, one)[0],
                                      vkattn.attention(views[0], one.copy(), one.copy())[0])

    def test_bfloat16(self):
        random = np.random.default_rng(5)
        floats = [random.standard_normal((1, 2, n, 16)).astype(np.float32) for n in (9, 30, 30)]
        halves = [(x.view(np.uint32) >> 16).astype(np.uint16) for x in floats]
        stored = [(x.astype(np.uint32) << 16).view(np.float32) for x in halves]
        exact, lse = reference.attention(*stored)
        for kind in (np.uint16, "V2"):
            out, got = vkattn.attention(*(x.view(kind) for x in halves), dtype="bfloat16")
            self.assertEqual(out.dtype, np.dtype(kind))
            out = (np.asarray(out).view(np.uint16).astype(np.uint32) << 16).view(np.float32)
            self.assertLessEqual(np.abs(out - exact).max(), 2e-2)
            self.assertLessEqual(np.abs(got - lse).max(), 1e-5)

    def test_types_of_keys(self):
        """Keys and values of other types than q's, and ggml's blocks, in either layout and as slices."""
        q, k, v, _ = tensors(np.float32, dims=(64, 32))
        k16, v16 = k.astype(np.float16), v.astype(np.float16)
        mask = MASK.standard_normal((ROWS, KEYS)).astype(np.float16)
        self.hold_types((q, k16, v16), (q, k16, v16), mask=mask)
        k8, v8 = (reference.q8_0(x) for x in (k, v))
        decoded = [reference.of_q8_0(x) for x in (k8, v8)]
        self.hold_types((q, k8, v8), (q, *decoded), kv_dtype="q8_0")
        self.hold_types((q, k8, v16), (q, decoded[0], v16), kv_dtype=("q8_0", None))
        wide = np.zeros(k8.shape[:3] + (k8.shape[3] + 34,), np.uint8)
        wide[..., :k8.shape[3]] = k8
        self.hold_types((q, wide[..., :k8.shape[3]], v8), (q, *decoded), kv_dtype="q8_0")
        scales = [np.float32(np.abs(x).max((3,)) / 127) for x in (k, v)]
        ints = [np.rint(x / s[..., None]).astype(np.int8) for x, s in zip((k, v), scales)]
        self.hold_types((q, *ints), (q, *(np.float32(x * s[..., None]) for x, s in zip(ints, scales))),
                        kv_dtype="int8", key_scales=scales[0], value_scales=scales[1])
        halves = [x.astype(np.float16).view(np.uint16) >> 8 for x in (k, v)]  # e5m2 is the upper half of float16
        self.hold_types((q, *(x.astype(np.uint8) for x in halves)),
                        (q, np.float32((halves[0] << 8).astype(np.uint16).view(np.float16)) * np.float32(0.5),
                         np.float32((halves[1] << 8).astype(np.uint16).view(np.float16))),
                        kv_dtype="e5m2", key_scales=np.float32(0.5))
        turned = [np.ascontiguousarray(x.transpose(0, 2, 1, 3)) for x in (q, k8, v8)]
        out = vkattn.attention(*turned, kv_dtype="q8_0", layout="bshd", return_lse=False)
        self.assertTrue(np.array_equal(out.transpose(0, 2, 1, 3), vkattn.attention(q, k8, v8, kv_dtype="q8_0")[0]))
        with self.assertRaisesRegex(NotImplementedError, "^k: q8_0 has no gradient"):
            out, lse = vkattn.attention(q, k8, v8, kv_dtype="q8_0")
            vkattn.attention_backward(out, q, k8, v8, out, lse, kv_dtype="q8_0")

    def test_value_in_key(self):
        random = np.random.default_rng(6)
        q, k = (random.standard_normal((2, heads, rows, 96), np.float32) for heads, rows in ((4, 5), (2, 9)))
        k16 = k.astype(np.float16)
        for key, exact, options in ((k, k, {}), (k16, k16, {"causal": True}),
                                    (reference.q8_0(k), reference.of_q8_0(reference.q8_0(k)), {"kv_dtype": "q8_0"})):
            own = vkattn.attention(q, key, value_in_key=64, **options)
            options.pop("kv_dtype", None)
            expected = reference.attention(q, exact, exact[..., :64], **options)
            self.assertTrue(np.allclose(own[0], expected[0], atol=2e-5) and np.allclose(own[1], expected[1], atol=2e-5))
        on_device = [vkattn.array(x) for x in (q, k)]
        for _ in range(2):  # the second call takes the plan of the first
            out = np.asarray(vkattn.attention(*on_device, value_in_key=64, return_lse=False))
            self.assertTrue(np.array_equal(out, vkattn.attention(q, k, value_in_key=64, return_lse=False)))
        self.assertEqual(vkattn.plan((1, 4, 5, 96), (1, 2, 9, 96), value_in_key=64).explain()["num_splits"], 1)
        for error, text, options in ((TypeError, "^v: is None", {}),
                                     (ValueError, "^value_in_key: 97", {"value_in_key": 97}),
                                     (TypeError, "^value_in_key: excludes v", {"v": k, "value_in_key": 64}),
                                     (TypeError, "^value_in_key: True", {"value_in_key": True}),
                                     (ValueError, "^kv_dtype: ", {"value_in_key": 64, "kv_dtype": (None, "float16")}),
                                     (ValueError, "^value_scales: ", {"value_in_key": 64, "value_scales": 1.0})):
            with self.assertRaisesRegex(error, text):
                vkattn.attention(q, k, **options)
        with self.assertRaisesRegex(NotImplementedError, "^value_in_key: only the forward"):
            vkattn.attention_backward(q[..., :64], q, k, None, q[..., :64], np.zeros(q.shape[:3], np.float32),
                                      value_in_key=64)

    def test_gradients_have_types_of_their_own(self):
        random = np.random.default_rng(7)
        q = random.standard_normal((1, 4, 5, 16), np.float32)
        k, v, mask = (random.standard_normal(shape).astype(np.float16)
                      for shape in ((1, 2, 9, 16), (1, 2, 9, 24), (5, 9)))
        out, lse = vkattn.attention(q, k, v, mask=mask)
        dout = np.ones_like(out)
        own = vkattn.attention_backward(dout, q, k, v, out, lse, mask=mask, dbias=True)
        wide = vkattn.attention_backward(dout, q, *(x.astype(np.float32) for x in (k, v)), out, lse,
                                         mask=mask.astype(np.float32), dbias=True)
        self.assertEqual([x.dtype for x in own], [np.float32, np.float16, np.float16, np.float16])
        for a, b in zip(own, wide):
            self.assertTrue(np.allclose(a, b, rtol=2e-3, atol=2e-3))

    def hold_types(self, given, decoded, **options):
        out, lse = vkattn.attention(*given, **options)
        problem = {name: value for name, value in options.items() if not name.endswith(("kv_dtype", "scales"))}
        exact = reference.attention(*decoded, **problem)
        naive = reference.attention(*decoded, round_weights=lambda p: p.astype("float32").astype(np.float64), **problem)
        self.hold(out, exact[0], naive[0], "float32", options)
        self.hold(lse, exact[1], exact[1], "float32", "lse")

    def test_empty(self):
        for b, h, rows, keys in ((0, 2, 3, 4), (1, 2, 0, 4), (1, 2, 3, 0)):
            q, k = np.ones((b, h, rows, 8), np.float32), np.ones((b, h, keys, 8), np.float32)
            out, lse = vkattn.attention(q, k, k)
            self.assertEqual((out.shape, lse.shape), ((b, h, rows, 8), (b, h, rows)))
            self.assertTrue((out == 0).all() and np.isneginf(lse).all() or keys != 0)
            for gradient, like in zip(vkattn.attention_backward(q, q, k, k, out, lse), (q, k, k)):
                self.assertEqual(gradient.shape, like.shape)
                self.assertTrue((gradient == 0).all())

    def test_block_map(self):
        q, k, v, _ = tensors("float32")
        mask = np.zeros((4, ROWS, KEYS), bool)
        mask[:, :16, :16] = True
        mask[2, 20, 40] = True
        blocks = vkattn.block_map(q, k, v, mask=mask, block_size=(16, 16))
        self.assertEqual((blocks.shape, blocks.dtype), ((1, 4, 3, 4), np.uint8))
        expected = np.zeros_like(blocks)
        expected[:, :, 0, 0], expected[0, 2, 1, 2] = 1, 2
        np.testing.assert_array_equal(blocks, expected)
        together = vkattn.block_map(q, k, v, mask=mask, block_size=(16, 16), heads=1)
        np.testing.assert_array_equal(together, expected.max(1, keepdims=True))
        self.check_forward(q, k, v, "float32", {"mask": mask, "block_map": blocks, "block_size": (16, 16)})

    def test_combine(self):
        q, k, v, _ = tensors("float32")
        k, v = (np.repeat(x, 2, 1) for x in (k, v))
        halves = [vkattn.attention(q, k[:, :, part], v[:, :, part]) for part in (slice(0, 20), slice(20, KEYS))]
        out, lse = vkattn.combine(*zip(*halves))
        exact, exact_lse = reference.attention(q, k, v)
        np.testing.assert_allclose(out, exact, atol=1e-5)
        np.testing.assert_allclose(lse, exact_lse, atol=1e-5)
        out, _ = vkattn.combine(np.stack([h[0] for h in halves]), np.stack([h[1] for h in halves]), sinks=[1, 2, 3, 4])
        np.testing.assert_allclose(out, reference.attention(q, k, v, sinks=[1, 2, 3, 4])[0], atol=1e-5)

    def test_plans(self):
        shape = (1, 8, 512, 64)
        about = vkattn.plan(shape, shape, shape, kernel="tiles").explain()
        self.assertEqual((about["kernel"], about["num_splits"]), ("tiles", 1))
        self.assertIn("matrix", about["refused"])
        backward = vkattn.plan(shape, shape, shape, backward=True, dtype="float16", kernel="tiles").explain()
        self.assertEqual(backward["kernel"], "tiles")
        self.assertGreater(backward["scratch_bytes"], 0)


if __name__ == "__main__":
    unittest.main()
