"""Fuzz tests of certificates with hostile subjects and extensions, signed by a trusted authority.

The certificates reach Nova from nodes that novad discovers, from console servers of hosts (VeNCrypt) and as trusted
certificates of images. Mutations come from a seed, which a failure reports.
"""

from __future__ import annotations

import collections
import contextlib
import ipaddress
import pathlib
import random
import socket
import ssl
import threading
from collections.abc import Iterator

import castellan.key_manager
import pytest
from cryptography import x509
from cryptography.x509.oid import AuthorityInformationAccessOID, ExtendedKeyUsageOID, NameOID

from nova import exception
from nova.conf import CONF
from nova.console import rfb
from nova.context import RequestContext
from nova.image import signatures
from nova.novad.nodes.discovery import certificate_names
from nova.objects.images.image import Image
from tests.certificates import Authority, Extend, authority
from tests.unit.api.test_untrusted_bytes import Tally, changed, tally
from tests.unit.console.test_vencrypt import Qemu, reached
from tests.unit.image.signing import certificate, put, rsa_key, signed

_NAME = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "node2")])
_URL = x509.UniformResourceIdentifier("http://ca.example/")
_NAMES = [x509.DNSName("node2"), x509.IPAddress(ipaddress.ip_address("127.0.0.1")), x509.RFC822Name("a@b"), _URL,
          x509.DirectoryName(_NAME), x509.RegisteredID(NameOID.COMMON_NAME),
          x509.OtherName(NameOID.COMMON_NAME, b"\x0c\x01a")]
_EXTENSIONS: list[x509.ExtensionType] = [
    x509.SubjectAlternativeName(_NAMES), x509.SubjectAlternativeName(_NAMES[:2]), x509.IssuerAlternativeName(_NAMES),
    x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]),
    x509.NameConstraints([x509.DNSName("node2")], [x509.IPAddress(ipaddress.ip_network("10.0.0.0/8"))]),
    x509.AuthorityInformationAccess([x509.AccessDescription(method, _URL) for method in (
        AuthorityInformationAccessOID.OCSP, AuthorityInformationAccessOID.CA_ISSUERS)]),
    x509.CRLDistributionPoints([x509.DistributionPoint([_URL], None, None, None)]),
    x509.TLSFeature([x509.TLSFeatureType.status_request]),
    x509.CertificatePolicies([x509.PolicyInformation(NameOID.COMMON_NAME, ["text"])]), x509.InhibitAnyPolicy(0),
    x509.SubjectKeyIdentifier(b"1" * 20), x509.AuthorityKeyIdentifier(b"1" * 20, None, None), x509.OCSPNoCheck()]
# The contents of names as DER, whose types do not fit their values, or with a NUL as in a name that ends before it.
_BAD_NAMES = (b"\x30\x00", b"\x30\x07\x82\x05no\0de", b"\x30\x07\x82\x05\xff\xfe\0\0a", b"\x30\x03\x87\x01\x7f",
              b"\x30\x80", b"\x30\x84\xff\xff\xff\xff", b"\x30\x02\x82\x00", b"", b"\x05\x00", b"\x30\x02\x88\x00")


def _hostile(rng: random.Random) -> Extend:
    """Return a function that adds up to three extensions, most of them mutated, and sometimes a strange subject."""
    def extend(builder: x509.CertificateBuilder) -> x509.CertificateBuilder:
        for extension in rng.sample(_EXTENSIONS, rng.randrange(4)):
            content = extension.public_bytes()
            if rng.random() < 0.8:
                content = changed(rng, content) if rng.random() < 0.8 else rng.choice(_BAD_NAMES)
            with contextlib.suppress(ValueError):  # the builder refuses an extension given twice
                builder = builder.add_extension(x509.UnrecognizedExtension(extension.oid, content),
                                                critical=rng.random() < 0.3)
        if rng.random() < 0.3:
            text = rng.choice(("node2\0.example", "é" * 32, " ", "node2\n", "\u202e", "x" * 64))
            attributes = [x509.NameAttribute(NameOID.COMMON_NAME, text)] * rng.randrange(3)
            builder._subject_name = x509.Name(attributes)
        return builder

    return extend


@pytest.fixture(scope="module")
def ours() -> Iterator[Authority]:
    with authority() as made:
        yield made


