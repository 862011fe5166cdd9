"""Devices, and what a process has open of each."""

import ctypes
import os
import threading
import weakref
from collections import OrderedDict, deque
from dataclasses import dataclass
from typing import Dict

import numpy as np

from . import _abi
from ._buffers import BufferKind, SpareBuffers
from ._cuda import Cuda
from ._library import DeviceError, library


_NVIDIA = 0x10DE


@dataclass(frozen=True)
class Device:
    """A Vulkan device of this machine. `refusal` says why vkattn cannot use it, and is "" where it can."""

    index: int
    name: str
    type: str
    driver: str
    uuid: str
    vulkan: str
    subgroup_size: int
    shared_memory_bytes: int
    refusal: str


def _device_of(info):
    version = info.api_version
    return Device(info.index, info.name.decode(), info.type.decode(), info.driver.decode(), info.uuid.decode(),
                  f"{version >> 22 & 0x7f}.{version >> 12 & 0x3ff}.{version & 0xfff}", info.subgroup_size,
                  info.shared_memory_bytes, info.refusal.decode())


def devices():
    """The Vulkan devices of this machine, as a list of Device.

    Raises NotImplementedError, which says what is missing, where there is no Vulkan loader or no driver.

    >>> import vkattn
    >>> [device.index for device in vkattn.devices()][0]
    0
    """
    lib, count = library(), ctypes.c_uint32()
    lib.call("vkattn_runtime_devices", None, 0, ctypes.byref(count))
    infos = (_abi.VkattnDeviceInfo * count.value)()
    for info in infos:
        info.struct_size = ctypes.sizeof(info)
    if count.value:
        lib.call("vkattn_runtime_devices", infos, count, ctypes.byref(count))
    return [_device_of(info) for info in infos]


class NativePlan:
    """A plan of the library, of whatever pass."""

    def __init__(self, session, create, *arguments):
        self.session = session
        session.check()
        self.handle = ctypes.c_void_p()
        library().call(create, session.context, *arguments, ctypes.byref(self.handle))
        session.add(self.handle)
        scratch = library().made(_abi.VkattnScratch)
        library().call("vkattn_plan_scratch", self.handle, ctypes.byref(scratch))
        self.scratch_bytes = scratch.size_bytes
        self.segments_at_once = 0  # the last run's
        # Not at exit, when threads may still use it.
        weakref.finalize(self, session.destroy, "vkattn_plan_destroy", self.handle).atexit = False

    def describe(self):
        """The text of vkattn_plan_describe, which is JSON."""
        return library().text("vkattn_plan_describe", self.handle)


