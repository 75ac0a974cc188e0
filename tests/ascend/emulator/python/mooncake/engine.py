"""Mooncake's transfer engine between processes of this machine.

Device memory is the host's, so a peer's is read as the kernel lets a process read
another's. The real engine reads it through HCCL or RDMA.
"""

import ctypes
import os

IOVEC_LIMIT = 1024
"""Pieces of one call of the kernel."""
PR_SET_PTRACER, ANY_PROCESS = 0x59616D61, ctypes.c_ulong(-1)
FAILED = -1

libc = ctypes.CDLL(None, use_errno=True)
libc.process_vm_readv.restype = ctypes.c_ssize_t


class IoVec(ctypes.Structure):
    """A piece of memory."""

    _fields_ = (("base", ctypes.c_void_p), ("length", ctypes.c_size_t))


class TransferEngine:
    """Reads what a peer has registered; the peer does nothing."""

    def __init__(self):
        self._registered = []

    def initialize(self, hostname, metadata, protocol, device):
        """Lets the user's other processes read this one; 0 for success."""
        assert (metadata, protocol) == ("P2PHANDSHAKE", "ascend"), (metadata, protocol)
        libc.prctl(PR_SET_PTRACER, ANY_PROCESS, 0, 0, 0)
        return 0

    def get_rpc_port(self):
        """What peers know this engine by: here the number of its process."""
        return os.getpid()

    def register_memory(self, address, length):
        """Memory that transfers may touch; 0 for success."""
        self._registered.append((address, address + length))
        return 0

    def batch_transfer_sync_read(self, session, targets, sources, lengths):
        """Copies a peer's memory, piece by piece; negative for a failure.

        Args:
            session: host and port of the peer.
            targets: addresses in this process.
            sources: addresses in the peer's.
            lengths: bytes.
        """
        pid = int(session.rpartition(":")[2])
        pieces = list(zip(targets, sources, lengths, strict=True))
        for target, _, length in pieces:
            if not any(
                a <= target and target + length <= b for a, b in self._registered
            ):
                return FAILED
        for first in range(0, len(pieces), IOVEC_LIMIT):
            some = pieces[first : first + IOVEC_LIMIT]
            near = (IoVec * len(some))(*((t, n) for t, _, n in some))
            far = (IoVec * len(some))(*((s, n) for _, s, n in some))
            count = len(some)
            done = libc.process_vm_readv(pid, near, count, far, count, 0)
            if done != sum(n for _, _, n in some):
                return FAILED
        return 0
