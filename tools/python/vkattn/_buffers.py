"""Device memory that Arrays have, and what is kept of it for later ones."""

import weakref
from collections import OrderedDict
from typing import NamedTuple, Optional

from ._library import library


class BufferKind(NamedTuple):
    """What buffers have in common that can take each other's place."""

    size_bytes: int
    is_shared: bool = False  # with CUDA: an exportable buffer
    stream: Optional[int] = None  # of CUDA, in whose order the last owner has used it and the next one will

    @classmethod
    def shared(cls, size_bytes, stream):
        """The kind for data that CUDA may be asked for. It has up to an eighth more, so that data may grow."""
        step = max(256, 1 << max(0, size_bytes.bit_length() - 4))
        return cls(-(-size_bytes // step) * step, True, stream)


class Buffer:
    """Device memory. It goes back to its session when nobody has it any more."""

    def __init__(self, session, size_bytes):
        self.session = session
        self.size_bytes = size_bytes
        kind = session.kind_of(size_bytes)
        self.handle, self.address = session.create_buffer(kind)
        weakref.finalize(self, session.spare_buffer, kind, self.handle, self.address).atexit = False

    def cuda_address(self):
        """Where CUDA sees the memory. NotImplementedError, which says why, where it does not."""
        return self.session.cuda().address(self.handle)

    def write(self, address, size_bytes, offset=0):
        """Copies from the host's memory."""
        self.session.wait_for_cuda()
        if size_bytes:
            library().call("vkattn_buffer_write", self.handle, offset, address, size_bytes)

    def read(self, address, size_bytes, offset=0):
        """Copies to the host's memory."""
        self.session.wait_for_cuda()
        if size_bytes:
            library().call("vkattn_buffer_read", self.handle, offset, address, size_bytes)


class NoBuffer:
    """The place of data in Arrays that stand for a shape alone."""

    address = 0

    def __init__(self, session):
        self.session = session


class SpareBuffers:
    """Buffers that nobody has any more, for the next of their kind. What lies here longest goes first."""

    most = 256

    def __init__(self):
        self.most_bytes = 64 << 20  # of all together
        self._kinds = {}  # handles and addresses of a kind by the handle's value
        self._order = OrderedDict()  # kinds by the handle's value
        self._bytes = 0

    def take(self, kind):
        """A buffer's handle and address, or None."""
        spare = self._kinds.get(kind)
        if not spare:
            return None
        value, found = spare.popitem()  # the one that was put here last
        del self._order[value]
        self._bytes -= kind.size_bytes
        return found

    def put(self, kind, handle, address):
        """Keeps a buffer."""
        self._kinds.setdefault(kind, {})[handle.value] = handle, address
        self._order[handle.value] = kind
        self._bytes += kind.size_bytes

    def excess(self, most_bytes=None):
        """Takes out the handles of what is too much."""
        most_bytes = self.most_bytes if most_bytes is None else most_bytes
        handles = []
        while self._order and (self._bytes > most_bytes or len(self._order) > self.most):
            value, kind = self._order.popitem(last=False)
            handles.append(self._kinds[kind].pop(value)[0])
            self._bytes -= kind.size_bytes
            if not self._kinds[kind]:
                del self._kinds[kind]
        return handles
