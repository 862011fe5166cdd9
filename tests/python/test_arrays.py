"""Arrays on the device, and what arguments may not be."""

import pickle
import unittest

import numpy as np
import vkattn

SHAPES = ((1, 4, 6, 8), (1, 2, 9, 8), (1, 2, 9, 16))


def tensors(dtype=np.float32, seed=1):
    random = np.random.default_rng(seed)
    return [random.standard_normal(shape).astype(dtype) for shape in SHAPES]


class Arrays(unittest.TestCase):
    def test_results_stay_on_the_device(self):
        host = tensors()
        q, k, v = map(vkattn.array, host)
        out, lse = vkattn.attention(q, k, v, causal=True)
        self.assertIsInstance(out, vkattn.Array)
        expected = vkattn.attention(*host, causal=True)
        np.testing.assert_array_equal(np.asarray(out), expected[0])
        np.testing.assert_array_equal(lse.numpy(), expected[1])
        dout = vkattn.array(np.ones(out.shape, np.float32))
        gradients = vkattn.attention_backward(dout, q, k, v, out, lse, causal=True)
        others = vkattn.attention_backward(np.ones(out.shape, np.float32), *host, *expected, causal=True)
        for one, other in zip(gradients, others):
            self.assertEqual((one.shape, one.dtype), (other.shape, other.dtype))
            np.testing.assert_array_equal(one.numpy(), other)
        mixed, _ = vkattn.attention(q, host[1], v, causal=True)
        np.testing.assert_array_equal(mixed.numpy(), expected[0])
        parts = vkattn.empty((2, *out.shape))
        self.assertEqual(vkattn.combine(parts, vkattn.array(np.zeros((2, *lse.shape), np.float32)))[0].shape, out.shape)

    def assert_alike(self, found, expected):
        for one, other in zip(*((x,) if not isinstance(x, tuple) else x for x in (found, expected))):
            self.assertIsInstance(one, vkattn.Array)
            np.testing.assert_array_equal(one.numpy(), other)

    def test_calls_that_are_alike(self):
        # A call finds what an earlier one has prepared: each is made three times, in turns, of other content.
        random = np.random.default_rng(8)
        variants = [{}, {"causal": True}, {"causal": 1}, {"scale": 0.3}, {"scale": -1}, {"window": (2, 1)},
                    {"softcap": 2.0}, {"return_lse": False}, {"align": "top-left", "causal": True},
                    {"align": 3, "causal": True}, {"kernel": "tiles"}, {"slopes": np.float32([.5, .2, .1, -.1])},
                    {"sinks": np.float32([1, 2, -1, 0])}, {"kv_lengths": np.int32([3, 9])},
                    {"kv_lengths": np.int32([9, 4]), "causal": True}, {"mask": random.random((6, 9)) < .7},
                    {"mask": random.random((2, 1, 6, 9)) < .7}, {"mask": random.random((6, 9)).astype(np.float32)},
                    {"block_map": np.uint8([[[[1]]]]), "block_size": (16, 16)}]
        views = (np.s_[:], np.s_[:, :, 0:1], np.s_[:, :, 1:2])
        for _ in range(3):
            q, k, v = (random.standard_normal((2, *shape[1:])).astype(np.float32) for shape in SHAPES)
            on_device = [vkattn.array(x) for x in (q, k, v)]
            for options in variants:
                placed = {name: vkattn.array(value) if isinstance(value, np.ndarray) else value
                          for name, value in options.items()}
                views_of = views if "mask" not in options and "align" not in options else views[:1]
                for view in views_of:
                    found = vkattn.attention(on_device[0][view], *on_device[1:], **placed)
                    expected = vkattn.attention(q[view], k, v, **options)
                    self.assert_alike(found, expected)
                    if "return_lse" in options or view != views[0]:
                        continue
                    dout = random.standard_normal(found[0].shape).astype(np.float32)
                    for more in ({}, {"dlse": dout[..., 0].copy()}, {"dsinks": "sinks" in options},
                                 {"dbias": options.get("mask", np.float64()).dtype == np.float32}):
                        placed_more = {name: vkattn.array(value) if isinstance(value, np.ndarray) else value
                                       for name, value in more.items()}
                        self.assert_alike(
                            vkattn.attention_backward(vkattn.array(dout), *on_device, *found, **placed, **placed_more),
                            vkattn.attention_backward(dout, q, k, v, *expected, **options, **more))
        prepared = on_device[0]._buffer.session._plans.values()
        self.assertEqual({x.run for x in prepared if hasattr(x, "run")},
                         {"vkattn_runtime_run_forward", "vkattn_runtime_run_backward"})
        for wrong in ({"scale": float("nan")}, {"window": (1, 2, 3)}, {"layout": "sbhd"}) * 2:
            with self.assertRaises(ValueError):
                vkattn.attention(*on_device, **wrong)
        with self.assertRaises(ValueError):
            vkattn.attention(on_device[0], on_device[1][:, :, :4], on_device[2])

    def test_slices_share_memory(self):
        x = np.arange(2 * 3 * 5 * 4, dtype=np.float32).reshape(2, 3, 5, 4)
        on_device = vkattn.array(x)
        for key in (np.s_[1:], np.s_[:, 1:], np.s_[:, :, ::2], np.s_[..., 1:3], np.s_[1, :, 2:4], np.s_[:, -1],
                    np.s_[:, 2:1], np.s_[0, 0, 0], np.s_[..., 1:2, :]):
            np.testing.assert_array_equal(on_device[key].numpy(), x[key])
        self.assertEqual(on_device[1:]._buffer, on_device._buffer)
        self.assertEqual((on_device.nbytes, on_device.size, len(on_device), on_device.ndim), (480, 120, 2, 4))
        q, k, v = tensors()
        cache = vkattn.array(np.concatenate([k, np.full_like(k, np.nan)], 2))
        values = vkattn.array(np.concatenate([v, np.full_like(v, np.nan)], 2))
        out, _ = vkattn.attention(vkattn.array(q), cache[:, :, :9], values[:, :, :9])
        np.testing.assert_array_equal(out.numpy(), vkattn.attention(q, k, v)[0])
        for key in (np.s_[0, 0, 0, 0, 0], np.s_[..., ...], np.s_[5], np.s_[:, :, ::-1], np.s_[..., ::2], "x", None,
                    np.array([0, 1]), True):
            with self.assertRaises(IndexError):
                on_device[key]

    def test_assignment(self):
        random = np.random.default_rng(6)
        x = random.standard_normal((2, 3, 5, 4)).astype(np.float32)
        for key in (np.s_[...], np.s_[:, :, 2:3], np.s_[:, 1], np.s_[1, :, ::2], np.s_[..., 1:3], np.s_[0, 0, 0],
                    np.s_[:, :, 3:3]):
            on_device, copy = vkattn.array(x), x.copy()
            new = random.standard_normal(x[key].shape).astype(np.float32)
            on_device[key] = copy[key] = new
            np.testing.assert_array_equal(on_device.numpy(), copy)
            on_device[key], copy[key] = vkattn.array(np.full(4, 2, np.float32))[:new.shape[-1]], 2
            np.testing.assert_array_equal(on_device.numpy(), copy)
        with self.assertRaisesRegex(TypeError, "^value: is float64"):
            on_device[0] = np.zeros(4)
        with self.assertRaises(ValueError):
            on_device[0] = np.zeros(3, np.float32)

    def test_what_an_array_is_not(self):
        x = vkattn.array(np.zeros((1, 2, 3, 4), np.float32))
        for call in (lambda: pickle.dumps(x), lambda: x + np.ones(4), lambda: np.ones(4) + x,
                     lambda: vkattn.array(np.array([object()])), lambda: vkattn.array(np.array(["text"]))):
            with self.assertRaises(TypeError):
                call()
        for shape in ((-1, 4), (2**62, 4)):
            with self.assertRaisesRegex(ValueError, "^shape: "):
                vkattn.empty(shape)
        with self.assertRaisesRegex(TypeError, "^shape: "):
            vkattn.empty((2.5, 3))
        columns = vkattn.array(np.zeros((1, 2, 3, 8, 3), np.float32))
        with self.assertRaisesRegex(ValueError, "^q: the elements of a row"):
            vkattn.attention(*(columns[..., i] for i in range(3)))

    def test_dlpack(self):
        x = np.arange(24, dtype=np.float32).reshape(1, 2, 3, 4)
        on_device = vkattn.array(x)
        self.assertEqual(on_device.__dlpack_device__(), (1, 0))
        np.testing.assert_array_equal(np.from_dlpack(on_device), x)

        class Foreign:  # has DLPack, and nothing else
            def __dlpack__(self, **options):
                return x.__dlpack__()

            def __dlpack_device__(self):
                return x.__dlpack_device__()

        out, _ = vkattn.attention(Foreign(), Foreign(), Foreign())
        np.testing.assert_array_equal(out, vkattn.attention(x, x, x)[0])
        for options in ({"stream": 1}, {"dl_device": (2, 0)}, {"copy": False}):
            with self.assertRaises(BufferError):
                on_device.__dlpack__(**options)
        self.assertEqual(np.array(on_device, np.float64).dtype, np.float64)

    def test_devices(self):
        device = vkattn.devices()[0]
        self.assertEqual(vkattn.array(np.zeros(3, np.float32), device=device).device, device)
        self.assertEqual(vkattn.empty((2, 3), device=device.index).device, device)
        self.assertEqual(vkattn.empty((2, 3), device=device.name).device.uuid, device.uuid)


