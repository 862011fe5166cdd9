"""The declarations of the C ABI against a C compiler, the highest symbol version of the binaries, and the docs."""

import ctypes
import doctest
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
import zipfile
from pathlib import Path

import vkattn
from vkattn import _abi

ROOT = Path(__file__).resolve().parents[2]
INCLUDES = [ROOT / "include", Path(os.environ.get("VKATTN_SDK_DIR", ROOT / ".sdk")) / "include"]
TYPED_PROGRAM = """
import numpy as np
import numpy.typing as npt

import vkattn

q: npt.NDArray[np.float32] = np.zeros((1, 2, 3, 4), np.float32)
out, lse = vkattn.attention(q, q, q, causal=True, window=(3, -1), align="top-left")
on_device: vkattn.Array = vkattn.attention(vkattn.array(q), q, q, return_lse=False)
gradients: tuple[np.ndarray[tuple[int, ...], np.dtype[np.float32]], ...] = vkattn.attention_backward(
    q, q, q, q, out, lse, dbias=False)
kernel: str = vkattn.plan((1, 2, 3, 4), (1, 2, 3, 4), (1, 2, 3, 4)).explain()["kernel"]
names: list[str] = [device.name for device in vkattn.devices()]
rate: float = vkattn.bench(seqlen_q=32, head_dim=16, window=(3, 0), device=vkattn.devices()[0])["tflops"]
runs: list[dict[str, object]] = vkattn.conformance(level="smoke", progress=True)["devices"]
"""
MODULES = ("vkattn", "vkattn._arrays", "vkattn._attention", "vkattn._device", "vkattn._tool")


def structs():
    return [kind for kind in vars(_abi).values()
            if isinstance(kind, type) and issubclass(kind, ctypes.Structure) and kind is not ctypes.Structure]


