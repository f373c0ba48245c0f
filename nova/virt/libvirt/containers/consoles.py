"""Console logs of containers, and their consoles over TCP.

libvirt gives a container a terminal, but writes no log of its output. nova-compute reads the terminals, writes the
logs, and serves each terminal at a TCP port of the host, as QEMU does for serial ports. The terminals are read on a
second connection to libvirt, since a stream can block other calls on its connection."""

import contextlib
import logging
import os
import queue
import socket
import threading
import time
from collections.abc import Callable

import libvirt

from nova import exception
from nova.conf import CONF
from nova.virt.guest_files import directories
from nova.virt.libvirt.files import disks
from nova.virt.libvirt.host import Host
from nova.virt.serial_ports import SerialPorts

LOG = logging.getLogger(__name__)

_PIECE = 4096
# Maximum bytes of a log file (then a new file is started, as virtlogd does), and number of older files that are kept.
_MAX_SIZE, _OLDER = 1 << 20, 3
# Maximum bytes of output that wait for a client, or of input for the terminal; more disconnects the client.
_MOST_PENDING = 256 << 10
_CLIENTS = 8  # maximum number of clients of a terminal
# Seconds between two attempts to open a terminal.
_RETRY_INTERVAL = 1.0
_STREAM_EVENTS = (libvirt.VIR_STREAM_EVENT_READABLE | libvirt.VIR_STREAM_EVENT_HANGUP | libvirt.VIR_STREAM_EVENT_ERROR)
_READABLE, _WRITABLE = libvirt.VIR_EVENT_HANDLE_READABLE, libvirt.VIR_EVENT_HANDLE_WRITABLE
_NOT_NOW = -2

Handler = Callable[[int, int, int, object], None]
EndHandler = Callable[[str], None]


class ConsoleReader:
    """A reader of the terminals of all running containers. One thread opens terminals; libvirt's event thread reads
    them, and serves the clients of the TCP ports."""

    def __init__(self, uri: str, owner: str, ports: SerialPorts) -> None:
        self._host, self._owner, self._ports = Host(uri), owner, ports
        self._lock = threading.RLock()
        self._terminals: dict[str, _Terminal] = {}
        # A uuid: open the terminal of this container; "": open those of all containers; None: stop.
        self._requests: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="libvirt-consoles", daemon=True)

    def start(self) -> None:
        self._host.on_lifecycle = self._requests.put
        self._host.on_connected = self._reconnected
        self._host.start()
        self._thread.start()

    def stop(self) -> None:
        self._requests.put(None)
        if self._thread.is_alive():
            self._thread.join(timeout=10)
        self._host.on_lifecycle = self._host.on_connected = None
        self._close_all()
        self._host.stop()

    def follow(self, uuid: str) -> None:
        """Request that the container's terminal is read from now on. Never blocks."""
        self._requests.put(uuid)

    def port(self, uuid: str) -> int | None:
        """Return the TCP port at which the container's terminal is served, or None."""
        with self._lock:
            terminal = self._terminals.get(uuid)
            return terminal.port if terminal is not None else None

    def _reconnected(self) -> None:
        self._close_all()
        self._requests.put("")

    def _close_all(self) -> None:
        with self._lock:
            for terminal in self._terminals.values():
                terminal.close()
            self._terminals.clear()

    def _run(self) -> None:
        retries: dict[str, float] = {}
        while True:
            with contextlib.suppress(queue.Empty):
                uuid = self._requests.get(timeout=_RETRY_INTERVAL if retries else None)
                if uuid is None:
                    return
                retries[uuid] = 0.0
            now = time.monotonic()
            for uuid in [uuid for uuid, due in retries.items() if due <= now]:
                retries[uuid] = time.monotonic() + _RETRY_INTERVAL
                try:
                    self._open(uuid)
                    del retries[uuid]
                except exception.NovaException as error:
                    LOG.warning("Cannot read the consoles of containers from libvirt, retrying: %s", error)
                except (libvirt.libvirtError, OSError) as error:
                    LOG.info("[instance: %s] Cannot read the container's console, retrying: %s", uuid, error)

    def _open(self, uuid: str) -> None:
        """Open the terminal of a running container of this host, unless it is open. "": queue all running containers.
        The caller repeats the call after an exception."""
        if not uuid:
            active = self._host.call(lambda connection: [
                domain.UUIDString() for domain in connection.listAllDomains(libvirt.VIR_CONNECT_LIST_DOMAINS_ACTIVE)])
            for active_uuid in active:
                self._requests.put(active_uuid)
            return
        place = directories.directory(uuid)
        recorded = directories.owner(place)
        with self._lock:
            if uuid in self._terminals or recorded is None or recorded.host != self._owner:
                return
        with contextlib.ExitStack() as opened:
            log = _Log(disks.console_log(uuid))  # Open it first: without a log, output in the stream would be lost.
            opened.callback(log.close)
            try:
                stream = self._host.call(lambda connection: _open_terminal(connection, uuid), uuid)
            except exception.GuestNotFound:
                return
            if stream is None:
                return
            opened.callback(stream.abort)
            listener = self._listen(uuid)
            if listener is not None:
                opened.callback(listener.close)
            with self._lock:
                self._terminals[uuid] = _Terminal(uuid, stream, log, listener, self._ended)
            opened.pop_all()

    def _listen(self, uuid: str) -> socket.socket | None:
        if not CONF.serial_console.enabled:
            return None
        try:
            port, = self._ports.take(1, ())
            return socket.create_server((CONF.serial_console.proxyclient_address, port))
        except (exception.SocketPortRangeExhausted, OSError) as error:
            LOG.warning("[instance: %s] The container has a console log but no serial console until its next start: %s",
                        uuid, error)
            return None

    def _ended(self, uuid: str) -> None:
        """Close a terminal that ended, and open the new one if the container rebooted without a request."""
        with self._lock:
            terminal = self._terminals.pop(uuid, None)
            if terminal is not None:
                terminal.close()
        self._requests.put(uuid)