Q, K, V = tensors()
OUT, LSE = np.zeros((1, 4, 6, 16), np.float32), np.zeros((1, 4, 6), np.float32)
MASK = np.ones((6, 9), bool)
MAP = np.ones((1, 1, 1, 1), np.uint8)

# What attention is given, which exception it raises, and how its text begins.
WRONG = [
    (lambda a: a(1, K, V), TypeError, "q: int is no array"),
    (lambda a: a(Q, [1.0], V), TypeError, "k: list is no array"),
    (lambda a: a(Q, K, None), TypeError, "v: is None, and value_in_key does not say where values lie"),
    (lambda a: a(Q.astype(np.float64), K, V), TypeError, "q: float64"),
    (lambda a: a(Q.astype(np.int32), K, V), TypeError, "q: int32"),
    (lambda a: a(Q, K.astype(np.uint8), V), TypeError, "k: uint8"),
    (lambda a: a(Q, K, V, kv_dtype="q8_0"), TypeError, "k: is float32, and q8_0 is held in uint8"),
    (lambda a: a(Q, K.astype(np.uint8), V.astype(np.uint8), kv_dtype="q8_0"), ValueError, "k: rows of 8 bytes"),
    (lambda a: a(Q, K, V, key_scales=[1.0]), ValueError, "key_scales: "),
    (lambda a: a(Q, K, V, value_scales=[1.0] * 3), ValueError, "value_scales: shape (3,)"),
    (lambda a: a(Q, K, V, kv_dtype="q3"), ValueError, "kv_dtype: 'q3'"),
    (lambda a: a(Q, K, V, kv_dtype=("q8_0",)), TypeError, "kv_dtype: ('q8_0',)"),
    (lambda a: a(Q.astype(np.uint16), K, V), TypeError, "q: uint16"),
    (lambda a: a(Q, K, V, dtype="bfloat16"), TypeError, "q: float32 holds no bfloat16"),
    (lambda a: a(Q, K, V, dtype="float16"), TypeError, "q: is float32"),
    (lambda a: a(Q, K, V, dtype="int8"), TypeError, "dtype: int8"),
    (lambda a: a(Q[0], K, V), ValueError, "q: has 3 axes"),
    (lambda a: a(Q, K[0], V), ValueError, "k: has 3 axes"),
    (lambda a: a(Q, K, V[0]), ValueError, "v: has 3 axes"),
    (lambda a: a(Q, K[:, :, :8], V), ValueError, "v: batch, heads and sequence"),
    (lambda a: a(Q, K[:, :1], V), ValueError, "v: batch, heads and sequence"),
    (lambda a: a(np.repeat(Q, 2, 0), K, V), ValueError, "k: batch 1"),
    (lambda a: a(Q[..., :4], K, V), ValueError, "k: head dim 8"),
    (lambda a: a(Q[:, :3], K, V), ValueError, "k: "),
    (lambda a: a(np.zeros((1, 1, 2, 600), np.float32), np.zeros((1, 1, 2, 600), np.float32),
                 np.zeros((1, 1, 2, 8), np.float32)), ValueError, "q: "),
    (lambda a: a(Q[..., :0], K[..., :0], V), ValueError, "q: "),
    (lambda a: a(Q, K, V[..., :0]), ValueError, "v: "),
    (lambda a: a(Q, K, V, layout="sbhd"), ValueError, "layout: 'sbhd'"),
    (lambda a: a(Q, K, V, layout="bshd"), ValueError, "k: "),
    (lambda a: a(Q, K, V, window=3), ValueError, "window: 3"),
    (lambda a: a(Q, K, V, window=(1, 2, 3)), ValueError, "window: (1, 2, 3)"),
    (lambda a: a(Q, K, V, window=("x", 1)), TypeError, "window: "),
    (lambda a: a(Q, K, V, window=(-2, 0)), ValueError, "window: "),
    (lambda a: a(Q, K, V, align="left"), ValueError, "align: 'left'"),
    (lambda a: a(Q, K, V, align=2**40), ValueError, "align: "),
    (lambda a: a(Q, K, V, scale=np.inf), ValueError, "scale: "),
    (lambda a: a(Q, K, V, scale="x"), TypeError, "scale: 'x'"),
    (lambda a: a(Q, K, V, softcap=-1.0), ValueError, "softcap: "),
    (lambda a: a(Q, K, V, softcap=float("nan")), ValueError, "softcap: "),
    (lambda a: a(Q, K, V, mask=1), TypeError, "mask: int is no array"),
    (lambda a: a(Q, K, V, mask=MASK.astype(np.int64)), TypeError, "mask: int64"),
    (lambda a: a(Q, K, V, mask=np.zeros((6, 9))), TypeError, "mask: float64"),
    (lambda a: a(Q, K, V, mask=np.ones((1, 1, 1, 6, 9), bool)), ValueError, "mask: has 5 axes"),
    (lambda a: a(Q, K, V, mask=np.bool_(True)), ValueError, "mask: has 0 axes"),
    (lambda a: a(Q, K, V, mask=MASK[:5]), ValueError, "mask"),
    (lambda a: a(Q, K, V, mask=np.ones((3, 6, 9), bool)), ValueError, "mask"),
    (lambda a: a(Q, K, V, mask=np.ones((6, 10), bool)), ValueError, "mask"),
    (lambda a: a(Q, K, V, kv_lengths=[1, 2]), ValueError, "kv_lengths: shape (2,)"),
    (lambda a: a(Q, K, V, kv_lengths=[1.5]), TypeError, "kv_lengths: float64"),
    (lambda a: a(Q, K, V, kv_lengths=[2**31]), ValueError, "kv_lengths: a number"),
    (lambda a: a(Q, K, V, kv_lengths=3), TypeError, "kv_lengths: int"),
    (lambda a: a(Q, K, V, query_offsets=[1, 2]), ValueError, "query_offsets: shape"),
    (lambda a: a(Q, K, V, query_offsets=[1], align="top-left"), ValueError, "query_offsets: align"),
    (lambda a: a(Q, K, V, slopes=[1.0]), ValueError, "slopes: shape (1,)"),
    (lambda a: a(Q, K, V, slopes=[[1.0] * 4] * 2), ValueError, "slopes: shape (2, 4)"),
    (lambda a: a(Q, K, V, slopes=[1.0] * 4, slopes_of="row"), ValueError, "slopes_of: 'row'"),
    (lambda a: a(Q, K, V, slopes=[1.0] * 4, slopes_of="mask"), ValueError, "slopes"),
    (lambda a: a(Q, K, V, slopes="x"), (TypeError, ValueError), ""),
    (lambda a: a(Q, K, V, sinks=[1.0]), ValueError, "sinks: shape (1,)"),
    (lambda a: a(Q, K, V, sinks=["a"] * 4), TypeError, "sinks: <U1"),
    (lambda a: a(Q, K, V, block_map=MAP[0]), ValueError, "block_map: has 3 axes"),
    (lambda a: a(Q, K, V, block_map=np.ones((1, 1, 2, 1), np.uint8)), ValueError, "block_map: (2, 1)"),
    (lambda a: a(Q, K, V, block_map=np.ones((1, 3, 1, 1), np.uint8)), ValueError, "block_map"),
    (lambda a: a(Q, K, V, block_map=np.full((1, 1, 1, 1), 256)), ValueError, "block_map: a number"),
    (lambda a: a(Q, K, V, block_map=MAP.astype(np.float32)), TypeError, "block_map: float32"),
    (lambda a: a(Q, K, V, block_map=MAP, block_size=128), ValueError, "block_size: 128"),
    (lambda a: a(Q, K, V, block_map=MAP, block_size=(0, 16)), ValueError, "block_size: 0 is not"),
    (lambda a: a(Q, K, V, block_map=MAP, block_size=(24, 16)), ValueError, "block_size: "),
    (lambda a: a(Q, K, V, precision="int8"), ValueError, "precision: 'int8'"),
    (lambda a: a(Q, K, V, kernel="fast"), ValueError, "kernel: no kernel is named 'fast'"),
    (lambda a: a(Q, K, V, tuning="rows"), ValueError, "tuning: "),
    (lambda a: a(Q, K, V, num_splits=-1), ValueError, "num_splits: -1"),
    (lambda a: a(Q, K, V, device=2.5), TypeError, "device: float"),
    (lambda a: a(Q, K, V, device="no such device"), ValueError, "device: "),
    (lambda a: a(Q, K, V, device=99), ValueError, "device: "),
    (lambda a: a(Q, K, V, no_such_option=1), TypeError, "no_such_option: is no option of attention()"),
    (lambda a: a(Q, K, V, scale=np.nan), ValueError, "scale: "),
    (lambda a: a(Q, K, V, softcap=None), TypeError, "softcap: "),
    (lambda a: a(Q, K, V, kernel=5), TypeError, "kernel: 5"),
    (lambda a: a(Q, K, V, kernel="ti\0les"), ValueError, "kernel: "),
    (lambda a: a(Q, K, V, layout=[]), ValueError, "layout: []"),
    (lambda a: a(Q, *[np.broadcast_to(K[:, :, :1], (1, 2, 2**32 + 5, 8))] * 2), ValueError, "k: "),
    (lambda a: vkattn.plan((1, 8, 2**32 + 512, 64), (1, 8, 64, 64), (1, 8, 64, 64)), ValueError, "q: "),
    (lambda a: vkattn.plan((1, 8, 64, 64), K, V), TypeError, "q, k and v: "),
    (lambda a: vkattn.attention_backward(OUT[:, :, :5], Q, K, V, OUT, LSE), ValueError, "dout: shape"),
    (lambda a: vkattn.attention_backward(OUT, Q, K, V, OUT[..., :8], LSE), ValueError, "out: shape"),
    (lambda a: vkattn.attention_backward(OUT, Q, K, V, OUT, LSE[..., :5]), ValueError, "lse: shape"),
    (lambda a: vkattn.attention_backward(OUT.astype(np.float16), Q, K, V, OUT, LSE), TypeError, "dout: is float16"),
    (lambda a: vkattn.attention_backward(OUT, Q, K, V, OUT, LSE, dlse=LSE[0]), ValueError, "dlse: shape"),
    (lambda a: vkattn.attention_backward(OUT, Q, K, V, OUT, LSE, dbias=True), ValueError, "dbias: "),
    (lambda a: vkattn.attention_backward(OUT, Q, K, V, OUT, LSE, dsinks=True), ValueError, "dsinks: "),
    (lambda a: vkattn.attention_backward(OUT, Q, K, V, OUT, LSE, num_splits=2), ValueError, "num_splits: "),
    (lambda a: vkattn.combine(OUT, LSE), ValueError, "parts: has 4 axes"),
    (lambda a: vkattn.combine([], []), ValueError, "parts: is empty"),
    (lambda a: vkattn.combine([OUT, OUT], [LSE]), ValueError, "lses: shape"),
    (lambda a: vkattn.combine([OUT], [LSE], sinks=[1.0]), ValueError, "sinks: shape"),
    (lambda a: vkattn.block_map(Q, K, V), ValueError, "mask: there is none"),
    (lambda a: vkattn.block_map(Q, K, V, mask=MASK, heads=3), ValueError, "block_map"),
    (lambda a: vkattn.block_map(Q, K, V, mask=MASK, block_size=(8, 8)), ValueError, "block_size: "),
]


class Wrong(unittest.TestCase):
    def test_wrong_arguments(self):
        for i, (call, kind, text) in enumerate(WRONG):
            with self.subTest(i, text=text):
                with self.assertRaises(kind) as raised:
                    call(vkattn.attention)
                self.assertTrue(str(raised.exception).startswith(text), str(raised.exception))

    def test_what_the_device_cannot_do(self):
        with self.assertRaises(NotImplementedError) as raised:
            vkattn.attention(np.zeros((1, 1, 64, 8), np.float32), K[:, :1], V[:, :1], kernel="rows")
        self.assertIn("kernel: it is for at most", str(raised.exception))


if __name__ == "__main__":
    unittest.main()
