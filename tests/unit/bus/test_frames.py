"""Frames of messages: py-amqp reads what Nova writes, and Nova reads what arrives in any pieces."""

from __future__ import annotations

from typing import Any

import amqp
import pytest
from amqp import spec
from amqp.method_framing import frame_handler
from amqp.serialization import loads
from hypothesis import given
from hypothesis import strategies as st

from nova.bus.driver import frames
from nova.bus.driver.broker import NotPublished

FRAME_MAX = 64


class Connection:
    bytes_recv = 0


def read_by_amqp(data: bytes) -> list[tuple[Any, ...]]:
    """Return the methods that py-amqp finds: channel, method, encoded arguments, message."""
    methods: list[tuple[Any, ...]] = []
    # py-amqp reads messages of these methods only.
    data = data.replace(b"\x00\x3c\x00\x28\x00\x00", b"\x00\x3c\x00\x32\x00\x00", 1)
    handle, buffer = frame_handler(Connection(), lambda *method: methods.append(method)), frames.Buffer()
    buffer.add(data)
    while (frame := buffer.next()) is not None:
        handle(frame)
    assert not buffer
    return methods


@given(st.binary(max_size=3 * FRAME_MAX), st.booleans(), st.none() | st.integers(0, 10**9), st.text(max_size=60))
def test_published_message_is_read_by_amqp(body: bytes, mandatory: bool, expiration: int | None, key: str) -> None:
    data = frames.publish(7, "nova", key, mandatory, expiration, body, FRAME_MAX)
    ((channel, method, arguments, message),) = read_by_amqp(data)
    (_reserved, exchange, routing_key, bits), _end = loads("Bssb", arguments, 4)
    assert (channel, method, exchange, routing_key, bits) == (7, spec.Basic.Return, "nova", key, mandatory)
    expected = {"content_type": "application/json", "content_encoding": "utf-8", "delivery_mode": 2}
    if expiration is not None:
        expected["expiration"] = str(expiration)
    assert (message.properties, message.body or b"") == (expected, body)
    largest = max(len(part) for part in split(data))
    assert largest <= max(FRAME_MAX, 80 + 2 * len(key.encode()))  # the method and the header do not depend on the body


def split(data: bytes) -> list[bytes]:
    """Return the payloads of all frames."""
    buffer, payloads = frames.Buffer(), []
    buffer.add(data)
    while (frame := buffer.next()) is not None:
        payloads.append(frame[2])
    return payloads


@given(st.lists(st.tuples(st.sampled_from([1, 2, 3, 8]), st.integers(0, 9), st.binary(max_size=30)), max_size=6),
       st.integers(1, 40))
def test_frames_are_read_from_any_pieces(expected: list[tuple[int, int, bytes]], piece: int) -> None:
    data = b"".join(bytes([kind, 0, channel, 0, 0, 0, len(payload)]) + payload + b"\xce"
                    for kind, channel, payload in expected)
    buffer, received = frames.Buffer(), []
    for start in range(0, len(data), piece):
        buffer.add(data[start:start + piece])
        while (frame := buffer.next()) is not None:
            received.append(frame)
    assert received == expected
    assert not buffer


def test_frame_without_its_end_is_refused() -> None:
    buffer = frames.Buffer()
    buffer.add(b"\x01\x00\x01\x00\x00\x00\x01aX")
    with pytest.raises(amqp.UnexpectedFrame):
        buffer.next()


def test_frame_that_is_too_large_is_refused_before_it_has_arrived() -> None:
    buffer = frames.Buffer()
    buffer.add(b"\x03\x00\x01\x00\x02\x00\x00a")
    assert buffer.next() is None
    buffer = frames.Buffer()
    buffer.add(b"\x03\x00\x01\x00\x02\x00\x01a")
    with pytest.raises(amqp.UnexpectedFrame, match="131073 bytes"):
        buffer.next()


def test_delivered_message_is_complete_after_its_last_frame() -> None:
    delivery = frames.Delivery(5)
    assert delivery.add(frames.HEADER, b"\x00\x3c\x00\x00" + (5).to_bytes(8) + b"\x00\x00") is None
    assert delivery.add(frames.BODY, b"abc") is None
    assert delivery.add(frames.BODY, b"de") == b"abcde"
    empty = frames.Delivery(6)
    assert empty.add(frames.HEADER, b"\x00\x3c\x00\x00" + (0).to_bytes(8) + b"\x00\x00") == b""


@pytest.mark.parametrize("received", [
    [(frames.BODY, b"abc")], [(frames.METHOD, b"\x00\x3c\x00\x3c")],
    [(frames.HEADER, b"\x00\x3c\x00\x00" + (2).to_bytes(8)), (frames.BODY, b"abc")],
    [(frames.HEADER, b"\x00\x3c\x00\x00" + (2).to_bytes(8)), (frames.METHOD, b"ab")]])
def test_unexpected_frames_of_a_message_are_refused(received: list[tuple[int, bytes]]) -> None:
    delivery = frames.Delivery(1)
    *first, last = received
    assert not any(delivery.add(*frame) for frame in first)
    with pytest.raises(amqp.UnexpectedFrame):
        delivery.add(*last)


def test_acknowledgement_and_tags() -> None:
    ((channel, method, arguments, _message),) = read_by_amqp(frames.ack(3, 2**40, multiple=True))
    assert (channel, method, loads("Lb", arguments, 4)[0]) == (3, spec.Basic.Ack, [2**40, True])
    assert frames.number(arguments) == 2**40
    deliver = frames.DELIVER + frames.short("consumer") + (77).to_bytes(8) + b"\x00" + frames.short("nova")
    assert frames.delivery_tag(deliver) == 77


def test_name_that_is_too_long_is_refused() -> None:
    with pytest.raises(NotPublished, match="255"):
        frames.publish(1, "nova", "x" * 256, True, None, b"", FRAME_MAX)