def _open_terminal(connection: libvirt.virConnect, uuid: str) -> libvirt.virStream | None:
    """Return a stream of the container's terminal, or None if the container does not run."""
    domain = connection.lookupByUUIDString(uuid)
    if not domain.isActive():
        return None
    stream = connection.newStream(libvirt.VIR_STREAM_NONBLOCK)
    domain.openConsole(None, stream, 0)
    return stream


class _Log:
    """The console log of a container: rotated, and readable by root only."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._file = self._opened()

    def _opened(self) -> int:
        return os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o600)

    def write(self, data: bytes) -> None:
        os.write(self._file, data)
        if os.fstat(self._file).st_size < _MAX_SIZE:
            return
        os.close(self._file)
        for number in range(_OLDER - 1, -1, -1):
            source = f"{self._path}.{number - 1}" if number else self._path
            with contextlib.suppress(FileNotFoundError):
                os.replace(source, f"{self._path}.{number}")
        self._file = self._opened()

    def close(self) -> None:
        os.close(self._file)


class _Terminal:
    """An open terminal. All methods but the constructor and close() run in libvirt's event thread."""

    def __init__(self, uuid: str, stream: libvirt.virStream, log: _Log, listener: socket.socket | None,
                 on_end: EndHandler) -> None:
        self._uuid, self._stream, self._log, self._on_end = uuid, stream, log, on_end
        self._listener, self._watches = listener, dict[int, int]()
        self._clients: dict[int, socket.socket] = {}
        self._behind: dict[int, bytearray] = {}
        self._input = bytearray()
        self._lock = threading.RLock()
        self._closed = False
        self.port = listener.getsockname()[1] if listener is not None else None
        if listener is not None:
            listener.setblocking(False)
            self._watch(listener, _READABLE, self._accept)
        stream.eventAddCallback(_STREAM_EVENTS, self._ready, None)

    def close(self) -> None:
        with self._lock:
            if self._closed:
                return
            self._closed = True
            for step in (self._stream.eventRemoveCallback, self._stream.abort):
                with contextlib.suppress(libvirt.libvirtError):
                    step()
            for client in list(self._clients.values()):
                self._drop(client)
            if self._listener is not None:
                self._unwatch(self._listener)
                self._listener.close()
            self._log.close()

    def _ready(self, _stream: libvirt.virStream, _events: int, _opaque: object) -> None:
        is_open = False
        with self._lock:
            if self._closed:
                return
            try:
                is_open = self._read() and self._write()
            except (libvirt.libvirtError, OSError) as error:
                LOG.debug("[instance: %s] The console ended: %s", self._uuid, error)
        if not is_open:
            self._on_end(self._uuid)

    def _read(self) -> bool:
        """Read the available output; return False at the end of the terminal."""
        while (data := self._stream.recv(_PIECE)) != _NOT_NOW:
            if not data:
                return False
            self._log.write(data)
            for client in list(self._clients.values()):
                self._behind[client.fileno()] += data
                self._flush(client)
        return True

    def _write(self) -> bool:
        """Write the input of the clients as far as the terminal accepts it."""
        while self._input:
            sent = self._stream.send(bytes(self._input[:_PIECE]))
            if sent < 0:
                break
            del self._input[:sent]
        waits = libvirt.VIR_STREAM_EVENT_WRITABLE if self._input else 0
        self._stream.eventUpdateCallback(_STREAM_EVENTS | waits)
        return True

    # --- clients -----------------------------------------------------------------------------------
    def _watch(self, item: socket.socket, events: int, handler: Handler) -> None:
        self._watches[item.fileno()] = libvirt.virEventAddHandle(item.fileno(), events, handler, None)

    def _unwatch(self, item: socket.socket) -> None:
        libvirt.virEventRemoveHandle(self._watches.pop(item.fileno()))

    def _accept(self, _watch: int, _fd: int, _events: int, _opaque: object) -> None:
        with self._lock, contextlib.suppress(OSError):
            if self._closed or self._listener is None:
                return
            client, _address = self._listener.accept()
            if len(self._clients) >= _CLIENTS:
                client.close()
                return
            client.setblocking(False)
            self._clients[client.fileno()], self._behind[client.fileno()] = client, bytearray()
            self._watch(client, _READABLE, self._serve)

    def _serve(self, _watch: int, fd: int, events: int, _opaque: object) -> None:
        """Receive the input of a client, and send the pending output to the client."""
        with self._lock:
            client = self._clients.get(fd)
            if self._closed or client is None:
                return
            try:
                if events & _WRITABLE:
                    self._flush(client)
                if events & ~_WRITABLE:
                    data = client.recv(_PIECE)
                    if not data or len(self._input) > _MOST_PENDING:
                        self._drop(client)
                        return
                    self._input += data
                    self._write()
            except BlockingIOError:
                return
            except (OSError, libvirt.libvirtError):
                self._drop(client)

    def _flush(self, client: socket.socket) -> None:
        pending = self._behind[client.fileno()]
        try:
            while pending:
                del pending[:client.send(pending)]
        except BlockingIOError:
            if len(pending) > _MOST_PENDING:
                self._drop(client)
                return
        except OSError:
            self._drop(client)
            return
        libvirt.virEventUpdateHandle(self._watches[client.fileno()], _READABLE | (_WRITABLE if pending else 0))

    def _drop(self, client: socket.socket) -> None:
        fd = client.fileno()
        if self._clients.pop(fd, None) is not None:
            self._unwatch(client)
            del self._behind[fd]
            client.close()
