"""What the command-line tool measures and checks, by the tool itself, which the package has inside."""

import json
import os
import re
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path

import numpy as np

from ._device import Device
from ._library import DeviceError, DeviceLost

_USAGE, _DEVICE = 2, 3  # exit codes; 0 and 4 come with results
_OF_THE_COMMAND_LINE = ("help", "json", "list", "sweep")  # these print text, or are set here


def bench(*, device=None, progress=False, **options):
    """How fast a problem runs, beside what the device can do at most, measured in the same run.

    The options are those of `vkattn bench`, with underscores: heads_q=8, seqlen_q=1024, head_dim=64, dtype="f16",
    causal=True, repeats=20, or suite="prefill" for a table of cases. One that is a word of Python has an underscore
    behind it, as in pass_="backward". A tuple is what the tool separates by commas, as in window=(3, 0), a list gives
    an option several times, True gives one that has no value, and False and None leave it out.

    device: an index, a part of the name, a UUID or a Device.
    progress: shows on sys.stderr what is being done, and the time left, if it takes longer than two seconds.

    Returns a dict, which is what `--json` of the tool prints: "time_ms", "tflops", "gbps", the ceilings, and what it
    takes to repeat the call.

    Raises ValueError with the tool's words for a wrong option or device, NotImplementedError where there is no Vulkan
    or the device cannot do it, MemoryError, and DeviceError where the device fails. Calls run a process of their own,
    which Ctrl-C ends, too.

    >>> import vkattn
    >>> result = vkattn.bench(heads_q=2, seqlen_q=32, head_dim=16, causal=True, repeats=1)
    >>> result["problem"]["causal"], result["time_ms"]["median"] > 0
    (True, True)
    """
    with tempfile.TemporaryDirectory(prefix="vkattn-") as folder:
        printed = Path(folder, "printed")
        return _run(["bench", "--json"], printed, printed, device, progress, options)


def conformance(*, device=None, progress=False, **options):
    """Is it right on this device? Runs the checks that the tool has inside, against an fp64 oracle.

    The options are those of `vkattn conformance`, written as those of bench: level="smoke", filter="forward/heads/*",
    case="forward sq=33 skv=17", fuzz=5, seed=1 and others.

    device: an index, a part of the name, a UUID or a Device; "all" takes one after the other.
    progress: shows on sys.stderr what is being done, and the time left, if it takes longer than two seconds.

    Returns a dict. Its "devices" is a list of dicts with the numbers "passed", "failed" and "skipped", and with
    "checks", a list of dicts that each have a "name" and a "status". A check that fails is no exception.

    Raises what bench raises.

    >>> import vkattn
    >>> result = vkattn.conformance(case="forward sq=33 skv=17")
    >>> [(device["passed"], device["failed"]) for device in result["devices"]]
    [(1, 0)]
    """
    with tempfile.TemporaryDirectory(prefix="vkattn-") as folder:
        written = Path(folder, "results.json")
        return _run(["conformance", f"--json={written}"], Path(folder, "printed"), written, device, progress, options)


def _run(command, printed, results, device, progress, options):
    """What the tool has written to the file `results`. What it prints goes to the file `printed`."""
    arguments = [*command, *_device_arguments(device)]
    for name, value in options.items():
        arguments += _option_arguments(name, value)
    tool = os.environ.get("VKATTN_TOOL") or str(Path(__file__).parent / "bin/vkattn")
    environment = dict(os.environ)
    environment.pop("VKATTN_PROGRESS", None)
    if progress:
        environment["VKATTN_PROGRESS"] = "1"
    with open(printed, "wb") as file:
        try:
            code, said = _ended([tool, *arguments], environment, file, progress and sys.stderr is not None)
        except OSError as error:
            raise NotImplementedError(f"the tool {tool} cannot be started: {error}") from None
    if code in (0, 4) and results.exists() and results.stat().st_size:
        if not progress:
            for line in said:
                warnings.warn(re.sub("^warning: ", "", line), RuntimeWarning, stacklevel=3)
        return json.loads(results.read_bytes())
    raise _exception_of(code, said[-1] if said else f"the tool ended with code {code}")


def _device_arguments(device):
    if device is None:
        return []
    if isinstance(device, Device):
        device = device.uuid
    if isinstance(device, bool) or not isinstance(device, (int, str, np.integer)):
        raise TypeError(f"device: {type(device).__name__} is no Device, index or text")
    return _option_arguments("device", int(device) if isinstance(device, np.integer) else device)


def _option_arguments(name, value):
    if value is None or value is False or isinstance(value, np.bool_) and not value:
        return []
    if name.rstrip("_") in _OF_THE_COMMAND_LINE:
        raise ValueError(f"{name}: is for the command line only")
    option = "--" + name.rstrip("_").replace("_", "-")
    if value is True or isinstance(value, np.bool_):
        return [option]
    if isinstance(value, list):
        return [argument for each in value for argument in _option_arguments(name, each)]
    text = ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
    if not text or "\0" in text:
        raise ValueError(f"{name}: {value!r} is no value of an option")
    return [f"{option}={text}"]  # a value may begin with a minus


def _ended(command, environment, printed, progress):
    """The exit code of a process, and its lines of vkattn's on stderr, without the program's name.

    The process never outlives the call. At Ctrl-C a terminal tells it, too, but who sends a signal to this process
    alone does not: SIGTERM asks it for the same, and does no harm where it was told already.
    """
    with subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=printed,
                          stderr=subprocess.PIPE) as child:
        said = b""
        try:
            while True:
                part = os.read(child.stderr.fileno(), 1 << 16)
                if not part:
                    break
                said += part
                if progress:
                    sys.stderr.write(part.decode(errors="replace"))
                    sys.stderr.flush()
            child.wait()
        except BaseException:
            try:
                child.terminate()
                child.communicate()  # it finishes what is under way, as a short check
            except BaseException:  # a second Ctrl-C
                child.kill()
                child.wait()
                raise
            raise
    lines = re.split(r"[\r\n]+", said.decode(errors="replace").replace("\x1b[K", ""))
    prefix = "vkattn: "
    own = [line[len(prefix):] for line in lines if line.startswith(prefix)]
    if not own and child.returncode not in (0, 4):
        own = [line for line in lines if line][-1:]  # it has not come to its own words, as where a library is missing
    return child.returncode, own


def _exception_of(code, line):
    if code == _USAGE:
        return ValueError(line)
    if code != _DEVICE:
        return RuntimeError(line)
    if line.startswith("no device "):
        return ValueError(f"device: {line}")
    if line.startswith("no Vulkan "):
        return NotImplementedError(line)
    if re.search(r"\bErrorOutOf(Host|Device)Memory\b|\bbad_alloc\b", line):
        return MemoryError(line)
    if line.startswith("the device is lost"):
        return DeviceLost(line)
    if re.search(r": Error[A-Z]\w+", line):  # failed calls of Vulkan end with its name of the error
        return DeviceError(line)
    return NotImplementedError(line)
