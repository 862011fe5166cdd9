"""The memory of Arrays as CUDA sees it.

A device exports the memory of a buffer by a file descriptor, and CUDA maps it: cuImportExternalMemory of the CUDA
driver API, section "External Resource Interoperability". All of this happens in CUDA's primary context of the device,
which is the one of PyTorch and of CUDA's runtime.
"""

import contextlib
import ctypes
import os
import threading
import weakref

from ._library import library

LIBRARY = "libcuda.so.1"

_OPAQUE_FD, _TIMELINE_FD = 1, 9  # CUexternalMemoryHandleType, CUexternalSemaphoreHandleType
_DEDICATED = 1  # CUDA_EXTERNAL_MEMORY_DEDICATED

_u32, _u64 = ctypes.c_uint32, ctypes.c_uint64


class _MemoryHandle(ctypes.Structure):  # CUDA_EXTERNAL_MEMORY_HANDLE_DESC
    _fields_ = [("type", _u32), ("handle", _u64 * 2), ("size", _u64), ("flags", _u32), ("reserved", _u32 * 16)]


class _MemoryBuffer(ctypes.Structure):  # CUDA_EXTERNAL_MEMORY_BUFFER_DESC
    _fields_ = [("offset", _u64), ("size", _u64), ("flags", _u32), ("reserved", _u32 * 16)]


class _SemaphoreHandle(ctypes.Structure):  # CUDA_EXTERNAL_SEMAPHORE_HANDLE_DESC
    _fields_ = [("type", _u32), ("handle", _u64 * 2), ("flags", _u32), ("reserved", _u32 * 16)]


class _SemaphoreSignal(ctypes.Structure):  # CUDA_EXTERNAL_SEMAPHORE_SIGNAL_PARAMS, and _WAIT_PARAMS for this type
    _fields_ = [("value", _u64), ("others", _u64 * 2), ("reserved", _u32 * 12), ("flags", _u32),
                ("more_reserved", _u32 * 16)]


class _Driver:
    """CUDA's driver, whose functions raise what goes wrong."""

    def __init__(self):
        try:
            self._library = ctypes.CDLL(LIBRARY)
        except OSError as error:
            raise NotImplementedError(f"there is no CUDA driver: {error}") from None
        try:
            self.call("cuInit", 0)
        except RuntimeError as error:  # there is no device, or CUDA_VISIBLE_DEVICES hides them all
            raise NotImplementedError(f"CUDA has no device: {error}") from None

    def call(self, name, *arguments):
        """Calls a function that returns a CUresult."""
        result = getattr(self._library, name)(*arguments)
        if result:
            text = ctypes.c_char_p()
            self._library.cuGetErrorString(result, ctypes.byref(text))
            why = text.value.decode() if text.value else "an unknown error"
            kind = MemoryError if result == 2 else RuntimeError
            raise kind(f"{name}: {result}, {why}")

    def uuid(self, ordinal):
        """Of a device, as VkattnDeviceInfo has it."""
        device, uuid = ctypes.c_int(), (ctypes.c_ubyte * 16)()
        self.call("cuDeviceGet", ctypes.byref(device), ordinal)
        self.call("cuDeviceGetUuid_v2", uuid, device)
        return bytes(uuid).hex()

    def ordinal(self, uuid):
        """The number of the device that has this UUID, or None."""
        count = ctypes.c_int()
        self.call("cuDeviceGetCount", ctypes.byref(count))
        return next((n for n in range(count.value) if self.uuid(n) == uuid), None)


_lock = threading.Lock()
_driver = None


def driver():
    """CUDA's driver, which is loaded when it is needed first. NotImplementedError where there is none."""
    global _driver
    with _lock:
        if _driver is None:
            _driver = _Driver()
        return _driver