def _once(pair_files: tuple[str, str]) -> Iterator[int]:
    """Serve one TLS handshake with a certificate; yield the port."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*pair_files)

    def serve() -> None:
        with contextlib.suppress(OSError), listener.accept()[0] as plain, context.wrap_socket(
                plain, server_side=True) as connection:
            connection.recv(1)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield listener.getsockname()[1]
        finally:
            thread.join(10)


def test_nodes_with_hostile_certificates_are_confirmed_or_ignored(ours: Authority) -> None:
    found: Tally = collections.Counter()
    rng = random.Random(12)
    for seed in range(300):
        pair = ours.issue("node2", ("127.0.0.1",) if rng.random() < 0.3 else (), extend=_hostile(rng))
        try:
            with contextlib.contextmanager(_once)((pair.certificate, pair.key)) as port:
                answer = "node2" in certificate_names(f"tls://127.0.0.1:{port}", {"NOVA_CACERT": ours.file})
        except ssl.SSLError:  # OpenSSL of the server refuses to load it
            found["not served"] += 1
            continue
        except Exception as error:
            raise AssertionError(f"seed {seed}: {pathlib.Path(pair.certificate).read_text()}") from error
        found["confirmed" if answer else "ignored"] += 1
    print(f"certificates of nodes: {dict(found)}")
    assert min(found["confirmed"], found["ignored"]) > 20


def test_console_servers_with_hostile_certificates_are_connected_or_refused(ours: Authority) -> None:
    found: Tally = collections.Counter()
    rng, client = random.Random(13), ours.issue("proxy")
    options = {"vencrypt_ca_certs": ours.file, "vencrypt_client_cert": client.certificate,
               "vencrypt_client_key": client.key}
    for name, value in options.items():
        CONF.set_override(name, value, group="vnc")
    try:
        for seed in range(100):
            pair = ours.issue("host", extend=_hostile(rng))
            try:
                qemu = Qemu(ours, pair)
            except ssl.SSLError:
                found["not served"] += 1
                continue
            try:
                tally(found, lambda qemu=qemu: reached(qemu), OSError, EOFError, rfb.HandshakeFailed)
            except Exception as error:
                raise AssertionError(f"seed {seed}: {pathlib.Path(pair.certificate).read_text()}") from error
    finally:
        for name in options:
            CONF.clear_override(name, group="vnc")
    print(f"certificates of console servers: {dict(found)}")
    assert min(found["accepted"], found["refused"]) > 5


@pytest.mark.filterwarnings("ignore")
def test_images_with_hostile_certificates_are_accepted_or_refused(tmp_path: pathlib.Path) -> None:
    """Sign certificates with hostile extensions by a trusted authority, or trust them."""
    CONF.register_opts(castellan.key_manager.key_manager_opts, group="key_manager")
    CONF.set_override("backend", "nova_files", "key_manager")
    CONF.set_override("certificates", str(tmp_path), "image")
    ctx = RequestContext(overwrite=False, user_id="u", project_id="p", roles=["member"], auth_token="t")
    root, key, data = rsa_key(), rsa_key(), b"data" * 99
    (tmp_path / "data").write_bytes(data)
    put(tmp_path, "root", certificate(root, "root", authority=True))
    found, rng = collections.Counter[str](), random.Random(14)
    try:
        for seed in range(300):
            put(tmp_path, "one", certificate(key, "one", root, "root", extend=_hostile(rng)))
            put(tmp_path, "two", certificate(key, "two", authority=True, extend=_hostile(rng)))
            taken = Image(id="i", name="i", properties=signed(data, key, rng.choice(("one", "two"))))

            def accept(taken: Image = taken) -> None:
                trusted = rng.choice((["root"], ["two"], ["root", "two"]))
                taken.certificate = signatures.certificate_of(ctx, taken, trusted)
                signatures.verify(taken, str(tmp_path / "data"))

            try:
                tally(found, accept, exception.ImageUnacceptable)
            except Exception as error:
                raise AssertionError(f"seed {seed}: {(tmp_path / 'one.pem').read_text()}") from error
    finally:
        CONF.clear_override("backend", "key_manager")
        CONF.clear_override("certificates", "image")
    print(f"certificates of images with hostile extensions: {dict(found)}")
    assert set(found) == {"accepted", "refused"}
