"""The HTTP server: one thread for all connections, and a pool of threads for complete requests."""

import contextlib
import ctypes
import dataclasses
import logging
import os
import resource
import select
import socket
import ssl
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable

import h11

from nova.http import messages
from nova.http.backlog import Backlog, is_closed_by_peer
from nova.http.connection import Connection, State
from nova.http.limits import Limits
from nova.http.messages import Wsgi
from nova.http.tls import Secured

LOG = logging.getLogger(__name__)

# Maximum number of connections accepted before other events are handled, and of refused connections that stay open.
_AT_ONCE = 64
# Seconds between two checks for connections past their deadline.
_CHECK_INTERVAL = 0.5
# Seconds within which a started TCP handshake is complete.
_HANDSHAKE = 0.05
# Seconds that a client connected just before the shutdown has to send its request.
_GRACE = 1.0
# Maximum number of unread response bytes of all clients; above that the oldest responses are dropped.
_MOST_UNSENT = 64 * 1024 * 1024
# Number of file descriptors that are reserved for other purposes than connections.
_OTHER_FILES = 128
# Minimum number of seconds between two equal warnings.
_LOG_INTERVAL = 60.0
# A classic packet filter (linux/filter.h): load the TCP flags; drop a packet with SYN, accept all others.
_NO_SYN = struct.pack("=" + 4 * "HBBI", 0x30, 0, 0, 13, 0x45, 0, 1, 0x02, 0x06, 0, 0, 0, 0x06, 0, 0, 0xffffffff)
_SO_ATTACH_FILTER = 26


