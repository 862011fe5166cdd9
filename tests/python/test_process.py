"""Threads, processes, memory, and devices beside each other."""

import gc
import os
import signal
import subprocess
import sys
import threading
import time
import unittest

import numpy as np
import vkattn
from vkattn._device import session_of

SHAPE = (1, 2, 33, 16)
X = np.random.default_rng(3).standard_normal(SHAPE).astype(np.float32)

LIVE_AT_EXIT = """
import threading, time, numpy as np, vkattn
x = vkattn.array(np.ones((1, 2, 33, 16), np.float32))
kept = [vkattn.attention(x, x, x), vkattn.plan(x, x, x)]
cycle = {"kept": kept}
cycle["self"] = cycle
def work():
    while True:
        vkattn.attention(x, x, x)
threading.Thread(target=work, daemon=True).start()
time.sleep(0.3)
print("done")
"""
NO_VULKAN = """
import vkattn
try:
    vkattn.devices()
except NotImplementedError as error:
    print("missing:", error)
"""

TWO_DEVICES = """
import numpy as np, vkattn
x = np.random.default_rng(3).standard_normal((1, 2, 33, 16)).astype(np.float32)
devices = [device for device in vkattn.devices() if not device.refusal]
assert len({device.name for device in devices}) == 2, devices
results = [vkattn.attention(x, x, x, device=device) for device in devices]
np.testing.assert_allclose(results[0][0], results[1][0], atol=1e-5)
arrays = [vkattn.array(x, device=device) for device in devices]
for call, says in ((lambda: vkattn.attention(arrays[0], arrays[1], arrays[1]), "the Arrays are on several devices"),
                   (lambda: vkattn.attention(*arrays[:1] * 3, device=devices[1]), "device: the Arrays are on another")):
    try:
        call()
        raise SystemExit("not refused: " + says)
    except ValueError as error:
        assert str(error).startswith(says), error
print("right")
"""


def python(code, **environment):
    return subprocess.run([sys.executable, "-B", "-c", code], env={**os.environ, **environment}, capture_output=True,
                          text=True, timeout=120)


def resident_bytes():
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


class Process(unittest.TestCase):
    def test_threads(self):
        right = vkattn.attention(X, X, X)
        wrong, shared = [], vkattn.array(X)

        def work(seed):
            for i in range(20):
                keys = 1 + (seed * 7 + i) % 33
                out, _ = vkattn.attention(X, X[:, :, :keys], X[:, :, :keys], kv_lengths=[keys])
                again, _ = vkattn.attention(shared, shared, shared)
                if not np.isfinite(out).all() or not np.array_equal(again.numpy(), right[0]):
                    wrong.append(seed)

        threads = [threading.Thread(target=work, args=(n,)) for n in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(wrong, [])

    def test_many_plans_and_no_leak(self):
        session = session_of()
        for keys in range(1, 2 * session.most_plans):
            vkattn.plan((1, 2, 33, 16), (1, 2, keys, 16), (1, 2, keys, 16))
        x = vkattn.array(X)

        def calls(count):
            for i in range(count):
                out = vkattn.attention(x, x[:, :, :1 + i % 33], x[:, :, :1 + i % 33], return_lse=False)
                if i % 7 == 0:
                    vkattn.attention(X, X, X)
            del out
            gc.collect()
            return resident_bytes(), len(session._live)

        memory, live = calls(500)
        grown, still = calls(3000)
        self.assertEqual(live, still)
        self.assertLess(grown - memory, 8 << 20, "3,000 calls keep memory")

    def test_memory_is_used_again(self):
        session = session_of()
        kept = [vkattn.array(np.full((1, 2, 3, 4), n, np.float32)) for n in range(5)]
        for _ in range(3):
            vkattn.array(np.full((1, 2, 3, 4), -1, np.float32))
        live = len(session._live)
        more = [vkattn.array(np.full((1, 2, 3, 4), -2, np.float32)) for _ in range(3)]
        self.assertLessEqual(len(session._live), live + 2)
        self.assertEqual(len({x._memory() for x in kept + more}), 8)
        for n, x in enumerate(kept):
            self.assertTrue((x.numpy() == n).all())
        before = session.spares._bytes
        large = vkattn.empty((session.spares.most_bytes // 4 + 1,))
        del large
        gc.collect()
        self.assertEqual(session.spares._bytes, before)
        del more
        gc.collect()
        session.destroy_spare_buffers()
        self.assertEqual((session.spares._bytes, len(session.spares._order)), (0, 0))

    def test_interrupt(self):
        """Ctrl-C ends a call that has run for a moment and would run for seconds, and the next one is right."""
        long = np.ones((1, 16, 4096, 64), np.float32)
        live = len(session_of()._live)
        for give in (lambda: long, lambda: vkattn.array(long)):
            x = give()
            vkattn.plan(x, x, x, max_dispatch_flops=10**9)
            timer = threading.Timer(1, os.kill, (os.getpid(), signal.SIGINT))
            began = time.monotonic()
            timer.start()
            try:
                with self.assertRaises(KeyboardInterrupt):
                    while time.monotonic() - began < 20:
                        vkattn.attention(x, x, x, max_dispatch_flops=10**9)
            finally:
                timer.cancel()
            self.assertLess(time.monotonic() - began, 20)
        del x
        gc.collect()
        session_of().destroy_spare_buffers()
        self.assertLess(len(session_of()._live) - live, 20, "what was interrupted keeps memory")
        out, _ = vkattn.attention(X, X, X)
        self.assertTrue(np.isfinite(out).all())

    def test_shutdown_with_live_objects(self):
        ended = python(LIVE_AT_EXIT)
        self.assertEqual((ended.returncode, ended.stdout, ended.stderr), (0, "done\n", ""))

    def test_without_vulkan(self):
        ended = python(NO_VULKAN, VK_DRIVER_FILES="/nothing", VK_ICD_FILENAMES="/nothing")
        self.assertTrue(ended.stdout.startswith("missing: "), ended.stdout + ended.stderr)

    @unittest.skipUnless(hasattr(os, "fork"), "there is no fork")
    def test_fork(self):
        vkattn.attention(X, X, X)
        child = os.fork()
        if child == 0:
            said = 1
            try:
                vkattn.attention(X, X, X)
            except RuntimeError as error:
                said = 0 if "forked" in str(error) else 2
            finally:
                os._exit(said)
        self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), 0)

    def test_two_devices(self):
        ended = python(TWO_DEVICES, VK_DRIVER_FILES=os.environ["VKATTN_TEST_DRIVERS"])
        self.assertEqual((ended.returncode, ended.stdout), (0, "right\n"), ended.stderr)


if __name__ == "__main__":
    unittest.main()
