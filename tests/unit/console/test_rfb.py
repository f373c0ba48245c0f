"""The RFB handshake of a proxy between browser and host, over real sockets."""

import asyncio
import struct

import pytest

from nova.console import rfb
from nova.console.streams import HostStream

VERSION = b"RFB 003.008\n"


async def _pair():
    """Return the local stream of a TCP connection, and the reader and writer of the remote side."""
    made = asyncio.get_running_loop().create_future()
    server = await asyncio.start_server(lambda *ends: made.set_result(ends), "127.0.0.1", 0)
    ours = HostStream(*await asyncio.open_connection("127.0.0.1", server.sockets[0].getsockname()[1]))
    return ours, await made


def negotiated(host_says, browser_says, schemes=None):
    """Negotiate with these bytes of both sides. Return the bytes received by browser and host, and the error."""
    async def run():
        browser, (browser_in, browser_out) = await _pair()
        host, (host_in, host_out) = await _pair()
        browser_out.write(browser_says)
        host_out.write(host_says)
        browser_out.write_eof(), host_out.write_eof()
        error = None
        try:
            async with asyncio.timeout(10):
                await rfb.negotiate(browser, host, {rfb.NONE: rfb.none} if schemes is None else schemes)
        except (rfb.HandshakeFailed, EOFError) as raised:
            error = raised
        browser.close(), host.close()
        return await browser_in.read(), await host_in.read(), error

    return asyncio.run(run())


def test_browser_is_offered_no_security_and_host_uses_its_own():
    heard = negotiated(VERSION + b"\x01\x01", VERSION + b"\x01")
    assert heard == (VERSION + b"\x01\x01", VERSION + b"\x01", None)


def test_first_supported_security_type_of_the_host_is_chosen():
    taken = []

    async def other():
        taken.append("other")

    heard = negotiated(VERSION + b"\x03\x02\x13\x01", VERSION + b"\x01", {rfb.NONE: rfb.none, 19: other})
    assert heard == (VERSION + b"\x01\x01", VERSION + b"\x13", None)
    assert taken == ["other"]


def test_without_a_common_security_type_the_browser_receives_the_reason():
    browser, host, error = negotiated(VERSION + b"\x01\x02", VERSION)
    reason = b"Unable to negotiate security with server"
    assert browser == VERSION + b"\x00" + struct.pack("!I", len(reason)) + reason
    assert host == VERSION
    assert "[2]" in str(error)


@pytest.mark.parametrize("says", [b"RFB 003.003\n", b"HTTP/1.1 200 OK\r\n\r\n", b"SSH-2.0-OpenSSH_9.2\r\n"])
def test_browser_receives_nothing_from_a_host_without_rfb(says):
    browser, host, error = negotiated(says, VERSION + b"\x01evil")
    assert (browser, host) == (b"", b"")
    assert str(error) == "the host does not support RFB 3.8"


def test_browser_with_an_old_rfb_version_is_refused():
    assert str(negotiated(VERSION + b"\x01\x01", b"RFB 003.003\n")[2]) == "the browser does not support RFB 3.8"


def test_browser_choosing_a_security_type_not_offered_is_refused():
    _browser, host, error = negotiated(VERSION + b"\x02\x01\x02", VERSION + b"\x02")
    assert (host, str(error)) == (VERSION, "the browser chose a security type that was not offered")


def test_refusal_of_a_host_is_logged_without_control_characters():
    *_heard, error = negotiated(VERSION + b"\x00" + struct.pack("!I", 9) + b"full\nup\x1b!", VERSION)
    assert str(error) == r"the host refused the connection: full\nup\x1b!"


def test_refusal_of_a_host_is_truncated():
    *_heard, error = negotiated(VERSION + b"\x00\xff\xff\xff\xff" + b"x" * 10_000, VERSION)
    assert len(str(error)) < 5000


@pytest.mark.parametrize("says", [b"", VERSION, VERSION + b"\x03\x01"])
def test_handshake_ends_when_a_side_closes_early(says):
    assert isinstance(negotiated(says, VERSION + b"\x01")[2], EOFError)