class Package(unittest.TestCase):
    def test_declarations(self):
        """Sizes, offsets and enums are those of the headers, and every function that a header declares is there."""
        compiler = shutil.which(os.environ.get("CC", "cc"))
        self.assertTrue(compiler, "there is no C compiler")
        lines = ["#include <stddef.h>", "#include <vkattn/runtime.h>"]
        for kind in structs():
            lines.append(f'_Static_assert(sizeof({kind.__name__}) == {ctypes.sizeof(kind)}, "");')
            for name, _ in kind._fields_:
                field = getattr(kind, name)
                lines.append(f'_Static_assert(offsetof({kind.__name__}, {name}) == {field.offset} && '
                             f'sizeof((({kind.__name__}*)0)->{name}) == {field.size}, "{name}");')
        enums = {name: value for name, value in vars(_abi).items() if name.startswith("VKATTN_")}
        lines += [f'_Static_assert({name} == {value}, "{name}");' for name, value in enums.items()]
        self.assertGreater(len(lines), 200)
        with tempfile.TemporaryDirectory() as folder:
            source = Path(folder, "abi.c")
            source.write_text("\n".join(lines) + "\n", encoding="ascii")
            built = subprocess.run([compiler, "-fsyntax-only", *(f"-I{path}" for path in INCLUDES), source],
                                   capture_output=True, text=True, check=False)
            self.assertEqual(built.returncode, 0, built.stderr)
            source.write_text(source.read_text().replace("sizeof(VkattnProblem) ==", "1 + sizeof(VkattnProblem) =="))
            built = subprocess.run([compiler, "-fsyntax-only", *(f"-I{path}" for path in INCLUDES), source],
                                   capture_output=True, check=False)
            self.assertNotEqual(built.returncode, 0, "the compiler checks nothing")
        declared = set()
        for header in ("vkattn", "runtime"):
            text = (ROOT / f"include/vkattn/{header}.h").read_text(encoding="utf-8")
            declared |= set(re.findall(r"_API\s[\w\s*]*?\b(vkattn_\w+)\(", text))
        self.assertGreater(len(declared), 50)
        self.assertEqual(declared - set(_abi.FUNCTIONS) - {"vkattn_"}, set())

    def test_libraries(self):
        """They and the tool need no libstdc++, and no symbol of a later glibc than the wheel's tag says."""
        package = Path(vkattn.__file__).parent
        binaries = [*sorted((package / "lib").glob("*.so.*")), package / "bin/vkattn"]
        self.assertEqual(len(binaries), 3)
        for binary in binaries:
            facts = subprocess.run(["objdump", "-p", binary], capture_output=True, text=True, check=True).stdout
            needed = re.findall(r"NEEDED\s+(\S+)", facts)
            self.assertFalse([name for name in needed if "stdc++" in name], binary.name)
            versions = [tuple(map(int, v.split("."))) for v in re.findall(r"GLIBC_([\d.]+)", facts)]
            self.assertLessEqual(max(versions), (2, 34), binary.name)

    def test_wheel(self):
        """The same bits twice, and a right result of what it holds, without the build's package."""
        package = Path(vkattn.__file__).parent
        with tempfile.TemporaryDirectory() as folder:
            made = []
            for name in ("one", "two"):
                Path(folder, name).mkdir()
                subprocess.run([sys.executable, ROOT / "tools/python/wheel.py", package, ROOT, Path(folder, name)],
                               check=True, stdout=subprocess.DEVNULL)
                made += Path(folder, name).glob("vkattn-*-py3-none-manylinux_2_34_*.whl")
            self.assertEqual(len(made), 2)
            self.assertEqual(made[0].read_bytes(), made[1].read_bytes())
            with zipfile.ZipFile(made[0]) as wheel:
                wheel.extractall(Path(folder, "installed"))
                modes = {entry.filename: entry.external_attr >> 16 & 0o777 for entry in wheel.infolist()}
                record = wheel.read(next(name for name in wheel.namelist() if name.endswith("RECORD"))).decode()
            self.assertEqual(len(record.splitlines()), len(wheel.namelist()))
            self.assertEqual([name for name, mode in modes.items() if mode & 0o111], ["vkattn/bin/vkattn"])
            Path(folder, "installed/vkattn/bin/vkattn").chmod(modes["vkattn/bin/vkattn"])  # as pip does
            code = ("import numpy as np, vkattn; x = np.ones((1, 1, 4, 8), np.float32); print(vkattn.__file__);"
                    "print(float(vkattn.attention(x, x, x)[0].max()));"
                    "print(vkattn.conformance(case='forward sq=33 skv=17')['devices'][0]['passed'])")
            ended = subprocess.run([sys.executable, "-B", "-c", code], capture_output=True, text=True, check=False,
                                   env={**os.environ, "PYTHONPATH": str(Path(folder, "installed"))})
            self.assertEqual(ended.returncode, 0, ended.stderr)
            where, result, passed = ended.stdout.split()
            self.assertTrue(where.startswith(folder), where)
            self.assertEqual((float(result), passed), (1, "1"))

    @unittest.skipUnless(importlib.util.find_spec("mypy"), "mypy is not installed")
    def test_types(self):
        """The stub is what the package is, and a program that uses it passes mypy --strict."""
        package = Path(vkattn.__file__).parent
        with tempfile.TemporaryDirectory() as folder:
            program, allowed, config = (Path(folder, name) for name in ("program.py", "allowed", "mypy.ini"))
            program.write_text(TYPED_PROGRAM, encoding="ascii")
            allowed.write_text("vkattn\\.(torch\\.)?_.*\n", encoding="ascii")  # what is private has no stub
            config.write_text(f"[mypy]\ncache_dir = {folder}/cache\n[mypy-torch.*]\nfollow_imports = skip\n",
                              encoding="ascii")  # PyTorch's own sources take a minute
            environment = {**os.environ, "MYPYPATH": str(package.parent)}
            for command in (["mypy", "--strict", "--config-file", config, program],
                            ["mypy.stubtest", "vkattn", "--mypy-config-file", config, "--allowlist", allowed,
                             "--ignore-unused-allowlist"]):
                ended = subprocess.run([sys.executable, "-m", *command], env=environment, cwd=folder,
                                       capture_output=True, text=True, check=False)
                self.assertEqual(ended.returncode, 0, ended.stdout + ended.stderr)

    def test_docs(self):
        for name in MODULES:
            result = doctest.testmod(importlib.import_module(name))
            self.assertEqual(result.failed, 0, name)
        for name in vkattn.__all__:
            public = getattr(vkattn, name)
            self.assertTrue(public.__doc__, name)
            if not isinstance(public, type):
                self.assertIn(">>>", public.__doc__, name)


if __name__ == "__main__":
    unittest.main()
