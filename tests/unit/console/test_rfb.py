"""The RFB handshake of a proxy, over real sockets: what each side may say, and what the other one hears of it."""

import asyncio
import struct

import pytest

from nova.console import rfb
from nova.console.streams import HostStream

VERSION = b"RFB 003.008\n"


async def _pair():
    """(our end of a TCP connection, the other side's reader and writer)"""
    made = asyncio.get_running_loop().create_future()
    server = await asyncio.start_server(lambda *ends: made.set_result(ends), "127.0.0.1", 0)
    ours = HostStream(*await asyncio.open_connection("127.0.0.1", server.sockets[0].getsockname()[1]))
    return ours, await made


def negotiated(host_says, browser_says, schemes=None):
    """(what the browser heard, what the host heard, the error) after these bytes of theirs, all sent at once."""
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


def test_the_browser_is_offered_no_security_and_the_host_gets_its_own():
    heard = negotiated(VERSION + b"\x01\x01", VERSION + b"\x01")
    assert heard == (VERSION + b"\x01\x01", VERSION + b"\x01", None)


def test_of_what_the_host_offers_the_first_that_we_have_is_taken():
    taken = []

    async def other():
        taken.append("other")

    heard = negotiated(VERSION + b"\x03\x02\x13\x01", VERSION + b"\x01", {rfb.NONE: rfb.none, 19: other})
    assert heard == (VERSION + b"\x01\x01", VERSION + b"\x13", None)
    assert taken == ["other"]


def test_without_a_common_scheme_the_browser_reads_why_and_the_host_gets_no_choice():
    browser, host, error = negotiated(VERSION + b"\x01\x02", VERSION)
    reason = b"Unable to negotiate security with server"
    assert browser == VERSION + b"\x00" + struct.pack("!I", len(reason)) + reason
    assert host == VERSION
    assert "[2]" in str(error)


@pytest.mark.parametrize("says", [b"RFB 003.003\n", b"HTTP/1.1 200 OK\r\n\r\n", b"SSH-2.0-OpenSSH_9.2\r\n"])
def test_what_is_not_rfb_hears_nothing_from_the_browser(says):
    browser, host, error = negotiated(says, VERSION + b"\x01evil")
    assert (browser, host) == (b"", b"")
    assert str(error) == "the host does not support RFB 3.8"


def test_an_old_browser_is_sent_away():
    assert str(negotiated(VERSION + b"\x01\x01", b"RFB 003.003\n")[2]) == "the browser does not support RFB 3.8"


def test_a_browser_that_takes_what_was_not_offered_is_sent_away():
    _browser, host, error = negotiated(VERSION + b"\x02\x01\x02", VERSION + b"\x02")
    assert (host, str(error)) == (VERSION, "the browser chose a security type that was not offered")


def test_the_log_shows_the_refusal_of_a_host_without_control_characters():
    *_heard, error = negotiated(VERSION + b"\x00" + struct.pack("!I", 9) + b"full\nup\x1b!", VERSION)
    assert str(error) == r"the host refused the connection: full\nup\x1b!"


def test_a_refusal_that_never_ends_is_cut():
    *_heard, error = negotiated(VERSION + b"\x00\xff\xff\xff\xff" + b"x" * 10_000, VERSION)
    assert len(str(error)) < 5000


@pytest.mark.parametrize("says", [b"", VERSION, VERSION + b"\x03\x01"])
def test_a_side_that_ends_early_ends_it(says):
    assert isinstance(negotiated(says, VERSION + b"\x01")[2], EOFError)
