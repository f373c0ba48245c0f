"""AMQP 0-9-1 frames of messages: publishing, delivery and acknowledgement.

py-amqp needs most of its time for these frames, because it supports all properties and methods. Nova's messages have a
fixed form. All other frames (log-in, channels, queues, heartbeats) are py-amqp's."""

import struct

import amqp

from nova.bus.driver.broker import MessageRefused

METHOD, HEADER, BODY = 1, 2, 3
SMALLEST, LARGEST = 4096, 131_072  # bytes: range of the maximum frame size that is negotiated with a broker
ACK, DELIVER = b"\x00\x3c\x00\x50", b"\x00\x3c\x00\x3c"  # class 60 (basic), methods 80 and 60
_PUBLISH = b"\x00\x3c\x00\x28\x00\x00"  # method 40, and a reserved number
_END = 0xCE
_FRAME = struct.Struct(">BHI")  # kind, channel, size of the payload
_CONTENT = struct.Struct(">HHQH")  # class, weight, size of the body, flags of the properties
_NUMBER = struct.Struct(">Q")
_ACK = struct.Struct(">BHI4sQBB")
_ACK_PAYLOAD = 13
# Properties: content type, content encoding, delivery mode 2 (persistent); with an expiration or without.
_PLAIN, _EXPIRING = 0b1101 << 12, 0b1101 << 12 | 1 << 8
_PROPERTIES = b"\x10application/json\x05utf-8\x02"
_OVERHEAD = 8  # bytes of a frame beside its payload


def short(text: str) -> bytes:
    """Return a short string. Raises MessageRefused if it has more than 255 bytes."""
    encoded = text.encode()
    if len(encoded) > 255:
        raise MessageRefused(f"The name {text[:60]}… of a queue or an exchange has more than 255 bytes.")
    return bytes((len(encoded),)) + encoded


def publish(channel: int, exchange: str, routing_key: str, mandatory: bool, expiration: int | None, body: bytes,
            frame_max: int) -> bytes:
    """Return the frames of a message. ``expiration``: milliseconds; None for none. ``frame_max``: the largest frame
    that the broker takes, in bytes."""
    method = b"".join((_PUBLISH, short(exchange), short(routing_key), b"\x01" if mandatory else b"\x00"))
    properties, flags = _PROPERTIES, _PLAIN
    if expiration is not None:
        properties, flags = _PROPERTIES + short(str(expiration)), _EXPIRING
    parts = [_FRAME.pack(METHOD, channel, len(method)), method, b"\xce",
             _FRAME.pack(HEADER, channel, _CONTENT.size + len(properties)), _CONTENT.pack(60, 0, len(body), flags),
             properties, b"\xce"]
    largest = frame_max - _OVERHEAD
    for start in range(0, len(body), largest):
        part = body[start:start + largest]
        parts += (_FRAME.pack(BODY, channel, len(part)), part, b"\xce")
    return b"".join(parts)


def ack(channel: int, tag: int, multiple: bool = False) -> bytes:
    """Return the frame that acknowledges a message. ``multiple``: also all messages before it."""
    return _ACK.pack(METHOD, channel, _ACK_PAYLOAD, ACK, tag, multiple, _END)


def delivery_tag(payload: bytes) -> int:
    """Return the tag in the payload of a Deliver frame."""
    return number(payload, 5 + payload[4])  # after the consumer's tag


def number(payload: bytes, offset: int = 4) -> int:
    """Return the 64-bit number at ``offset``: by default the tag in an Ack frame, or the size in a header."""
    value: int = _NUMBER.unpack_from(payload, offset)[0]
    return value


class Buffer:
    """Received bytes that have not been returned as frames yet."""

    def __init__(self) -> None:
        self._data = b""
        self._position = 0

    def __bool__(self) -> bool:
        return self._position < len(self._data)

    def add(self, data: bytes) -> None:
        self._data = self._data[self._position:] + data if self else data
        self._position = 0

    def next(self) -> tuple[int, int, bytes] | None:
        """Return the kind, channel and payload of the next frame, or None until all of it has arrived. Raises
        amqp.UnexpectedFrame for bytes that are no frame, or a frame that is too large."""
        data, position = self._data, self._position
        if len(data) - position < _OVERHEAD:
            return None
        kind, channel, size = _FRAME.unpack_from(data, position)
        start = position + _FRAME.size
        end = start + size
        if len(data) <= end:
            if size > LARGEST:
                raise amqp.UnexpectedFrame(f"a frame of {size} bytes, more than {LARGEST}")
            return None
        if data[end] != _END:
            raise amqp.UnexpectedFrame(f"a frame ends with {data[end]:#x} instead of {_END:#x}")
        self._position = end + 1
        return kind, channel, data[start:end]


class Delivery:
    """A message of which not all frames have arrived."""

    def __init__(self, tag: int) -> None:
        self.tag = tag
        self._missing: int | None = None  # None until the content header has arrived
        self._parts: list[bytes] = []

    def add(self, kind: int, payload: bytes) -> bytes | None:
        """Take the next frame; return the body once it is complete. Raises amqp.UnexpectedFrame."""
        if self._missing is None:
            if kind != HEADER:
                raise amqp.UnexpectedFrame(f"a frame of kind {kind} instead of the content header")
            self._missing = number(payload)
        else:
            if kind != BODY or len(payload) > self._missing:
                raise amqp.UnexpectedFrame(f"a frame of kind {kind} with {len(payload)} bytes inside of a message")
            self._missing -= len(payload)
            self._parts.append(payload)
        if self._missing:
            return None
        return self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)
