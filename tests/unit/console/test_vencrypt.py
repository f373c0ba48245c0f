"""VeNCrypt: TLS to the host, over real sockets and with certificates of an authority."""

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
    """What QEMU does with vnc_tls_x509_verify, up to the result; ``client``: the certificate that it was shown."""

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
    """What comes from the host behind its handshake; raises what the proxy's side does."""
    async def run():
        server = await asyncio.start_server(qemu.serve, "127.0.0.1", 0)
        host = HostStream(*await asyncio.open_connection("127.0.0.1", server.sockets[0].getsockname()[1]))
        async with asyncio.timeout(10):
            await rfb.negotiate(BrowserStream(), host, security_schemes(["vencrypt"])(host))
            return await host.read(13)

    return asyncio.run(run())


def test_the_host_is_reached_by_tls_with_both_certificates(ours):
    qemu = Qemu(ours, ours.issue("host"))
    assert reached(qemu) == struct.pack("!I", 0) + b"in secret"
    assert qemu.client["subject"][0][0][1] == "proxy"


def test_a_host_that_others_vouch_for_is_not_spoken_to(ours, others):
    with pytest.raises(ssl.SSLError):
        reached(Qemu(ours, others.issue("host")))


@pytest.mark.parametrize(("how", "why"), [
    ({"version": b"\x00\x01"}, "does not support VeNCrypt 0.2"),
    ({"subtypes": (259, 261)}, "subtypes (259, 261)"),
    ({"subtypes": ()}, "subtypes ()"),
    ({"accepts": b"\x00"}, "refused X509None"),
])
def test_what_is_not_x509_without_a_password_is_refused(ours, how, why):
    with pytest.raises(rfb.HandshakeFailed) as failed:
        reached(Qemu(ours, ours.issue("host"), **how))
    assert why in str(failed.value)


@pytest.mark.parametrize(("name", "value"), [
    ("vencrypt_ca_certs", None), ("vencrypt_ca_certs", "/none"), ("vencrypt_client_key", None),
    ("vencrypt_client_cert", "/none")])
def test_certificates_that_cannot_be_used_are_named_at_the_start(name, value):
    CONF.set_override(name, value, group="vnc")
    with pytest.raises(exception.InvalidInput, match="vencrypt_"):
        security_schemes(["none", "vencrypt"])


def test_what_somebody_says_in_the_clear_before_tls_is_not_taken_for_the_hosts(ours):
    """Whoever is between puts it behind the last answer before TLS."""
    assert reached(Qemu(ours, ours.issue("host"), accepts=b"\x01" + b"a screen of others")) == (
        struct.pack("!I", 0) + b"in secret")
