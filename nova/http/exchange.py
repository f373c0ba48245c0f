"""The requests of one connection and their responses, within limits. h11 processes only requests of an unusual form."""

import h11

from nova.http import messages
from nova.http.messages import Environ

_PIECE = 64 * 1024


class Exchange:
    """A request and its response, one at a time.

    ``header_size``, ``body_size``: maximum bytes of the request line with headers, and of a body; ``lenient``: see
    :func:`messages.environ_of`. ``environ`` is None until the headers are complete. ``too_long``: the body is longer
    than ``body_size``, and is not read; the environment contains only its length."""

    __slots__ = ("_body_size", "_h11", "_header_size", "_keep", "_lenient", "_raw", "_tail", "_usual", "body",
                 "environ", "too_long")

    def __init__(self, header_size: int, body_size: int, lenient: bool = False) -> None:
        self._h11 = h11.Connection(h11.SERVER, max_incomplete_event_size=header_size)
        self._header_size, self._body_size, self._lenient = header_size, body_size, lenient
        self._keep = True
        self._expect()

    def _expect(self) -> None:
        self.environ: Environ | None = None
        self.body = bytearray()
        self.too_long = False
        # Received bytes of the request line and headers; h11 may hold some of them from the previous request.
        self._raw = bytearray(self._h11.trailing_data[0])
        # The last bytes of the body given to h11, including any bytes behind the last chunk.
        self._tail = b""
        self._usual: messages.Usual | None = None  # parser of requests of a simple form; None: h11 parses this request

    @property
    def pending(self) -> bool:
        """Return True if h11 has received bytes beyond the end of this request."""
        return bool(self._h11.trailing_data[0])

    def again(self) -> bool:
        """Prepare for the next request after a response. Return False if no further request is allowed."""
        if self._usual is None:
            if self._h11.our_state is not h11.DONE or self._h11.their_state is not h11.DONE:
                return False
            self._h11.start_next_cycle()
        elif not self._keep:
            return False
        self._expect()
        return True

    def collect(self, data: bytearray) -> bool:
        """Take the bytes of the request from ``data``; return True if it is complete. Raises Refused."""
        try:
            if self.environ is None and not self._raw:
                self._usual = messages.Usual.read(data, self._header_size)
                if self._usual is not None:
                    self.environ = self._usual.environ
                    del data[:self._usual.header_size]
            return self._collect_usual(data) if self._usual is not None else self._collect(data)
        except h11.RemoteProtocolError as error:
            status = error.error_status_hint
            if status == 431 and self.environ is None and b"\r\n" not in self._raw:
                status = 414
            raise messages.Refused(status if status in messages.PHRASES else 400,
                                   f"The request is malformed: {error}."[:200]) from None

    def _collect_usual(self, data: bytearray) -> bool:
        assert self._usual is not None
        missing = self._usual.length - len(self.body)
        if self._usual.length > self._body_size:
            self._without_body()
            return True
        if missing:
            self.body += data[:missing]
            del data[:missing]
        return len(self.body) == self._usual.length

    def _collect(self, data: bytearray) -> bool:
        while True:
            event = self._h11.next_event()
            if event is h11.NEED_DATA:
                if not self._feed(data):
                    return False
            elif isinstance(event, h11.Request):
                self._begin(event)
                if self.too_long:
                    return True
            elif isinstance(event, h11.Data):
                self.body += event.data
                if len(self.body) > self._body_size:
                    self._without_body()
                    return True
            else:
                if self.environ is not None and self.environ.pop("HTTP_TRANSFER_ENCODING", None):
                    if isinstance(event, h11.EndOfMessage) and not self._lenient:
                        rest = len(self._h11.trailing_data[0])
                        messages.check_end(len(list(event.headers)), self._tail[:len(self._tail) - rest])
                    self.environ["CONTENT_LENGTH"] = str(len(self.body))
                return True

    def _feed(self, data: bytearray) -> bool:
        """Pass bytes to h11, but not more bytes of headers than allowed. Return False if no bytes are left."""
        if self.environ is not None:
            piece = bytes(data[:_PIECE])
            self._tail = self._tail[-2 * self._header_size:] + piece
        else:
            if not self._raw and data[:2] == b"\r\n":
                del data[:2]
            piece = bytes(data[:self._header_size + 1 - len(self._raw)])
            self._raw += piece
        if not piece:
            return False
        del data[:len(piece)]
        self._h11.receive_data(piece)
        return True

    def _begin(self, request: h11.Request) -> None:
        rest = self._h11.trailing_data[0]
        raw = bytes(self._raw[:len(self._raw) - len(rest)])
        self.environ = messages.environ_of(request, raw, self._lenient)
        self._raw = bytearray()
        self._tail = rest
        if int(self.environ.get("CONTENT_LENGTH", "0")) > self._body_size:
            self._without_body()

    def _without_body(self) -> None:
        environ = self.environ if self.environ is not None else {}
        environ.pop("HTTP_TRANSFER_ENCODING", None)
        environ.setdefault("CONTENT_LENGTH", str(self._body_size + 1))
        self.body = bytearray()
        self.too_long = True

    def invitation(self) -> bytes:
        """Return the interim response 100 (Continue) if the client waits for it before it sends the body."""
        if self._usual is not None or not self._h11.they_are_waiting_for_100_continue or self.pending:
            return b""
        return self._h11.send(h11.InformationalResponse(status_code=100, headers=[], reason=b"Continue")) or b""

    def answer(self, status: str, headers: messages.Headers, body: bytes, keep: bool) -> bytes:
        """Return the bytes of a response. After h11.LocalProtocolError (invalid header) it may be called again."""
        if self._usual is not None:
            self._keep = keep and self._usual.keep and not self.too_long
            bodiless = self._usual.environ["REQUEST_METHOD"] == "HEAD" or status[:3] in ("204", "304")
            return messages.encoded(status, headers, body, self._keep) + (b"" if bodiless else body)
        parts = [self._h11.send(messages.response(status, headers, body, keep))]
        if body and not (self.environ is not None and self.environ["REQUEST_METHOD"] == "HEAD"):
            parts.append(self._h11.send(h11.Data(data=body)))
        parts.append(self._h11.send(h11.EndOfMessage()))
        return b"".join(part for part in parts if part)