class Session:
    """An open device: its runtime, the plans that were made last, and buffers that nobody has any more.

    Buffers are kept for the next of their kind, because otherwise most of a short call's time on the host goes into
    making what it returns. What is let go is not in use: a call has ended when it returns, or it is in the order of a
    CUDA stream (`Cuda.ordered_by`), and then the next owner is in that order, too, or waits for the stream.
    """

    most_plans = 256

    def __init__(self, device):
        lib = library()
        self._forks = _forks
        self.lock = threading.RLock()  # of what is here, and of what Cuda has
        self._plans = OrderedDict()
        self._live = {}
        self.spares = SpareBuffers()
        self._dropped = deque()  # what finalizers were told of, which may run in the middle of anything
        self._is_tidying = False
        self._doomed = []  # functions and handles: objects to destroy, which CUDA's streams may still use
        self.runtime = ctypes.c_void_p()
        options = lib.made(_abi.VkattnRuntimeOptions)
        options.device = device.encode() if device else None
        lib.call("vkattn_runtime_open", ctypes.byref(options), ctypes.byref(self.runtime))
        self.context = lib.vkattn_runtime_context(self.runtime)
        info = ctypes.cast(lib.vkattn_runtime_device(self.runtime), ctypes.POINTER(_abi.VkattnDeviceInfo))
        self.device = _device_of(info.contents)
        self.is_shared = info.contents.vendor_id == _NVIDIA
        self._cuda = None

    def is_own(self):
        """If this process has opened the device."""
        return _forks == self._forks

    def check(self):
        """Refuses a process that was forked from the one that has opened the device."""
        if not self.is_own():
            raise RuntimeError("a device was opened before this process was forked: open it in the children alone, or "
                               "start them by 'spawn'")
        if self.runtime is None:
            raise DeviceError("the device is closed")

    def add(self, handle):
        """Remembers an object that has to go before the runtime."""
        with self.lock:
            self._live[handle.value] = handle

    def kind_of(self, size_bytes):
        """The kind of buffer that an Array of this size has now."""
        if not self.is_shared or not size_bytes:
            return BufferKind(size_bytes)
        return BufferKind.shared(size_bytes, self._cuda.stream if self._cuda is not None else None)

    def create_buffer(self, kind):
        """A buffer's handle and its address."""
        self.check()
        with self.lock:
            spare = self._tidy(kind)
        if spare is not None:
            try:
                if kind.is_shared and kind.stream is None:
                    self.wait_for_cuda()  # any stream may have used it
            except BaseException:
                self.spare_buffer(kind, *spare)
                raise
            return spare
        try:
            return self._make_buffer(kind)
        except MemoryError:
            pass  # and what the first try has is let go before the second
        self.destroy_spare_buffers()
        return self._make_buffer(kind)

    def _make_buffer(self, kind):
        handle = ctypes.c_void_p()
        if kind.is_shared and self.is_shared:
            try:
                library().call("vkattn_buffer_create_exportable", self.runtime, kind.size_bytes, ctypes.byref(handle))
            except NotImplementedError:
                self.is_shared = False  # this driver exports no memory
        if not handle.value:
            library().call("vkattn_buffer_create", self.runtime, kind.size_bytes, ctypes.byref(handle))
        self.add(handle)
        return handle, library().vkattn_buffer_address(handle)

    def spare_buffer(self, kind, handle, address):
        """Keeps a buffer for the next of its kind."""
        self._drop(kind, handle, address)

    def destroy(self, function, handle):
        """Destroys what add() has been told of, once."""
        self._drop(None, handle, function)

    def _drop(self, *what):
        if not self.is_own() or self.runtime is None:
            return
        self._dropped.append(what)
        # With CUDA the next call does the rest, because it has to wait for the streams.
        if self._cuda is None and self.lock.acquire(blocking=False):
            try:
                self._tidy()
            finally:
                self.lock.release()

    def destroy_spare_buffers(self):
        """Gives the memory of spare buffers back to the device."""
        with self.lock:
            self._tidy(most_bytes=0)

    def _tidy(self, wanted=None, most_bytes=None):
        """Sorts what was dropped, takes a spare buffer of the kind that is wanted, and destroys what is too much. A
        finalizer that runs meanwhile, in the same thread, changes nothing of it."""
        if self._is_tidying:
            return None
        self._is_tidying = True
        try:
            while self._dropped:
                kind, handle, other = self._dropped.popleft()
                if kind is None:
                    self._doomed.append((other, handle))
                elif kind.size_bytes > self.spares.most_bytes:
                    self._doomed.append(("vkattn_buffer_destroy", handle))
                else:
                    self.spares.put(kind, handle, other)
            found = self.spares.take(wanted) if wanted is not None else None
            self._doomed += [("vkattn_buffer_destroy", handle) for handle in self.spares.excess(most_bytes)]
            if self._doomed and self._cuda is not None:
                self._cuda.release([handle for _, handle in self._doomed])
            while self._doomed:
                function, handle = self._doomed.pop()
                if self._live.pop(handle.value, None) is not None:
                    getattr(library(), function)(handle)
            return found
        finally:
            self._is_tidying = False

    def cuda(self):
        """The device in CUDA. NotImplementedError, which says why, where CUDA does not have it."""
        self.check()
        if self._cuda is None:
            with self.lock:
                if self._cuda is None:
                    if not self.is_shared:
                        raise NotImplementedError(f"CUDA does not have the device {self.device.name!r}")
                    self._cuda = Cuda(self)
                    # PyTorch keeps the memory of tensors, too.
                    self.spares.most_bytes = max(self.spares.most_bytes, self._cuda.memory_bytes // 16)
        return self._cuda

    def wait_for_cuda(self):
        """Before the host reads or writes a buffer."""
        self.check()
        if self._cuda is not None:
            self._cuda.synchronize()

    def found(self, key):
        """What plan() has made for this key, or None."""
        self.check()
        with self.lock:
            found = self._plans.get(key)
            if found is not None:
                self._plans.move_to_end(key)
            return found

    def plan(self, key, make):
        """The plan that was made for this key, or make(). Plans that were not asked for lately are let go."""
        found = self.found(key)
        if found is not None:
            return found
        made = make()  # it may compile for seconds, and other threads go on meanwhile
        with self.lock:
            found = self._plans.setdefault(key, made)
            if len(self._plans) > self.most_plans:
                self._plans.popitem(last=False)
            return found

    def run(self, function, plan, arguments):
        """Runs a plan: returns milliseconds on the device, of what it has waited for. It waits for the whole run, but
        within `Cuda.ordered_by` the stream does. An interrupted run leaves undefined results."""
        self.check()
        if not plan.scratch_bytes:
            return self._run(function, plan, arguments)
        handle, kind = None, BufferKind(plan.scratch_bytes)
        try:
            handle, address = self.create_buffer(kind)
            arguments.scratch_buffer = library().vkattn_buffer_handle(handle)
            arguments.scratch_address = address
            return self._run(function, plan, arguments)
        finally:
            if handle is not None:
                self.spare_buffer(kind, handle, address)

    def _run(self, function, plan, arguments):
        run = library().made(_abi.VkattnRun)
        run.segments_at_once = plan.segments_at_once
        run.most_submissions = 1
        if self._cuda is None:
            return self._submit(function, plan, arguments, run)
        with self._cuda.order(run):
            return self._submit(function, plan, arguments, run)

    def _submit(self, function, plan, arguments, run):
        time_ms = 0.0
        while True:  # Python hears of Ctrl-C between the submissions, which take about a quarter of a second
            library().call(function, self.runtime, plan.handle, ctypes.byref(arguments), ctypes.byref(run))
            time_ms += run.time_ms
            if run.first_segment == 0:
                plan.segments_at_once = run.segments_at_once
                return time_ms


_lock = threading.Lock()
_sessions: Dict[str, Session] = {}
_forks = 0  # how many lie between this process and the first one


def _begin_child():
    global _forks, _lock
    _forks += 1
    _lock = threading.Lock()  # the child has no thread that could release what another thread held


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_child)


def session_of(device=None):
    """The session of a device, which is given by a Device, an index, a part of its name or its UUID."""
    if isinstance(device, Session):
        return device
    if isinstance(device, Device):
        device = device.uuid
    if isinstance(device, bool) or not isinstance(device, (int, str, np.integer, type(None))):
        raise TypeError(f"device: {type(device).__name__} is no Device, index or text")
    key = "" if device is None else str(device)
    with _lock:
        for session in _sessions.values():
            session.check()
        if key not in _sessions:
            try:
                opened = Session(key)
            except ValueError as error:
                raise ValueError(f"device: {error}") from None
            # Two names of one device have one session: arrays of the one are arrays of the other.
            same = next((s for s in _sessions.values() if s.device == opened.device), None)
            if same is not None:
                library().vkattn_runtime_close(opened.runtime)
                opened.runtime = None
            _sessions[key] = same or opened
        return _sessions[key]


def open_sessions():
    """The sessions of this process."""
    with _lock:
        return [session for session in set(_sessions.values()) if session.is_own()]
