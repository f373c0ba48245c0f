"""Certificates of signed images and keys of encrypted volumes in a real Barbican, read with the caller's token.

Barbican is in NOVA_TEST_BARBICAN: a virtual environment with barbican and uwsgi.
"""

from __future__ import annotations

import logging
import os
import pathlib
import socket
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("cursive")

from castellan import options as castellan_options
from castellan.common.objects.symmetric_key import SymmetricKey
from castellan.common.objects.x_509 import X509
from castellan.key_manager import API
from cryptography.hazmat.primitives.serialization import Encoding

from nova import conf, context, exception, key_manager
from nova.conf import CONF
from nova.image import signatures
from nova.objects.base import new_uuid
from nova.objects.images.image import Image
from tests.integration.services.keystone_server import KeystoneServer
from tests.integration.volumes.barbican_server import Barbican, needs_barbican
from tests.unit.image import signing

DATA = b"disk" * 1000

pytestmark = needs_barbican


@pytest.fixture(scope="module")
def barbican(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Barbican]:
    keystone = KeystoneServer(tokens={"owner": "member", "nobody": "stranger"}, passwords={"right": "service"})
    made = Barbican(tmp_path_factory.mktemp("barbican"), {
        "www_authenticate_uri": keystone.url, **keystone.options("right")})
    try:
        made.start()
        conf.register()
        castellan_options.set_defaults(CONF, backend="barbican", auth_endpoint=keystone.url,
                                       barbican_endpoint=made.url)
        yield made
    finally:
        made.stop()
        keystone.stop()


def caller(token: str) -> context.RequestContext:
    return context.RequestContext(overwrite=False, user_id="tester", project_id="p" * 32, roles=["member"],
                                  auth_token=token)


def image_of(certificate_id: str, key: Any) -> Image:
    return Image(id=new_uuid(), name="signed", status="active", properties=signing.signed(DATA, key, certificate_id))


def stored(made: Any) -> str:
    return str(API(CONF).store(caller("owner"), X509(made.public_bytes(Encoding.DER))))


def test_certificate_in_barbican_is_loaded_and_verifies_an_image(barbican: Barbican, tmp_path: pathlib.Path) -> None:
    root, signer = signing.rsa_key(), signing.rsa_key()
    authority = stored(signing.certificate(root, "root", authority=True))
    certificate = signing.certificate(signer, "signer", root, "root")
    image = image_of(stored(certificate), signer)
    found = signatures.certificate_of(caller("owner"), image, [authority])
    assert found == certificate.public_bytes(Encoding.PEM).decode()
    image.certificate = found
    (tmp_path / "disk").write_bytes(DATA)
    signatures.verify(image, str(tmp_path / "disk"))
    (tmp_path / "disk").write_bytes(DATA + b"!")
    with pytest.raises(exception.ImageUnacceptable):
        signatures.verify(image, str(tmp_path / "disk"))


def test_certificate_of_an_untrusted_authority_is_refused(barbican: Barbican) -> None:
    stranger, other = signing.rsa_key(), signing.rsa_key()
    image = image_of(stored(signing.certificate(stranger, "stranger", authority=True)), stranger)
    other_authority = stored(signing.certificate(other, "other", authority=True))
    with pytest.raises(exception.ImageUnacceptable):
        signatures.certificate_of(caller("owner"), image, [other_authority])


def test_missing_or_foreign_certificate_makes_the_image_unacceptable(barbican: Barbican) -> None:
    key = signing.rsa_key()
    kept = stored(signing.certificate(key, "signer", authority=True))
    for token, ident in (("owner", new_uuid()), ("nobody", kept), ("owner", "../containers")):
        with pytest.raises(exception.ImageUnacceptable):
            signatures.certificate_of(caller(token), image_of(ident, key), [])


@pytest.mark.parametrize("listens", [False, True], ids=["refused connection", "frozen"])
def test_unavailable_barbican_refuses_unverified_images(barbican: Barbican, monkeypatch: pytest.MonkeyPatch,
                                                        listens: bool) -> None:
    monkeypatch.setattr(key_manager, "_TIMEOUT", 1.0)
    key = signing.rsa_key()
    image = image_of(stored(signing.certificate(key, "signer", authority=True)), key)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        if listens:
            silent.listen()
        CONF.set_override("barbican_endpoint", f"http://127.0.0.1:{silent.getsockname()[1]}", group="barbican")
        try:
            with pytest.raises(exception.ImageBackendUnavailable):
                signatures.certificate_of(caller("owner"), image, [])
        finally:
            CONF.set_override("barbican_endpoint", barbican.url, group="barbican")


def test_volume_key_is_readable_with_its_owners_token_only(barbican: Barbican,
                                                           caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    value = os.urandom(32)
    ident = str(API(CONF).store(caller("owner"), SymmetricKey("AES", 256, value)))
    assert key_manager.secret(caller("owner"), ident) == value
    for token, other in (("nobody", ident), ("owner", new_uuid()), ("owner", "../containers")):
        with pytest.raises(key_manager.SecretDenied):
            key_manager.secret(caller(token), other)
    assert value.hex() not in caplog.text
    assert repr(value)[2:-1] not in caplog.text


@pytest.mark.parametrize("listens", [False, True], ids=["refused connection", "frozen"])
def test_volume_key_request_times_out(barbican: Barbican, monkeypatch: pytest.MonkeyPatch, listens: bool) -> None:
    monkeypatch.setattr(key_manager, "_TIMEOUT", 1.0)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        if listens:
            silent.listen()
        CONF.set_override("barbican_endpoint", f"http://127.0.0.1:{silent.getsockname()[1]}", group="barbican")
        try:
            with pytest.raises(exception.KeyManagerUnavailable):
                key_manager.secret(caller("owner"), new_uuid())
        finally:
            CONF.set_override("barbican_endpoint", barbican.url, group="barbican")
