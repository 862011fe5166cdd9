"""docs/train_characters.py learns, and learns the same with vkattn's attention as with PyTorch's, and so does the GPT
of tools/peers/python_package.py."""

import importlib.util
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "docs" / "train_characters.py"
MEASURES = ROOT / "tools" / "peers" / "python_package.py"
TINY = ("--steps=12", "--every=1", "--layers=1", "--heads=2", "--context=32", "--batch=4", "--sample=20")


@unittest.skipUnless(importlib.util.find_spec("torch"), "torch is not installed")
class Example(unittest.TestCase):
    def train(self, *arguments, **environment):
        """Runs the example: returns the losses that it prints, and the last line's file."""
        # Without threads, which only wait for each other in a model this small.
        done = subprocess.run([sys.executable, "-B", EXAMPLE, *TINY, *arguments], capture_output=True, text=True,
                              env={**os.environ, "OMP_NUM_THREADS": "1", **environment}, timeout=300, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        losses = [float(loss) for loss in re.findall(r"^step .*loss (\S+)", done.stdout, re.MULTILINE)]
        self.assertEqual(len(losses), 12, done.stdout)
        return losses, pathlib.Path(done.stdout.splitlines()[-1].split(": ")[1])

    def test_losses(self):
        with tempfile.TemporaryDirectory() as folder:
            plot = pathlib.Path(folder, "loss.png")
            losses, file = self.train(f"--plot={plot}")
            if importlib.util.find_spec("matplotlib"):
                self.assertEqual((file, plot.read_bytes()[:4]), (plot, b"\x89PNG"))
            else:
                self.assertEqual(file, plot.with_suffix(".csv"))
            self.assertLess(losses[-1], losses[0] - 0.5)

            # A matplotlib that cannot be imported is one that is not installed.
            pathlib.Path(folder, "matplotlib.py").write_text("raise ImportError")
            path = os.pathsep.join([folder, os.environ.get("PYTHONPATH", "")])
            wanted, file = self.train("--attention=torch", f"--plot={plot}", PYTHONPATH=path)
            for loss, right in zip(losses, wanted):
                self.assertAlmostEqual(loss, right, delta=1e-3)
            self.assertEqual(file, plot.with_suffix(".csv"))
            header, *rows = file.read_text().split()
            self.assertEqual(header, "step,loss")
            self.assertEqual([round(float(row.split(",")[1]), 5) for row in rows], wanted)

            losses, _ = self.train("--dtype=float16", f"--plot={plot.with_suffix('.csv')}")
            for loss, right in zip(losses, wanted):
                self.assertAlmostEqual(loss, right, delta=1e-2)

    def measure(self, *arguments):
        """Returns what tools/peers/python_package.py prints."""
        done = subprocess.run([sys.executable, "-B", MEASURES, *arguments], capture_output=True, text=True,
                              env={**os.environ, "OMP_NUM_THREADS": "1"}, timeout=300, check=False)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        return json.loads(done.stdout)

    def test_measures(self):
        call = self.measure("call", "--repeats=5")
        self.assertGreater(call["arrays_us"], call["c_function_us"])
        for name in ("arrays_us", "c_function_us", "vkattn_returns_us", "torch_returns_us"):
            self.assertGreater(call[name], 0)
        self.assertTrue(all(value > 0 for value in self.measure("copy", "--mib=4", "--repeats=3").values()
                            if not isinstance(value, str)))
        gpt = self.measure("gpt", "--steps=6", "--layers=1", "--rows=32", "--batch=2")
        self.assertLess(gpt["largest_difference"], 1e-3)
        self.assertLess(gpt["vkattn"]["last_loss"], gpt["vkattn"]["first_loss"] - 0.5)
        for arguments in (("gpt", "--steps=0"), ("copy", "--mib=-1"), ("sing",)):
            done = subprocess.run([sys.executable, "-B", MEASURES, *arguments], capture_output=True, text=True,
                                  timeout=60, check=False)
            self.assertEqual(done.returncode, 2)


if __name__ == "__main__":
    unittest.main()
