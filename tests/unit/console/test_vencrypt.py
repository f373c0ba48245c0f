"""VeNCrypt: TLS to the host, over real sockets and with certificates of a CA."""

import asyncio
import ssl
import struct

import pytest

from nova import exception
from nova.conf import CONF, register
from nova.console import rfb
from nova.console.service import security_schemes
from nova.console.streams import HostStream
from tests.certificates import authority

VERSION = b"RFB 003.008\n"
register()


@pytest.fixture(scope="module")
def ours():
    with authority() as made:
        yield made


@pytest.fixture(scope="module")
def others():
    with authority() as made:
        yield made


@pytest.fixture(autouse=True)
def options(ours):
    client = ours.issue("proxy")
    for name, value in (("vencrypt_ca_certs", ours.file), ("vencrypt_client_cert", client.certificate),
                        ("vencrypt_client_key", client.key)):
        CONF.set_override(name, str(value), group="vnc")
    yield
    for name in ("vencrypt_ca_certs", "vencrypt_client_cert", "vencrypt_client_key"):
        CONF.clear_override(name, group="vnc")


class Qemu:
    """A VNC server like QEMU with vnc_tls_x509_verify. ``client``: the certificate of the client."""

    def __init__(self, trusts, pair, version=b"\x00\x02", subtypes=(260,), accepts=b"\x01"):
        self._tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._tls.load_cert_chain(pair.certificate, pair.key)
        self._tls.load_verify_locations(str(trusts.file))
        self._tls.verify_mode = ssl.CERT_REQUIRED
        self._version, self._subtypes, self._accepts = version, subtypes, accepts
        self.client = None

    async def serve(self, reader, writer):
        try:
            writer.write(VERSION)
            assert await reader.readexactly(12) == VERSION
            writer.write(b"\x02\x02\x13")
            assert await reader.readexactly(1) == b"\x13"
            writer.write(self._version)
            assert await reader.readexactly(2) == b"\x00\x02"
            writer.write(b"\x00" + bytes([len(self._subtypes)]) + struct.pack(f"!{len(self._subtypes)}I",
                                                                              *self._subtypes))
            assert await reader.readexactly(4) == struct.pack("!I", 260)
            writer.write(self._accepts)
            await writer.start_tls(self._tls)
            self.client = writer.get_extra_info("peercert")
            writer.write(struct.pack("!I", 0) + b"in secret")
            await writer.drain()
        except (OSError, EOFError, AssertionError):
            pass
        finally:
            writer.close()


class BrowserStream:
    async def read(self, size):
        return VERSION if size == 12 else b"\x01"

    async def write(self, data):
        pass


def reached(qemu):
    """Return the data that the host sends after the handshake, or raise the exception of the proxy."""
    async def run():
        server = await asyncio.start_server(qemu.serve, "127.0.0.1", 0)
        host = HostStream(*await asyncio.open_connection("127.0.0.1", server.sockets[0].getsockname()[1]))
        async with asyncio.timeout(10):
            await rfb.negotiate(BrowserStream(), host, security_schemes(["vencrypt"])(host))
            return await host.read(13)

    return asyncio.run(run())


def test_vencrypt_uses_tls_with_certificates_of_both_sides(ours):
    qemu = Qemu(ours, ours.issue("host"))
    assert reached(qemu) == struct.pack("!I", 0) + b"in secret"
    assert qemu.client["subject"][0][0][1] == "proxy"


def test_host_with_a_certificate_of_another_ca_is_rejected(ours, others):
    with pytest.raises(ssl.SSLError):
        reached(Qemu(ours, others.issue("host")))


@pytest.mark.parametrize(("how", "why"), [
    ({"version": b"\x00\x01"}, "does not support VeNCrypt 0.2"),
    ({"subtypes": (259, 261)}, "subtypes (259, 261)"),
    ({"subtypes": ()}, "subtypes ()"),
    ({"accepts": b"\x00"}, "refused X509None"),
])
def test_vencrypt_subtypes_other_than_x509none_are_rejected(ours, how, why):
    with pytest.raises(rfb.HandshakeFailed) as failed:
        reached(Qemu(ours, ours.issue("host"), **how))
    assert why in str(failed.value)


@pytest.mark.parametrize(("name", "value"), [
    ("vencrypt_ca_certs", None), ("vencrypt_ca_certs", "/none"), ("vencrypt_client_key", None),
    ("vencrypt_client_cert", "/none")])
def test_startup_error_names_invalid_certificate_options(name, value):
    CONF.set_override(name, value, group="vnc")
    with pytest.raises(exception.InvalidInput, match="vencrypt_"):
        security_schemes(["none", "vencrypt"])


def test_plain_text_sent_before_tls_is_discarded(ours):
    """A man in the middle appends the bytes to the last response before TLS."""
    assert reached(Qemu(ours, ours.issue("host"), accepts=b"\x01" + b"a screen of others")) == (
        struct.pack("!I", 0) + b"in secret")