class Server:
    """Serves a listening socket, which other processes may share, from prepare() to stop().

    After stop() the server runs for ``linger`` more seconds and closes every connection after its response. Then it
    accepts no connections, and requests in progress have ``timeout`` seconds. ``last``: returns True if no other
    process continues to serve the socket. A request whose client disconnects before a thread is free is not executed.
    ``error_body``: returns the body of the response to an invalid request. ``secure``: the TLS context, or None."""

    def __init__(self, shared: socket.socket, application: Wsgi, threads: int, limits: Limits,
                 error_body: messages.ErrorBody, linger: float = 0.0, last: Callable[[], bool] = lambda: True,
                 timeout: float = 60.0, secure: ssl.SSLContext | None = None) -> None:
        files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        self.limits = dataclasses.replace(limits, total=max(min(limits.total, files - _OTHER_FILES), 1))
        name = shared.getsockname()
        self.environ = {"SERVER_NAME": name[0], "SERVER_PORT": str(name[1]), "SERVER_SOFTWARE": "nova"}
        self.error_body = error_body
        self.leaving = False
        self._shared, self._application, self._secure = shared, application, secure
        self._linger, self._last, self._timeout = linger, last, timeout
        self._backlog = Backlog()
        self._threads = [threading.Thread(target=self._work, name=f"api-{number}", daemon=True)
                         for number in range(threads)]
        # Released by each thread at its end. Thread.join() is not used: with Debian's Python 3.11.2 and Keystone's
        # middleware a thread may end without releasing the lock that join() waits for.
        self._finished = threading.Semaphore(0)
        self._lock = threading.Lock()
        self._connections: dict[int, Connection] = {}
        self._clients: Counter[str] = Counter()
        self._draining = self._paused = self._serving = False
        self._ended = threading.Event()
        self._logged_at: dict[str, float] = {}

    def prepare(self) -> None:
        """Start the threads that process requests. Call this after forking, because a fork does not copy threads."""
        # A copy of the file descriptor; closing it at stop does not affect other processes.
        self._listening = self._shared.dup()
        self._listening.setblocking(False)
        self._number = self._listening.fileno()
        self._poll = select.epoll()
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._poll.register(self._wake, select.EPOLLIN)
        self._poll.register(self._number, select.EPOLLIN)
        for thread in self._threads:
            thread.start()

    def serve(self) -> None:
        """Serve requests in this thread. Return after stop(), when all requests are answered."""
        self._serving = True
        checked_at = time.monotonic()
        try:
            while not self._draining:
                self._turn(_CHECK_INTERVAL)
                if time.monotonic() - checked_at >= _CHECK_INTERVAL:
                    self._close_stale()
                    checked_at = time.monotonic()
            self._drain()
        finally:
            self._close()
            self._ended.set()

    def stop(self) -> None:
        if self.leaving:
            return
        self.leaving = True
        end = time.monotonic() + self._linger + self._timeout + _GRACE
        time.sleep(self._linger)
        self._draining = True
        os.eventfd_write(self._wake, 1)
        if self._serving:
            self._ended.wait()
        for _thread in self._threads:
            self._backlog.put(None)
        for _thread in self._threads:
            self._finished.acquire(timeout=max(0.0, end - time.monotonic()))
        os.close(self._wake)

    # -- for connections, from any thread: a Loop -------------------------------------------------
    def await_(self, connection: Connection, events: int) -> None:
        with contextlib.suppress(OSError, ValueError):
            self._poll.modify(connection.sock.fileno(), events | select.EPOLLONESHOT)

    def submit(self, connection: Connection) -> None:
        self._backlog.put(connection)

    def forget(self, connection: Connection) -> None:
        with self._lock:
            if self._connections.pop(connection.sock.fileno(), None) is not None:
                self._clients[connection.client] -= 1
                if not self._clients[connection.client]:
                    del self._clients[connection.client]

    # -- processing threads --------------------------------------------------------------------------
    def _work(self) -> None:
        try:
            while (connection := self._backlog.get()) is not None:
                try:
                    self._answer(connection)
                except Exception:
                    LOG.exception("Unexpected error at a client's connection, closing the connection")
                    connection.close()
        finally:
            self._finished.release()

    def _answer(self, connection: Connection) -> None:
        if is_closed_by_peer(connection.sock):
            connection.close()
            return
        try:
            answer = messages.call(self._application, connection.environ())
        except Exception:
            LOG.exception("Unexpected error in the application, the request fails")
            connection.refuse(500, "The log of nova-api has the details.")
            return
        try:
            connection.answer(*answer)
        except h11.LocalProtocolError:
            LOG.exception("The response has an invalid header, the request fails (500)")
            connection.refuse(500, "The log of nova-api has the details.")

    # -- the loop's thread -----------------------------------------------------------------------------
    def _turn(self, seconds: float) -> None:
        """Wait for events and handle them."""
        for number, _events in self._poll.poll(seconds):
            if number == self._wake:
                with contextlib.suppress(BlockingIOError):
                    os.eventfd_read(self._wake)
            elif number == self._number:
                self._accept()
            elif (connection := self._connections.get(number)) is not None:
                try:
                    connection.ready()
                except Exception:
                    LOG.exception("Unexpected error at a client's connection, closing the connection")
                    connection.close()

    def _close_stale(self) -> None:
        """Close connections after their deadline, and drop unread responses if they are too many."""
        if self._paused:
            self._paused = False
            self._poll.modify(self._number, select.EPOLLIN)
        for closed in self._backlog.take_closed():
            closed.close()
        now = time.monotonic()
        with self._lock:
            present = list(self._connections.values())
        sending = [connection for connection in present if connection.state is State.SENDING]
        for connection in present:
            if connection.state not in (State.WORKING, State.CLOSED) and connection.deadline < now:
                connection.expired()
        unsent = sum(connection.unsent for connection in sending)
        for connection in sorted(sending, key=lambda connection: connection.deadline):
            if unsent <= _MOST_UNSENT:
                break
            unsent -= connection.unsent
            self._warn("Clients have not read 64 MiB of responses: dropped the response to %s", connection.client)
            connection.close()

    def _accept(self) -> bool:
        """Accept all waiting connections; return True if there was one."""
        for number in range(_AT_ONCE):
            try:
                sock, address = self._listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return number > 0
            except OSError as error:
                # File descriptors or memory are exhausted. Serve open connections, and retry after _CHECK_INTERVAL.
                self._warn("Cannot accept new connections, retrying: %s", str(error))
                self._poll.modify(self._number, 0)
                self._paused = True
                return False
            sock.setblocking(False)
            self._connected(sock, address)
        return True

    def _connected(self, sock: socket.socket, address: tuple[object, ...]) -> None:
        connection = Connection(self, sock if self._secure is None else Secured(sock, self._secure), address)
        crowded = not connection.trusted and self._clients[connection.client] >= self.limits.per_client
        if crowded or (len(self._connections) >= self.limits.total and not self._make_room(connection)):
            self._turn_away(connection, crowded)
        else:
            self._keep(connection)

    def _keep(self, connection: Connection) -> None:
        number = connection.sock.fileno()
        with self._lock:
            self._connections[number] = connection
            self._clients[connection.client] += 1
        self._poll.register(number, select.EPOLLIN | select.EPOLLONESHOT)

    def _turn_away(self, connection: Connection, crowded: bool) -> None:
        """Refuse a connection beyond a limit without waiting for its client."""
        self._warn("Refused a connection from %s, which has [api]connections_per_client connections" if crowded else
                   "Refused a connection from %s: [api]max_connections connections are open", connection.client)
        with self._lock:
            ending = sum(present.state is State.ENDING for present in self._connections.values())
        if connection.secure or ending >= _AT_ONCE:
            connection.sock.close()
            return
        self._keep(connection)
        if crowded:
            connection.refuse(429, "You have too many connections.", retry_after=1)
        else:
            connection.refuse(503, "There are too many connections.", retry_after=1)

    def _make_room(self, newcomer: Connection) -> bool:
        """Close an idle connection of the client with the most connections. Return False if none can be closed."""
        with self._lock:
            idle = [connection for connection in self._connections.values()
                    if connection.state not in (State.WORKING, State.SENDING)]
        if not idle:
            return False
        victim = min(idle, key=lambda connection: (
            connection.trusted, -self._clients[connection.client], connection.since))
        if not victim.trusted and self._clients[victim.client] <= self._clients[newcomer.client]:
            return False  # No client has more connections than the newcomer.
        victim.close()
        return True

    def _warn(self, text: str, what: str) -> None:
        now = time.monotonic()
        if now - self._logged_at.get(text, -_LOG_INTERVAL) >= _LOG_INTERVAL:
            self._logged_at[text] = now
            LOG.warning(text, what)

    # -- stop --------------------------------------------------------------------------------------------
    def _drain(self) -> None:
        """Close the listening socket, answer the received requests and close all connections."""
        if self._last():
            shut_to_newcomers(self._listening)
            time.sleep(_HANDSHAKE)
        while self._accept():
            pass
        self._paused = False
        self._poll.unregister(self._number)
        self._number = -1
        self._listening.close()
        self._shared.close()
        began = time.monotonic()
        while True:
            self._turn(_HANDSHAKE)
            self._close_stale()
            now = time.monotonic()
            with self._lock:
                present = list(self._connections.values())
            idle = [connection for connection in present if not _unanswered(connection, now < began + _GRACE)]
            for connection in idle:
                connection.close()
            if len(idle) == len(present) or now > began + self._timeout:
                return

    def _close(self) -> None:
        with self._lock:
            present = list(self._connections.values())
        for connection in present:
            connection.close()
        self._listening.close()
        self._poll.close()


def _unanswered(connection: Connection, early: bool) -> bool:
    if connection.state in (State.READING, State.GREETING):
        return connection.begun or (early and not connection.used)
    return connection.state is not State.CLOSED


def shut_to_newcomers(listening: socket.socket) -> None:
    """Ignore new connections to a listening socket before it is closed; connections in its queue can be accepted.

    Closing a socket resets the connections in its queue, and a client may connect after the last accept(). New
    connections are not refused but ignored: the client's kernel retries after a second, and then the socket is closed
    or replaced by that of a new process."""
    program = ctypes.create_string_buffer(_NO_SYN)
    with contextlib.suppress(OSError):  # A kernel without filters resets connections that arrive now.
        listening.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER,
                             struct.pack("HP", len(_NO_SYN) // 8, ctypes.addressof(program)))
