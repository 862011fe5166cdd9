"""Arrays whose memory CUDA has, too: with a small driver in the place of CUDA's, and on a GPU with PyTorch."""

import importlib.util
import os
import subprocess
import sys
import tempfile
import threading
import unittest
from pathlib import Path

import numpy as np
import vkattn

if importlib.util.find_spec("torch") is not None:
    import torch
    import vkattn.torch
    HAS_CUDA = torch.cuda.is_available()
else:
    HAS_CUDA = False

WITH_FAKE_CUDA = """
import ctypes, gc, os, numpy as np, vkattn
from vkattn import _cuda
from vkattn._buffers import BufferKind
from vkattn._library import library
from vkattn._device import session_of
_cuda.LIBRARY = LIBRARY
x = np.random.default_rng(3).standard_normal((1, 2, 33, 16)).astype(np.float32)
session = session_of()
session.is_shared = True  # as an NVIDIA device is
fake = ctypes.CDLL(LIBRARY)
count = lambda name: ctypes.c_int.in_dll(fake, "fake_" + name).value
def mapped(array):
    about = array.__cuda_array_interface__
    assert about["shape"] == array.shape and about["strides"] == array.strides and about["version"] == 3, about
    assert about["typestr"] == "<f4" and not about["data"][1]
    span = sum((n - 1) * s for n, s in zip(array.shape, array.strides)) + 4
    memory = (ctypes.c_char * span).from_address(about["data"][0])
    return np.ndarray(array.shape, np.float32, memory, 0, array.strides)

# What one side writes the other side reads, and the host waits for CUDA before it reads.
whole = vkattn.array(x)
part = whole[:, 1:, 3:30]
assert count("synchronized") == 0
np.testing.assert_array_equal(mapped(part), x[:, 1:, 3:30])
mapped(part)[...] = 7
before = count("synchronized")
assert (whole.numpy()[:, 1:, 3:30] == 7).all() and count("synchronized") == before + 1
whole[:] = x
assert count("synchronized") == before + 2 and (mapped(whole) == x).all()
assert (count("imports"), count("mapped")) == (1, 1), "a buffer is mapped once"

# A call waits for CUDA, and CUDA has its results.
before = count("synchronized")
out, lse = vkattn.attention(whole, whole, whole)
assert count("synchronized") == before + 1
np.testing.assert_allclose(mapped(out), vkattn.attention(x, x, x)[0], atol=1e-6)

# What goes is unmapped, but not what the next Array of that size takes.
address = out.__cuda_array_interface__["data"][0]
del out
again = vkattn.empty(x.shape)
assert again.__cuda_array_interface__["data"][0] == address and count("mapped") == 2
del whole, part, again, lse
gc.collect()
session.destroy_spare_buffers()
assert (count("imports"), count("mapped"), count("depth")) == (0, 0, 0)

# What fails leaves nothing.
fails = ctypes.c_int.in_dll(fake, "fake_fails")
open_files = len(os.listdir("/proc/self/fd"))
for fails.value in (1, 2):
    try:
        vkattn.array(x).__cuda_array_interface__
        raise SystemExit("no MemoryError")
    except MemoryError as error:
        assert "out of memory" in str(error), error
    assert (count("imports"), count("mapped"), count("depth")) == (0, 0, 0)
fails.value = 0
session.destroy_spare_buffers()
assert len(os.listdir("/proc/self/fd")) == open_files
assert vkattn.empty((0, 4)).__cuda_array_interface__["data"] == (0, False)

# What is too large to be kept is unmapped, too.
large = vkattn.empty((session.spares.most_bytes // 4 + 100,))
large.__cuda_array_interface__
del large
assert count("mapped") == 1
vkattn.empty((1,))
assert (count("imports"), count("mapped")) == (0, 0)

# Buffers take each other's place if they are of one kind: sizes that are nearly alike, and the same stream. What lies
# longest goes first.
cuda = session.cuda()
assert BufferKind.shared(1_100_000, 0) == BufferKind.shared(1_150_000, 0) != BufferKind.shared(1_100_000, 1)
assert all(n <= BufferKind.shared(n, 0).size_bytes <= n + max(256, n // 8) for n in range(1, 5000))
with cuda.ordered_by(7):
    first = vkattn.empty((1000,))
    handle = first._buffer.handle.value
    del first
    with cuda.ordered_by(8):
        assert vkattn.empty((1000,))._buffer.handle.value != handle
    assert vkattn.empty((999,))._buffer.handle.value == handle
    kept = [vkattn.empty((1000 + 300 * n,)) for n in range(session.spares.most + 20)]
    del kept
    again = vkattn.empty((1000 + 300 * (session.spares.most + 19),))
    assert len(session.spares._order) <= session.spares.most

# In the order of a stream a run waits for the stream and the stream for the run, with values that only grow. CUDA's
# side is done at once here.
calls, real = [], cuda._driver.call
def call(name, *arguments):
    if "Semaphores" not in name:
        return real(name, *arguments)
    value, stream = arguments[1]._obj.value, arguments[3].value
    semaphore, = [s for s in made if s._stream is arguments[3]]
    if "Signal" in name:
        library().call("vkattn_semaphore_signal", semaphore._own, value)
    calls.append((name[2:8], stream, value))
made, bound = [], library().call
class Semaphore(_cuda._Semaphore):
    def __init__(self, *arguments):
        made.append(self)
        super().__init__(*arguments)
def exports(name, *arguments):
    if name == "vkattn_semaphore_export":
        arguments[1]._obj.value = os.open("/dev/null", os.O_RDONLY)
    else:
        bound(name, *arguments)
_cuda._Semaphore, cuda._driver.call, library().call = Semaphore, call, exports
q = vkattn.array(x)
right = vkattn.attention(x, x, x, num_splits=2)[0]
for stream in (7, 8, 7):
    with cuda.ordered_by(stream):
        outs = [vkattn.attention(q, q, q, num_splits=2)[0] for _ in range(20)]
    for out in outs:
        out._buffer.write(0, 0)
        np.testing.assert_allclose(out.numpy(), right, atol=1e-6)
per_stream = {s: [(n, v) for n, of, v in calls if of == s] for s in (7, 8)}
for stream, count_of in ((7, 40), (8, 20)):
    wanted = [pair for n in range(count_of) for pair in (("Signal", 2 * n + 1), ("WaitEx", 2 * n + 2))]
    assert per_stream[stream] == wanted, per_stream[stream]
calls.clear()
class Stop(BaseException):
    pass
def stop(name, *arguments):
    if "Wait" in name:
        raise Stop
    return call(name, *arguments)
cuda._driver.call = stop
with cuda.ordered_by(7):
    try:
        vkattn.attention(q, q, q)
        raise SystemExit("not stopped")
    except Stop:
        passed = ctypes.c_int()
        bound("vkattn_semaphore_wait", made[0]._own, 82, 0, ctypes.byref(passed))
        assert passed.value == 1, "the run has ended when the caller hears of it"
    cuda._driver.call = call
    np.testing.assert_allclose(vkattn.attention(q, q, q)[0].numpy(), right, atol=1e-6)
assert calls[-2:] == [("Signal", 7, 83), ("WaitEx", 7, 84)], calls
print("right")
"""


