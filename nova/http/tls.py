"""TLS of served sockets, from the options tls_* of a section."""

import socket
import ssl

from nova import exception
from nova.conf import CONF

# Maximum number of bytes per read from a socket.
_PIECE = 16 * 1024
# Maximum number of bytes received without application data (handshake, other TLS messages); then the connection ends.
_OVERHEAD = 64 * 1024


def context(section: str) -> ssl.SSLContext | None:
    """Return the context of TLS (1.2 or later); None: TLS is off. Raises InvalidInput for unusable options."""
    options = CONF[section]
    if not options.tls_cert_file:
        if options.tls_key_file or options.tls_client_ca_file:
            raise exception.InvalidInput(reason=f"[{section}]tls_key_file and tls_client_ca_file need a tls_cert_file")
        return None
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    made.minimum_version = ssl.TLSVersion.TLSv1_2
    name = "tls_cert_file"
    try:
        made.load_cert_chain(options.tls_cert_file, options.tls_key_file)
        if options.tls_client_ca_file:
            name = "tls_client_ca_file"
            made.load_verify_locations(options.tls_client_ca_file)
            made.verify_mode = ssl.CERT_REQUIRED
    except OSError as error:
        key = f" with tls_key_file {options.tls_key_file}" if name == "tls_cert_file" and options.tls_key_file else ""
        raise exception.InvalidInput(
            reason=f"[{section}]{name} {options[name]}{key} cannot be used: {error}") from error
    return made


class Secured:
    """The server side of a non-blocking TLS connection, with the required methods of an ssl.SSLSocket. An SSLSocket
    reads from the system as long as data other than application data arrive: a client that sends one KeyUpdate after
    another (TLS 1.3), or requests renegotiation (1.2), would occupy the thread of all connections. Here a call reads
    the socket once, and clients that send too much without a request are disconnected."""

    def __init__(self, sock: socket.socket, context: ssl.SSLContext) -> None:
        self._sock = sock
        self._in, self._out = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._in, self._out, server_side=True)
        self._unsent = memoryview(b"")
        self._spare = _OVERHEAD

    def fileno(self) -> int:
        return self._sock.fileno()

    def do_handshake(self) -> None:
        """Continue the handshake. Raises OSError: ssl.SSLWantReadError, ssl.SSLWantWriteError, or a failure."""
        self.flush()
        try:
            self._shake()
        except ssl.SSLWantReadError:
            self._take()
            self._shake()

    def recv(self, size: int) -> bytes:
        """Return data, or b"" after the client has closed. Raises OSError: ssl.SSLWantReadError (no data) or others."""
        try:
            data = self._read(size)
        except ssl.SSLWantReadError:
            self._take()
            data = self._read(size)
        self._spare = min(_OVERHEAD, self._spare + 2 * len(data))
        return data

    def send(self, data: bytes | memoryview) -> int:
        """Encrypt data for flush() to send; return their length. Raises OSError: ssl.SSLWantWriteError or others."""
        self.flush()
        return self._tls.write(data)

    def flush(self) -> None:
        """Send buffered data. Raises OSError: ssl.SSLWantWriteError (data are left to send) or others."""
        while True:
            if not self._unsent:
                self._unsent = memoryview(self._out.read())
            if not self._unsent:
                return
            try:
                sent = self._sock.send(self._unsent)
            except BlockingIOError:
                raise ssl.SSLWantWriteError from None
            self._unsent = self._unsent[sent:]

    def pending(self) -> int:
        """Return the number of received bytes that are buffered here, so that epoll does not report them."""
        return self._tls.pending() + self._in.pending

    def unwrap(self) -> None:
        """Send the TLS message that ends the connection. Raises OSError, also if the client has not sent it yet."""
        try:
            self._tls.unwrap()
        finally:
            self.flush()

    def shutdown(self, how: int) -> None:
        self._sock.shutdown(how)

    def close(self) -> None:
        self._sock.close()

    def _shake(self) -> None:
        try:
            self._tls.do_handshake()
        finally:
            self.flush()

    def _read(self, size: int) -> bytes:
        try:
            return self._tls.read(size)
        except (ssl.SSLZeroReturnError, ssl.SSLEOFError):
            return b""

    def _take(self) -> None:
        """Read bytes from the socket into the TLS buffer. Raises OSError: ssl.SSLWantReadError (no data) or others."""
        try:
            piece = self._sock.recv(_PIECE)
        except BlockingIOError:
            raise ssl.SSLWantReadError from None
        self._spare -= len(piece)
        if self._spare < 0:
            raise ConnectionAbortedError("too many TLS messages without application data")
        if piece:
            self._in.write(piece)
        else:
            self._in.write_eof()