class Cuda:
    """A session's device in CUDA, what is mapped of it there, and the order of its runs among CUDA's work.

    Calls of Arrays wait for all that CUDA does on the device, and have ended when they return. Those of tensors, within
    ordered_by(), are ordered in one stream, as PyTorch's own are: they return at once, the run waits on the device for
    the stream, and the stream for the run. So whoever waits for CUDA has waited for these runs, too.
    """

    def __init__(self, session):
        self._session, self._driver = session, driver()
        self.ordinal = self._driver.ordinal(session.device.uuid)
        if self.ordinal is None:
            raise NotImplementedError(f"CUDA does not have the device {session.device.name!r}")
        device, total = ctypes.c_int(), ctypes.c_size_t()
        self._context = ctypes.c_void_p()
        self._driver.call("cuDeviceGet", ctypes.byref(device), self.ordinal)
        self._driver.call("cuDeviceTotalMem_v2", ctypes.byref(total), device)
        self._driver.call("cuDevicePrimaryCtxRetain", ctypes.byref(self._context), device)
        self.memory_bytes = total.value
        self.torch_device = f"cuda:{self.ordinal}"
        self._lock = session.lock
        self._mapped = {}  # address in CUDA and CUexternalMemory by the buffer's handle
        self._has_semaphores = True
        self._semaphores = {}  # by stream, those that no thread uses now
        self._thread = threading.local()
        self._drained = ctypes.c_void_p()  # a buffer, to wait for what the device was given before
        library().call("vkattn_buffer_create", session.runtime, 4, ctypes.byref(self._drained))
        session.add(self._drained)
        self.buffers = weakref.WeakValueDictionary()  # by the address of a tensor's storage

    @contextlib.contextmanager
    def _current(self):
        self._driver.call("cuCtxPushCurrent_v2", self._context)
        try:
            yield self._driver.call
        finally:
            self._driver.call("cuCtxPopCurrent_v2", ctypes.byref(ctypes.c_void_p()))

    def address(self, handle):
        """Where CUDA sees a buffer, which is mapped when it is asked for first."""
        with self._lock:
            found = self._mapped.get(handle.value)
            if found is None:
                found = self._mapped[handle.value] = self._map(handle)
            return found[0]

    def _map(self, handle):
        fd, size, memory_type = ctypes.c_int(), _u64(), _u32()
        library().call("vkattn_buffer_export", handle, *map(ctypes.byref, (fd, size, memory_type)))
        memory, address = ctypes.c_void_p(), _u64()
        about = _MemoryHandle(_OPAQUE_FD, (_u64 * 2)(fd.value), size.value, _DEDICATED)
        with self._current() as call:
            with _owning(fd):
                call("cuImportExternalMemory", ctypes.byref(memory), ctypes.byref(about))
            try:
                call("cuExternalMemoryGetMappedBuffer", ctypes.byref(address), memory,
                     ctypes.byref(_MemoryBuffer(0, size.value)))
            except BaseException:
                call("cuDestroyExternalMemory", memory)
                raise
        return address.value, memory

    def release(self, handles):
        """Before objects of the session are destroyed: nobody uses them any more, and CUDA does not map them."""
        self.synchronize()
        for handle in handles:
            found = self._mapped.pop(handle.value, None)
            if found is not None:
                with self._current() as call:
                    call("cuMemFree_v2", _u64(found[0]))
                    call("cuDestroyExternalMemory", found[1])

    def synchronize(self):
        """Waits for all that CUDA does on the device."""
        with self._current() as call:
            call("cuCtxSynchronize")

    @property
    def stream(self):
        """The stream of ordered_by() in this thread, or None."""
        return getattr(self._thread, "stream", None)

    @contextlib.contextmanager
    def ordered_by(self, stream):
        """Runs within begin when this stream has done what it was given so far."""
        before, self._thread.stream = self.stream, stream
        try:
            yield
        finally:
            self._thread.stream = before

    @contextlib.contextmanager
    def order(self, run):
        """Lets a run begin after what CUDA has been given, and what the stream is given from now on after the run."""
        stream, semaphore = self.stream, None
        if stream is not None:
            semaphore = self._take_semaphore(stream)
        if semaphore is None:
            self.synchronize()
            yield
            return
        try:
            semaphore.signal(run)
            yield
            semaphore.wait()
        except BaseException:
            # The caller hears of a failure when nothing is under way any more, whatever was submitted before it.
            try:
                self.synchronize()
            finally:
                library().call("vkattn_buffer_fill", self._drained, 0)
            raise
        finally:
            with self._lock:
                self._semaphores[stream].append(semaphore)

    def _take_semaphore(self, stream):
        """One of the stream's that no other thread uses now; None where the device exports none."""
        with self._lock:
            spare = self._semaphores.setdefault(stream, [])
            if spare or not self._has_semaphores:
                return spare.pop() if spare else None
            try:
                return _Semaphore(self._session, stream, self._driver.call, self._current)
            except NotImplementedError:
                self._has_semaphores = False
                return None


@contextlib.contextmanager
def _owning(fd):
    """CUDA takes over a file descriptor if it has imported it."""
    try:
        yield
    except BaseException:
        os.close(fd.value)
        raise


class _Semaphore:
    """A timeline semaphore between a stream and the device's runs.

    Its value grows by two with each run: CUDA signals the first, for which the run waits, and the run signals the
    second, for which the stream waits. It belongs to one stream, so that these come in order.
    """

    def __init__(self, session, stream, call, current):
        self._stream, self._current, self._value = ctypes.c_void_p(stream), current, 0
        self._own, self._imported = ctypes.c_void_p(), ctypes.c_void_p()
        library().call("vkattn_semaphore_create", session.runtime, 0, ctypes.byref(self._own))
        try:
            fd = ctypes.c_int()
            library().call("vkattn_semaphore_export", self._own, ctypes.byref(fd))
            with current(), _owning(fd):
                call("cuImportExternalSemaphore", ctypes.byref(self._imported),
                     ctypes.byref(_SemaphoreHandle(_TIMELINE_FD, (_u64 * 2)(fd.value))))
        except BaseException:
            library().vkattn_semaphore_destroy(self._own)
            raise
        session.add(self._own)

    def signal(self, run):
        """Lets the run wait for what is in the stream now, and end by itself."""
        self._value += 2  # before anything can fail, because no value may come twice
        run.wait_semaphore, run.wait_value = self._own.value, self._value - 1
        run.signal_semaphore, run.signal_value = self._own.value, self._value
        run.asynchronous = 1
        with self._current() as call:
            call("cuSignalExternalSemaphoresAsync", ctypes.byref(self._imported),
                 ctypes.byref(_SemaphoreSignal(run.wait_value)), 1, self._stream)

    def wait(self):
        """Lets what the stream is given from now on wait for the run."""
        with self._current() as call:
            call("cuWaitExternalSemaphoresAsync", ctypes.byref(self._imported),
                 ctypes.byref(_SemaphoreSignal(self._value)), 1, self._stream)
