"""A TCP proxy for PostgreSQL or MariaDB that cuts a connection at a chosen statement.

::

    with Proxy(server.new_database()) as proxy:
        cut = proxy.cut("COMMIT", of="INSERT INTO instances", when="after")
        ... use proxy.url ...
        cut.wait()

``before``: the statement does not reach the server. ``after``: the server has executed the statement, and its response
is lost; after a COMMIT the client cannot know the outcome.
"""

from __future__ import annotations

import contextlib
import dataclasses
import re
import socket
import struct
import threading
from collections.abc import Iterator
from typing import Literal, Self

import sqlalchemy as sa

from tests.integration.processes import eventually

When = Literal["before", "after"]
# PostgreSQL's codes of requests for an encrypted connection, and of the protocol at the start of a session.
_SSL, _GSS, _SESSION = 80877103, 80877104, 196608
_ENDS = ("COMMIT", "ROLLBACK")
# Prepared statements (nova.db.sql.prepared): name and text; name and values.
_PREPARE = re.compile(r"PREPARE (\w+)(?:\(.*?\))? AS (.*)", re.DOTALL)
_EXECUTE = re.compile(r"EXECUTE (\w+)(.*)", re.DOTALL)


@dataclasses.dataclass
class Cut:
    """A request to cut connections ``times`` times at matching statements, after a statement matching ``of``."""

    statement: re.Pattern[str]
    of: re.Pattern[str] | None
    when: When
    times: int
    done: int = 0

    def wait(self, timeout: float = 30.0) -> None:
        """Wait until the connections were cut ``times`` times."""
        eventually(lambda: self.done == self.times, timeout, f"cut {self.when} {self.statement.pattern}")

    def meets(self, statement: str, earlier: list[str]) -> bool:
        return (self.done < self.times and self.statement.search(statement) is not None
                and (self.of is None or any(self.of.search(other) for other in earlier)))


class Proxy:
    """A proxy; ``url`` is the URL of the database through the proxy."""

    def __init__(self, url: str) -> None:
        parsed = sa.make_url(url)
        self._mysql = parsed.get_backend_name() in ("mysql", "mariadb")
        self._unix = parsed.query.get("unix_socket")
        self._server = (parsed.host, parsed.port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = parsed.set(host="127.0.0.1", port=self._listener.getsockname()[1], query={}).render_as_string(
            hide_password=False)
        self._cuts: list[Cut] = []
        self._lock = threading.Lock()
        self._sockets: set[socket.socket] = set()

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.close()
        self.cut_all()

    def cut(self, statement: str, *, of: str | None = None, when: When = "before", times: int = 1) -> Cut:
        """Cut the connection with the next matching statement (regular expressions, case-insensitive)."""
        made = Cut(re.compile(statement, re.IGNORECASE), re.compile(of, re.IGNORECASE) if of else None, when, times)
        with self._lock:
            self._cuts.append(made)
        return made

    def cut_all(self) -> None:
        """Cut every connection, now."""
        with self._lock:
            sockets, self._sockets = self._sockets, set()
        for one in sockets:
            _close(one)

    def _accept(self) -> None:
        while True:
            try:
                client, _address = self._listener.accept()
            except OSError:
                return
            try:
                server = self._connect()
            except OSError:
                client.close()
                continue
            with self._lock:
                self._sockets |= {client, server}
            _Session(self, client, server, self._mysql).start()

    def _connect(self) -> socket.socket:
        if not self._unix:
            return socket.create_connection((str(self._server[0]), int(self._server[1] or 0)))
        server = socket.socket(socket.AF_UNIX)
        server.connect(str(self._unix))
        return server

    def chosen(self, statement: str, earlier: list[str]) -> Cut | None:
        """Return the cut that matches this statement and count it, or None."""
        with self._lock:
            for cut in self._cuts:
                if cut.meets(statement, earlier):
                    cut.done += 1
                    return cut
        return None


class _Session:
    """A connection, forwarded message by message."""

    def __init__(self, proxy: Proxy, client: socket.socket, server: socket.socket, mysql: bool) -> None:
        self._proxy = proxy
        self._client = client
        self._server = server
        self._messages = self._mysql_messages if mysql else self._postgresql_messages
        # Set: drop the next response of the server, and the connection.
        self._swallow = threading.Event()
        # The statements of the current transaction.
        self._earlier: list[str] = []
        self._prepared: dict[str, str] = {}

    def start(self) -> None:
        threading.Thread(target=self._requests, daemon=True).start()
        threading.Thread(target=self._answers, daemon=True).start()

    def _requests(self) -> None:
        with contextlib.suppress(OSError, EOFError):
            for message, statement in self._messages():
                if statement is not None and not self._allowed(statement):
                    break
                self._server.sendall(message)
        # Otherwise the response to the last statement is still pending.
        if not self._swallow.is_set():
            self._close()

    def _executed(self, statement: str) -> str:
        """Return the text of the statement that is executed, followed by its values if it is a prepared one."""
        if prepared := _PREPARE.match(statement):
            self._prepared[prepared[1]] = prepared[2]
            return "PREPARE"
        if executed := _EXECUTE.match(statement):
            return f"{self._prepared[executed[1]]} {executed[2]}"
        return statement

    def _allowed(self, statement: str) -> bool:
        statement = self._executed(statement)
        cut = self._proxy.chosen(statement, self._earlier)
        if statement.strip().upper().startswith(_ENDS):
            self._earlier = []
        else:
            self._earlier.append(statement)
        if cut is None:
            return True
        if cut.when == "after":
            self._swallow.set()
            return True
        return False

    def _answers(self) -> None:
        with contextlib.suppress(OSError):
            while data := self._server.recv(65536):
                if self._swallow.is_set():
                    break
                self._client.sendall(data)
        self._close()

    def _close(self) -> None:
        _close(self._client)
        _close(self._server)

    # --- the two protocols -------------------------------------------------------------------------
    def _postgresql_messages(self) -> Iterator[tuple[bytes, str | None]]:
        """Return each message, with its statement or None."""
        while True:
            head = self._read(8)
            length, code = struct.unpack("!II", head)
            yield head + self._read(length - 8), None
            if code not in (_SSL, _GSS):
                break
        while True:
            head = self._read(5)
            body = self._read(struct.unpack("!I", head[1:])[0] - 4)
            yield head + body, body.rstrip(b"\0").decode(errors="replace") if head[:1] == b"Q" else None

    def _mysql_messages(self) -> Iterator[tuple[bytes, str | None]]:
        """Return each message, with its statement or None."""
        while True:
            head = self._read(4)
            body = self._read(int.from_bytes(head[:3], "little"))
            query = head[3] == 0 and body[:1] == b"\x03"
            yield head + body, body[1:].decode(errors="replace") if query else None

    def _read(self, length: int) -> bytes:
        data = b""
        while len(data) < length:
            more = self._client.recv(length - len(data))
            if not more:
                raise EOFError
            data += more
        return data


def _close(one: socket.socket) -> None:
    with contextlib.suppress(OSError):
        one.shutdown(socket.SHUT_RDWR)
    one.close()