class Fake(unittest.TestCase):
    def run_with(self, code, uuid):
        drivers = os.environ["VKATTN_TEST_DRIVERS"].split(":")
        environment = {**os.environ, "FAKE_CUDA_UUID": uuid}
        environment.update({name: drivers[-1] for name in ("VK_DRIVER_FILES", "VK_ICD_FILENAMES")})
        environment.pop("VKATTN_DEVICE", None)
        return subprocess.run([sys.executable, "-B", "-c", code], env=environment, capture_output=True, text=True,
                              check=False)

    @unittest.skipUnless(os.environ.get("VKATTN_TEST_DRIVERS"), "VKATTN_TEST_DRIVERS names no drivers of a CPU")
    def test_sharing(self):
        asked = self.run_with("import vkattn; print(vkattn.devices()[0].uuid)", "")
        self.assertEqual(asked.returncode, 0, asked.stderr)
        with tempfile.TemporaryDirectory() as folder:
            library = Path(folder, "libfake_cuda.so")
            subprocess.run([os.environ.get("CC", "cc"), "-shared", "-fPIC", "-Wall", "-Wextra", "-Werror", "-o",
                            library, Path(__file__).with_name("fake_cuda.c")], check=True)
            code = f"LIBRARY = {str(library)!r}\n" + WITH_FAKE_CUDA
            done = self.run_with(code, asked.stdout.strip())
            self.assertEqual((done.returncode, done.stdout), (0, "right\n"), done.stderr)

    @unittest.skipIf(HAS_CUDA, "there is CUDA")
    def test_without_cuda(self):
        array = vkattn.empty((1, 2, 3, 4))
        self.assertFalse(hasattr(array, "__cuda_array_interface__"))
        with self.assertRaisesRegex(NotImplementedError, "^CUDA does not have the device"):
            array._buffer.cuda_address()


