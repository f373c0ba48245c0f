"""The sockets of the metadata service inside the namespaces of the host's networks.

Creating them requires root, everything else does not. If nova-metadata is started as root, one process only creates the
sockets and passes them to another process, which answers guests as an unprivileged account."""

import contextlib
import ctypes
import logging
import os
import pwd
import socket
import threading
from collections.abc import Callable
from typing import Protocol

import msgspec

from nova.api.guest_metadata.app import NETWORK
from nova.network.linux import netns, state_files

LOG = logging.getLogger(__name__)

ADDRESS = ("169.254.169.254", 80)
# Seconds between two scans for new and removed networks.
INTERVAL = 1.0
# Maximum size in bytes of a message between the two processes about a socket.
_LONGEST = 4096
_NO_NEW_PRIVILEGES = 38
# Account of the process that answers guests, if the account in [metadata]user does not exist.
_NOBODY = "nobody"


class Sockets(Protocol):
    """Receiver of sockets: a Server (nova.api.guest_metadata.server), or a :class:`Sender` to its process."""

    def add(self, key: str, sock: socket.socket, extra: dict[str, str]) -> None: ...
    def remove(self, key: str) -> None: ...


class NamespaceWatcher:
    """Maintains one listening socket in the namespace of each network that is plugged on this host."""

    def __init__(self, sockets: Sockets, state_path: str) -> None:
        self._sockets = sockets
        self._state = state_files.StateFiles(state_path)
        self._open: dict[str, tuple[int, int]] = {}
        self._failed: set[str] = set()

    def run(self, stop: threading.Event) -> None:
        while True:
            try:
                self.synchronize()
            except Exception:
                LOG.exception("Cannot update the metadata sockets of this host's networks, retrying in a second")
            if stop.wait(INTERVAL):
                return

    def synchronize(self) -> None:
        """Open and close sockets according to the current namespaces."""
        wanted = {}
        for network_id in self._state.networks():
            namespace = netns.identity(state_files.namespace(network_id))
            if namespace is not None:
                wanted[network_id] = namespace
        for network_id in [watched for watched, namespace in self._open.items() if wanted.get(watched) != namespace]:
            self._sockets.remove(network_id)
            del self._open[network_id]
            LOG.info("Stopped serving metadata of network %s: its namespace was removed", network_id)
        for network_id in wanted.keys() - self._open.keys():
            self._listen(network_id, wanted[network_id])
        self._failed &= wanted.keys()

    def _listen(self, network_id: str, namespace: tuple[int, int]) -> None:
        try:
            sock = netns.call(state_files.namespace(network_id), lambda: listen(ADDRESS))
        except OSError as error:
            # The namespace may not be complete yet; the next scan tries again.
            if network_id not in self._failed:
                LOG.debug("Not yet listening on network %s: %s", network_id, error)
            self._failed.add(network_id)
            return
        self._sockets.add(network_id, sock, {NETWORK: network_id})
        self._open[network_id] = namespace
        LOG.info("Serving metadata of network %s in namespace %s", network_id, state_files.namespace(network_id))


def listen(address: tuple[str, int]) -> socket.socket:
    """Return a listening socket in the namespace of the calling thread."""
    family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
        sock.listen(128)
        sock.setblocking(False)
    except OSError:
        sock.close()
        raise
    return sock


# --- two processes -------------------------------------------------------------------------------------
class Sender:
    """Sends sockets from the process with root rights to the other process. Raises OSError if that one has exited."""

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel

    def add(self, key: str, sock: socket.socket, extra: dict[str, str]) -> None:
        with sock:
            socket.send_fds(self._channel, [msgspec.json.encode((key, extra))], [sock.fileno()])

    def remove(self, key: str) -> None:
        socket.send_fds(self._channel, [msgspec.json.encode((key, None))], [])


def receive(channel: socket.socket, sockets: Sockets, ended: Callable[[], None]) -> threading.Thread:
    """Receive sockets from the process with root rights, add them to ``sockets``, and call ``ended`` when it exits."""
    def run() -> None:
        with channel, contextlib.suppress(OSError):
            while True:
                text, handles, _flags, _address = socket.recv_fds(channel, _LONGEST, 1)
                if not text:
                    break
                key, extra = msgspec.json.decode(text, type=tuple[str, dict[str, str] | None])
                if extra is None:
                    sockets.remove(key)
                else:
                    sockets.add(key, socket.socket(fileno=handles[0]), extra)
        ended()

    thread = threading.Thread(target=run, name="metadata-sockets", daemon=True)
    thread.start()
    return thread


def become(user: str) -> None:
    """Change the process to this account permanently, or to the account nobody if this one does not exist."""
    try:
        account = pwd.getpwnam(user)
    except KeyError:
        LOG.warning("Account %r ([metadata]user) does not exist: the process that answers requests runs as %s",
                    user, _NOBODY)
        account = pwd.getpwnam(_NOBODY)
    os.setgroups([])
    os.setgid(account.pw_gid)
    os.setuid(account.pw_uid)
    ctypes.CDLL(None).prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0)
