#!/usr/bin/env python3
"""Packs the built package into a wheel, the same bits for the same content.

usage: wheel.py PACKAGE SOURCES FOLDER
"""

import base64
import hashlib
import platform
import re
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

METADATA = """Metadata-Version: 2.1
Name: vkattn
Version: {version}
Summary: Exact attention, forward and backward, on every GPU that Vulkan reaches
Requires-Python: >=3.9
Requires-Dist: numpy>=1.22
Description-Content-Type: text/markdown

{description}"""


def version_of(sources):
    header = (sources / "include/vkattn/vkattn.h").read_text(encoding="utf-8")
    return ".".join(re.search(rf"VKATTN_VERSION_{part} (\d+)", header)[1] for part in ("MAJOR", "MINOR", "PATCH"))


def highest_glibc(binaries):
    """The version that the binaries need, which the wheel's tag has to name."""
    versions = set()
    for binary in binaries:
        facts = subprocess.run(["objdump", "-p", binary], capture_output=True, text=True, check=True).stdout
        versions |= {tuple(map(int, found.split("."))) for found in re.findall(r"GLIBC_([\d.]+)", facts)}
    return max(max(versions)[:2], (2, 34))


def stripped(binary):
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder, binary.name)
        subprocess.run(["strip", "--strip-unneeded", "-o", copy, binary], check=True)
        return copy.read_bytes()


def main():
    package, sources, folder = map(Path, sys.argv[1:4])
    libraries = sorted((package / "lib").glob("*.so.*"))
    tool = package / "bin/vkattn"
    tag = "py3-none-manylinux_{}_{}_{}".format(*highest_glibc([*libraries, tool]), platform.machine())
    info = f"vkattn-{version_of(sources)}.dist-info"
    files = {f"vkattn/{path.name}": path.read_bytes()
             for path in sorted(package.iterdir()) if path.suffix in (".py", ".pyi", ".typed")}
    files.update({f"vkattn/lib/{library.name}": stripped(library) for library in libraries})
    files["vkattn/bin/vkattn"] = stripped(tool)
    description = (sources / "docs/python.md").read_text(encoding="utf-8")
    files[f"{info}/METADATA"] = METADATA.format(version=version_of(sources), description=description).encode()
    files[f"{info}/WHEEL"] = f"Wheel-Version: 1.0\nGenerator: vkattn\nRoot-Is-Purelib: false\nTag: {tag}\n".encode()
    files[f"{info}/THIRD_PARTY.md"] = (sources / "THIRD_PARTY.md").read_bytes()
    record = []
    for name, content in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        record.append(f"{name},sha256={digest},{len(content)}\n")
    files[f"{info}/RECORD"] = "".join([*record, f"{info}/RECORD,,\n"]).encode()
    wheel = folder / f"vkattn-{version_of(sources)}-{tag}.whl"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            entry = zipfile.ZipInfo(name, (2020, 1, 1, 0, 0, 0))
            mode = 0o100755 if name == "vkattn/bin/vkattn" else 0o100644  # installers make it executable by this
            entry.compress_type, entry.external_attr = zipfile.ZIP_DEFLATED, mode << 16
            archive.writestr(entry, content)
    print(wheel)


main()