@unittest.skipUnless(HAS_CUDA, "there is no CUDA")
class Cuda(unittest.TestCase):
    def test_both_ways(self):
        """A tensor over an Array, and an Array over that tensor, are the same memory."""
        for dtype in ("float32", "float16", "int32", "uint8", "bool", "float64"):
            x = np.random.default_rng(1).integers(0, 2, (2, 3, 5, 8)).astype(dtype)
            array = vkattn.array(x)
            tensor = array[:, 1:].torch()
            self.assertEqual((str(tensor.dtype), tensor.device.type), (f"torch.{dtype}", "cuda"))
            np.testing.assert_array_equal(tensor.cpu().numpy(), x[:, 1:])
            tensor.copy_(1 - tensor.int())
            np.testing.assert_array_equal(array[:, 1:].numpy(), (1 - x[:, 1:].astype(int)).astype(dtype))
            back = vkattn.array(tensor[:, :, 2:])
            self.assertIs(back._buffer, array._buffer)
            self.assertEqual((back.shape, back.dtype), ((2, 2, 3, 8), x.dtype))
            back[:] = np.ones((), dtype)
            self.assertTrue(bool((tensor[:, :, 2:] == 1).all()))
            other = vkattn.array(tensor.clone())
            self.assertIsNot(other._buffer, array._buffer)
            np.testing.assert_array_equal(other.numpy(), array[:, 1:].numpy())

    def test_lives(self):
        """The memory lives as long as one of the two."""
        x = np.random.default_rng(1).standard_normal((3, 100)).astype(np.float32)
        for _ in range(300):
            tensor = vkattn.array(x).torch()[1:]
            vkattn.array(-x)  # which would take the memory of the first one
            self.assertTrue((tensor.cpu().numpy() == x[1:]).all())
            array = vkattn.array(tensor)
            del tensor
            vkattn.array(-x)
            self.assertTrue((array.numpy() == x[1:]).all())

    def test_strides(self):
        """What is the same along an axis, and axes of one element, are what they are in PyTorch."""
        session = vkattn.array(torch.ones(1, device="cuda"))._buffer.session
        whole = torch.randn(3, 4, 5, 8, device="cuda")
        for tensor in (whole[:1, :1].expand(2, 6, 5, 8), whole[:, :1].expand(3, 2, 5, 8), whole[:, :, :, :1],
                       whole[:, :, :1].expand(3, 4, 7, 8), whole.transpose(1, 2), whole[:1, ::3, :1], whole[..., ::2],
                       whole.as_strided((1, 4, 5, 8), (1, 40, 8, 1)), whole[0, 0, 0, 0], whole[:0],
                       whole[0, 0, 0].expand(3, 4, 5, 8), whole.bfloat16()[:, :1].expand(3, 2, 5, 8), whole > 0):
            wanted = tensor.view(torch.int16) if tensor.dtype == torch.bfloat16 else tensor
            array = vkattn.array(tensor)
            self.assertIs(array._buffer.session, session)
            got = array.numpy().view(np.int16) if tensor.dtype == torch.bfloat16 else array.numpy()
            np.testing.assert_array_equal(got, wanted.cpu().numpy())
        q = whole[:, :1].expand(3, 4, 5, 8)
        out = vkattn.torch.scaled_dot_product_attention(q, whole[:1], whole[:1], torch.randn(1, 1, 5, 5, device="cuda"))
        self.assertEqual(out.shape, q.shape)
        leaf = whole.clone().requires_grad_()
        vkattn.torch.attention(leaf, leaf, leaf).sum(1).square().sum().backward()
        self.assertTrue(bool(leaf.grad.isfinite().all()))

    def test_gradients_stay_with_their_tensors(self):
        x = torch.randn(1, 2, 65, 32, device="cuda")
        sinks = torch.randn(2, requires_grad=True)  # on the CPU
        vkattn.torch.attention(x, x, x, sinks=sinks).sum().backward()
        self.assertEqual(sinks.grad.device.type, "cpu")

    def test_graphs(self):
        """torch.compile leaves vkattn's calls out of its CUDA graphs."""
        x = torch.randn(1, 2, 65, 32, device="cuda")
        call = torch.compile(lambda x: vkattn.torch.attention(2 * x, x, x) * 2, mode="reduce-overhead")
        for _ in range(4):
            torch.testing.assert_close(call(x), vkattn.torch.attention(2 * x, x, x) * 2, rtol=1e-5, atol=1e-5)

    def test_streams(self):
        """A call begins when the stream has come to it, and what follows in the stream sees the results."""
        x = torch.randn(1, 4, 256, 64, device="cuda")
        slow = torch.randn(4096, 4096, device="cuda")
        for stream in (torch.cuda.current_stream(), torch.cuda.Stream()):
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                for step in range(20):
                    q = x + step
                    for _ in range(3):
                        slow @ slow
                    q.mul_(0.5)
                    out = vkattn.torch.attention(q, q, q) + 0
                    q.zero_()
                    right = torch.nn.functional.scaled_dot_product_attention(*3 * ((x + step) * 0.5,))
                    torch.testing.assert_close(out, right, rtol=1e-3, atol=1e-3)

    def test_threads(self):
        """Threads with streams of their own do not disturb each other."""
        x = torch.randn(4, 1, 2, 65, 32, device="cuda")
        right = [torch.nn.functional.scaled_dot_product_attention(*3 * (each,)) for each in x]
        wrong = []

        def work(n):
            with torch.cuda.stream(torch.cuda.Stream()):
                for _ in range(100):
                    q = (x[n] * 2) / 2
                    out = vkattn.torch.attention(q, q, q)
                    if not torch.allclose(out, right[n], rtol=1e-3, atol=1e-3):
                        wrong.append(n)

        torch.cuda.synchronize()
        threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(wrong, [])

    def test_no_leak(self):
        x = torch.randn(1, 2, 65, 32, device="cuda", requires_grad=True)
        for step in range(600):
            vkattn.torch.attention(x, x, x).sum().backward()
            x.grad = None
            if step == 99:
                before = torch.cuda.mem_get_info()[0]
        self.assertLess(before - torch.cuda.mem_get_info()[0], 64 << 20)

    def test_refusals(self):
        x = torch.randn(1, 2, 65, 32, device="cuda")
        with self.assertRaisesRegex(TypeError, "^q: is a tensor in CUDA's memory"):
            vkattn.attention(x, x, x)
        vkattn.torch.attention(x, x, x)
        graph = torch.cuda.CUDAGraph()
        with self.assertRaisesRegex(RuntimeError, "captured"), torch.cuda.graph(graph):
            vkattn.torch.attention(x, x, x)

    def test_host_memory(self):
        """What is not on the tensors' device is copied to it."""
        x, mask = torch.randn(1, 2, 65, 32, device="cuda"), torch.rand(65, 65) < 0.7
        mask[:, 0] = True
        out = vkattn.torch.attention(x, x, x, mask=mask, kv_lengths=[60])
        wide = mask.cuda() & (torch.arange(65, device="cuda") < 60)
        torch.testing.assert_close(out, torch.nn.functional.scaled_dot_product_attention(x, x, x, wide), rtol=1e-3,
                                   atol=1e-3)


if __name__ == "__main__":
    unittest.main()
