"""Health checks of components: a command in the container, a URL, or a port."""

import contextlib
import http.client
import socket
import threading
import urllib.parse
from collections.abc import Callable

from nova.common.errors import ReportedError
from nova.novad.errors import RuntimeFault
from nova.novad.masking import MaskedStream, Masker
from nova.novad.platform import Health
from nova.novad.runtime.podman import Podman

_WORDS = 300  # Maximum number of characters shown of the output of a health command.


class Unhealthy(ReportedError):
    """A health check failed; the message has its result."""


def check(runtime: Podman, container: str, health: Health | None, masker: Callable[[], Masker]) -> None:
    """Run the health check once. Raises RuntimeFault, Unhealthy. ``masker`` masks secrets in the output."""
    state = runtime.find(container)
    if state is None:
        raise Unhealthy("the container does not exist")
    if not state.running:
        raise Unhealthy(f"the container exited with code {state.exit_code}")
    if health is None:
        return
    if health.command:
        try:
            code, output = runtime.execute(container, health.command, health.timeout)
        except RuntimeFault:
            if runs(runtime, container):
                raise
            raise Unhealthy("the container exited during the health check") from None
        if code:
            end = masker().text(output).strip()[-_WORDS:]  # masked before it is shortened
            raise Unhealthy(f"the health command exited with code {code}: {' | '.join(end.splitlines())}")
    elif health.http:
        _get(health)
    else:
        host, _colon, port = health.tcp.rpartition(":")
        try:
            socket.create_connection((host, int(port)), timeout=health.timeout).close()
        except OSError as error:
            raise Unhealthy(f"{health.tcp} takes no connection: {error}") from None


def runs(runtime: Podman, container: str) -> bool:
    state = runtime.find(container)
    return state is not None and state.running


def last_words(runtime: Podman, container: str, masker: Masker) -> str:
    """Return the end of a container's log for an error, or ""."""
    stream = MaskedStream(masker)
    try:
        lines = [line for some in runtime.logs(container, False, 5).batches() for line in stream.lines(some)]
    except ReportedError:
        return ""
    text = " | ".join(line.strip() for line in lines)[-500:]
    printable = "".join(character if character.isprintable() else "?" for character in text)
    return f"; its last words: {printable}" if lines else ""


def _get(health: Health) -> None:
    url = urllib.parse.urlsplit(health.http)
    kind = http.client.HTTPSConnection if url.scheme == "https" else http.client.HTTPConnection
    late = threading.Event()
    connection = None
    try:
        connection = kind(url.hostname or "", url.port, timeout=health.timeout)
        connection.connect()
        # The timeout covers the whole response: one that arrives byte by byte counts as none.
        timer = threading.Timer(health.timeout, _end, (connection.sock, late))
        timer.start()
        try:
            connection.request("GET", (url.path or "/") + (f"?{url.query}" if url.query else ""))
            status = connection.getresponse().status
        finally:
            timer.cancel()
    except (OSError, ValueError, http.client.HTTPException) as error:
        why = f"no answer in {health.timeout:g} seconds" if late.is_set() else str(error) or type(error).__name__
        raise Unhealthy(f"{health.http} does not answer: {why}") from None
    finally:
        if connection is not None:
            connection.close()
    if status >= 500:
        raise Unhealthy(f"{health.http} answers {status}")


def _end(sock: socket.socket, late: threading.Event) -> None:
    late.set()
    with contextlib.suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)
