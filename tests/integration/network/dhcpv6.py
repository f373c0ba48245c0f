"""A DHCPv6 client for test guests: one exchange with rapid commit (RFC 8415)."""

from __future__ import annotations

import socket
import struct
import time

_SOLICIT, _REPLY = 1, 7
_CLIENT_ID, _IA_NA, _IA_ADDRESS, _ELAPSED, _RAPID_COMMIT = 1, 3, 5, 8, 14


def _option(code, value):
    return struct.pack("!HH", code, len(value)) + value


def _options(data):
    while len(data) >= 4:
        code, length = struct.unpack("!HH", data[:4])
        yield code, data[4:4 + length]
        data = data[4 + length:]


def ask(client, seconds, device="eth0"):
    """Return the address assigned by a server on the link, or None without a reply."""
    message = (struct.pack("!B", _SOLICIT) + b"tid" + _option(_CLIENT_ID, client) + _option(_ELAPSED, b"\0\0")
               + _option(_RAPID_COMMIT, b"") + _option(_IA_NA, struct.pack("!III", 1, 0, 0)))
    index = socket.if_nametoindex(device)
    deadline = time.monotonic() + seconds
    with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as sock:
        sock.bind(("::", 546, 0, index))
        sock.settimeout(0.5)
        while time.monotonic() < deadline:
            try:
                sock.sendto(message, ("ff02::1:2", 547, 0, index))
                answer = sock.recv(2000)
            except OSError:  # no reply, or the client's own address is tentative
                time.sleep(0.1)
                continue
            for code, value in _options(answer[4:]) if answer[0] == _REPLY else ():
                for inner, address in _options(value[12:]) if code == _IA_NA else ():
                    if inner == _IA_ADDRESS:
                        return socket.inet_ntop(socket.AF_INET6, address[:16])
    return None
