"""bench and conformance: what the package's command-line tool gives, and how a call of it ends."""

import contextlib
import io
import os
import signal
import subprocess
import sys
import tempfile
import time
import unittest
import warnings
from pathlib import Path

import numpy as np
import vkattn
from vkattn._tool import _exception_of, _option_arguments

SMALL = {"heads_q": 2, "seqlen_q": 32, "head_dim": 16, "repeats": 1}
INTERRUPTED = """
import vkattn
try:
    {call}
except KeyboardInterrupt:
    print("interrupted")
"""
# Each call has with it whether the signal goes to the whole group, as a terminal's does, or to Python alone.
LONG_CALLS = (("vkattn.bench(heads_q=2, seqlen_q=256, head_dim=64, repeats=1000000)", True),
              ("vkattn.conformance(fuzz=600)", False))


@contextlib.contextmanager
def environment(**variables):
    """Sets variables of this process for a while."""
    kept = dict(os.environ)
    os.environ.update(variables)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(kept)


def children_of(process):
    """The processes that a process has started and not waited for."""
    with open(f"/proc/{process}/task/{process}/children", encoding="ascii") as file:
        return [int(word) for word in file.read().split()]


def is_there(process):
    return os.path.exists(f"/proc/{process}")


class Tool(unittest.TestCase):
    def test_bench(self):
        result = vkattn.bench(**SMALL, causal=True, window=(7, 0), pass_="backward", scale=None, sinks=False)
        self.assertEqual(result["device_uuid"], vkattn.devices()[0].uuid)
        self.assertEqual(result["pass"], "backward")
        problem = result["problem"]
        self.assertEqual((problem["heads_q"], problem["causal"], problem["sinks"]), (2, True, False))
        self.assertEqual(problem["window"][0], 7)
        self.assertEqual(result["version"], vkattn.version())
        self.assertGreater(result["time_ms"]["median"], 0)

    def test_devices(self):
        device = vkattn.devices()[0]
        for named in (None, 0, np.int64(0), device.name, device.uuid, device, "all"):
            result = vkattn.conformance(case="forward sq=5 skv=3", device=named)
            self.assertEqual([run["uuid"] for run in result["devices"]], [device.uuid])

    def test_conformance(self):
        result = vkattn.conformance(level="smoke", filter="forward/heads/*", device=0)
        self.assertEqual((result["level"], result["filter"]), ("smoke", "forward/heads/*"))
        device, = result["devices"]
        self.assertGreater(device["passed"], 0)
        self.assertEqual((device["failed"], device["interrupted"]), (0, False))
        self.assertEqual({check["status"] for check in device["checks"]} - {"skipped"}, {"passed"})
        # The exit code is 4 where none has passed. No device has matrix units for float32.
        result = vkattn.conformance(case="forward sq=33 skv=17 kernel=matrix")
        self.assertEqual([(run["passed"], run["skipped"]) for run in result["devices"]], [(0, 1)])

    def test_arguments(self):
        for name, value, arguments in (
                ("causal", True, ["--causal"]), ("causal", np.True_, ["--causal"]), ("causal", False, []),
                ("scale", None, []), ("window", (-1, 0), ["--window=-1,0"]), ("pass_", "both", ["--pass=both"]),
                ("head_dim_v", np.int32(8), ["--head-dim-v=8"]), ("softcap", 0.5, ["--softcap=0.5"]),
                ("module", ["a=b", "c=d"], ["--module=a=b", "--module=c=d"])):
            self.assertEqual(_option_arguments(name, value), arguments)

    def test_refusals(self):
        for call, options, says in (
                (vkattn.bench, {"head_dims": 3}, "--head-dims: is no option of bench; did you mean"),
                (vkattn.bench, {}, "--seqlen-q: is required"),
                (vkattn.bench, {**SMALL, "dtype": "f8"}, "--dtype: "),
                (vkattn.bench, {"suite": "prefill", "list": True}, "list: is for the command line only"),
                (vkattn.bench, {**SMALL, "sweep": "file"}, "sweep: is for the command line only"),
                (vkattn.bench, {**SMALL, "device": "nonesuch"}, "device: no device 'nonesuch'; there are: 0 "),
                (vkattn.conformance, {"device": 99}, "device: no device '99'; there are: 0 "),
                (vkattn.conformance, {"level": "high"}, "--level: "),
                (vkattn.conformance, {"filter": "nonesuch"}, "--filter: no check of level"),
                (vkattn.conformance, {"json": "file"}, "json: is for the command line only"),
                (vkattn.conformance, {"filter": "", "seed": 5}, "filter: '' is no value"),
                (vkattn.bench, {**SMALL, "device": "x\0y"}, "device: 'x\\x00y' is no value")):
            with self.assertRaises(ValueError) as caught:
                call(**options)
            self.assertTrue(str(caught.exception).startswith(says), caught.exception)
        for device in (True, 1.0, [0]):
            with self.assertRaisesRegex(TypeError, "^device: "):
                vkattn.bench(**SMALL, device=device)
        with self.assertRaisesRegex(NotImplementedError, "float32 arithmetic"):
            vkattn.bench(**SMALL, kernel="matrix")

    def test_exit_codes(self):
        for code, line, kind in (
                (2, "--dtype: is wrong", ValueError), (3, "no device 'a'; there are: none", ValueError),
                (3, "no Vulkan driver: vkCreateInstance: ErrorIncompatibleDriver", NotImplementedError),
                (4, "interrupted", RuntimeError),
                (3, "running a plan: vkQueueSubmit2: ErrorUnknown", vkattn.DeviceError),
                (3, "the device is lost: its driver has reset it", vkattn.DeviceLost),
                (3, "creating a buffer: vkAllocateMemory: ErrorOutOfDeviceMemory", MemoryError),
                (-6, "the tool ended with code -6", RuntimeError)):
            made = _exception_of(code, line)
            self.assertIs(type(made), kind)
            self.assertIn(line, str(made))

    def test_without_vulkan(self):
        with environment(VK_DRIVER_FILES="/nothing", VK_ICD_FILENAMES="/nothing"):
            for call in (lambda: vkattn.bench(**SMALL), lambda: vkattn.conformance(level="smoke")):
                self.assertRaises(NotImplementedError, call)

    def test_progress(self):
        with environment(VKATTN_PROGRESS_AFTER="0"):
            for progress in (False, True):
                with contextlib.redirect_stderr(io.StringIO()) as shown:
                    vkattn.conformance(case="forward sq=33 skv=17", progress=progress)
                self.assertEqual("so far" in shown.getvalue(), progress, shown.getvalue())

    def test_what_is_said(self):
        """Warnings of a tool become Python's, and there is an exception where it ends with no result."""
        with tempfile.TemporaryDirectory() as folder, environment(VKATTN_TOOL=f"{folder}/tool"):
            tool = Path(folder, "tool")
            tool.write_text('#!/bin/sh\necho of a driver >&2\necho vkattn: warning: no cache >&2\necho \'{"a": 1}\'\n')
            tool.chmod(0o755)
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                self.assertEqual(vkattn.bench(), {"a": 1})
            self.assertEqual([str(warning.message) for warning in caught], ["no cache"])
            self.assertEqual(caught[0].filename, __file__)
            tool.write_text("#!/bin/sh\nkill -SEGV $$\n")
            for call in (vkattn.bench, vkattn.conformance):
                self.assertRaisesRegex(RuntimeError, "^the tool ended with code -11$", call)
            tool.write_text("#!/bin/sh\necho no library >&2\nexit 127\n")
            self.assertRaisesRegex(RuntimeError, "^no library$", vkattn.bench)
            tool.unlink()
            self.assertRaisesRegex(NotImplementedError, "tool cannot be started", vkattn.bench)

    @unittest.skipUnless(sys.platform == "linux", "reads /proc")
    def test_interrupt(self):
        """Python and the tool end, and nothing is left."""
        for call, whole_group in LONG_CALLS:
            with self.subTest(call=call, whole_group=whole_group):
                self.interrupt(INTERRUPTED.format(call=call), whole_group)

    def interrupt(self, code, whole_group):
        def heed_signals():  # which are ignored below a shell's background jobs
            signal.signal(signal.SIGINT, signal.SIG_DFL)

        with subprocess.Popen([sys.executable, "-B", "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                              text=True, start_new_session=True, preexec_fn=heed_signals) as process:
            deadline = time.monotonic() + 30
            children = []
            while not children and time.monotonic() < deadline:
                time.sleep(0.05)
                children = children_of(process.pid)
            time.sleep(1)  # by now it is at work
            self.assertTrue(children and is_there(children[0]))
            (os.killpg if whole_group else os.kill)(process.pid, signal.SIGINT)
            printed, said = process.communicate(timeout=60)
        self.assertEqual((process.returncode, printed), (0, "interrupted\n"), said)
        self.assertFalse([child for child in children if is_there(child)])


if __name__ == "__main__":
    unittest.main()
