"""Verification of image signatures against trusted certificates."""

from __future__ import annotations

import os
import pathlib
import types
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("cursive")

from cryptography.hazmat.primitives.asymmetric import ec

from nova import conf, context, exception
from nova.compute.host import Machine, StepHost
from nova.conf import CONF
from nova.image import lookup, signatures
from nova.image.directory import DirectoryStore
from nova.network.base import NoNetwork
from nova.objects.accounts.flavor import Flavor
from nova.objects.base import new_uuid, utcnow
from nova.objects.images.image import Image
from nova.objects.networks.network import RuleSet
from nova.objects.servers.instance import Instance
from nova.virt.fake.driver import FakeDriver
from nova.virt.images.imagecache import ImageCache
from tests.unit.image import signing

CTX = context.RequestContext(overwrite=False, user_id="u", project_id="p", roles=["member"], auth_token="t")
DATA = b"disk" * 1000


@pytest.fixture(autouse=True)
def place(tmp_path: pathlib.Path) -> Iterator[pathlib.Path]:
    conf.register()
    CONF.set_override("state_path", str(tmp_path))
    CONF.set_override("verify_glance_signatures", True, "glance")
    import castellan.key_manager

    CONF.register_opts(castellan.key_manager.key_manager_opts, group="key_manager")
    CONF.set_override("backend", "nova_files", "key_manager")
    yield tmp_path
    CONF.clear_override("state_path")
    CONF.clear_override("verify_glance_signatures", "glance")
    CONF.clear_override("backend", "key_manager")


@pytest.fixture
def certificates(place: pathlib.Path) -> dict[str, Any]:
    """Return the keys by certificate id: a CA, a certificate of this CA, an unrelated CA, an expired certificate."""
    root, signer, stranger, late = (signing.rsa_key() for _ in range(4))
    made = {
        "root": signing.certificate(root, "root", authority=True),
        "signer": signing.certificate(signer, "signer", root, "root"),
        "stranger": signing.certificate(stranger, "stranger", authority=True),
        "late": signing.certificate(late, "late", root, "root", days=-1),
    }
    for name, certificate in made.items():
        signing.put(place / "certificates", name, certificate)
    return {"root": root, "signer": signer, "stranger": stranger, "late": late}


def image(properties: dict[str, str]) -> Image:
    return Image(id="i1", disk_format="raw", properties=properties)


def refusal(properties: dict[str, str], *trusted: str) -> str:
    with pytest.raises(exception.ImageUnacceptable) as refused:
        signatures.certificate_of(CTX, image(properties), trusted)
    return refused.value.message


def test_image_signed_with_a_trusted_certificate_is_verified(certificates: dict[str, Any], place: pathlib.Path) -> None:
    signed_image = image(signing.signed(DATA, certificates["signer"], "signer"))
    signed_image.certificate = signatures.certificate_of(CTX, signed_image, ["root"])
    (place / "data").write_bytes(DATA)
    signatures.verify(signed_image, str(place / "data"))
    (place / "data").write_bytes(DATA[:-1] + b"x")
    with pytest.raises(exception.ImageUnacceptable, match="i1 is unacceptable: its signature does not match"):
        signatures.verify(signed_image, str(place / "data"))


def test_image_signed_with_an_elliptic_curve_key_is_verified(certificates: dict[str, Any], place: pathlib.Path) -> None:
    key = ec.generate_private_key(ec.SECP384R1())
    signing.put(place / "certificates", "curve", signing.certificate(key, "curve", certificates["root"], "root"))
    signed_image = image(signing.signed(DATA, key, "curve"))
    signed_image.certificate = signatures.certificate_of(CTX, signed_image, ["root", "stranger"])
    (place / "data").write_bytes(DATA)
    signatures.verify(signed_image, str(place / "data"))


def test_image_not_signed_with_a_trusted_certificate_is_rejected(certificates: dict[str, Any]) -> None:
    good = signing.signed(DATA, certificates["signer"], "signer")
    untrusted = "is not issued by a trusted certificate"
    assert "not signed" in refusal({}, "root")
    assert "not signed" in refusal({**{name: good[name] for name in good if name != "img_signature"}}, "root")
    assert untrusted in refusal(good, "stranger")
    assert untrusted in refusal(signing.signed(DATA, certificates["stranger"], "stranger"), "root")
    assert untrusted in refusal(signing.signed(DATA, certificates["late"], "late"), "root")
    assert "certificate nobody cannot be read" in refusal({**good, "img_signature_certificate_uuid": "nobody"}, "root")
    assert "certificate ../root cannot be read" in refusal(good, "../root")
    assert "cannot be read" in refusal({**good, "img_signature_hash_method": "MD5"}, "root")
    assert "cannot be read" in refusal({**good, "img_signature_key_type": "none"}, "root")
    assert "is empty" in refusal({**good, "img_signature": "?"}, "root")
    assert "key type of its certificate" in refusal({**good, "img_signature_key_type": "ECC_SECP384R1"}, "root")


def test_loop_of_certificate_issuers_is_rejected(certificates: dict[str, Any], place: pathlib.Path) -> None:
    first, other = signing.rsa_key(), signing.rsa_key()
    for name, key, issuer, issuer_name in (("first", first, other, "other"), ("other", other, first, "first")):
        signing.put(place / "certificates", name,
                    signing.certificate(key, name, issuer, issuer_name, authority=True))
    assert "not issued" in refusal(signing.signed(DATA, first, "first"), "first", "other", "root")


def test_default_trusted_certificates_apply_without_requested_certificates(certificates: dict[str, Any],
                                                                           place: pathlib.Path) -> None:
    CONF.set_override("directory", str(place / "images"), "image")
    CONF.set_override("default_trusted_certificate_ids", ["stranger"], "glance")
    try:
        (place / "file").write_bytes(DATA)
        DirectoryStore().add(str(place / "file"), Image(
            id="i1", disk_format="raw", owner="p", properties=signing.signed(DATA, certificates["signer"], "signer")))
        assert lookup.find(CTX, "i1", ["root"]).certificate.startswith("-----BEGIN CERTIFICATE-----")
        with pytest.raises(exception.ImageUnacceptable, match="trusted"):
            lookup.find(CTX, "i1")
        CONF.set_override("default_trusted_certificate_ids", [], "glance")
        assert lookup.find(CTX, "i1").certificate
        CONF.set_override("verify_glance_signatures", False, "glance")
        assert lookup.find(CTX, "i1").certificate == ""
    finally:
        CONF.clear_override("directory", "image")
        CONF.clear_override("default_trusted_certificate_ids", "glance")


def test_kernel_without_verifiable_signature_is_refused() -> None:
    with pytest.raises(exception.ImageUnacceptable, match="signature of its kernel_id"):
        lookup.boot_files(CTX, image({"kernel_id": "k1"}))


def test_verified_images_are_cached_separately_and_rejected_images_not_cached(certificates: dict[str, Any],
                                                                              place: pathlib.Path) -> None:
    store = DirectoryStore(str(place / "images"))
    (place / "file").write_bytes(DATA)
    properties = signing.signed(DATA, certificates["signer"], "signer")
    store.add(str(place / "file"), Image(id="i1", disk_format="raw", properties=properties))
    driver = FakeDriver("h1")
    driver.needs_images = True  # type: ignore[misc]
    machine = Machine(name="h1", driver=driver, network=NoNetwork(), images=lambda: store, cache=ImageCache())

    def fetched(base: Image) -> str | None:
        instance = Instance(uuid=new_uuid(), project_id="p", user_id="u", display_name="n", hostname="n",
                            flavor=Flavor(flavorid="f", name="f", memory_mb=1, vcpus=1), created_at=utcnow(),
                            image=base, image_ref="i1")
        job: Any = types.SimpleNamespace(ctx=CTX, cancelled=None,
                                         order=types.SimpleNamespace(instance=instance, rules=RuleSet()))
        return StepHost(machine, job, lambda changes, values: None).boot_files().root

    plain = Image(id="i1", disk_format="raw", properties=properties)
    checked = Image(id="i1", disk_format="raw", properties=properties,
                    certificate=signatures.certificate_of(CTX, plain, ["root"]))
    cached = fetched(plain)
    assert fetched(checked) not in (cached, None)
    (place / "file").write_bytes(b"evil" * 1000)
    store.add(str(place / "file"), Image(id="i1", disk_format="raw", properties=properties))
    other = Image(id="i1", disk_format="raw", certificate=checked.certificate,
                  properties=signing.signed(DATA, certificates["signer"], "signer"))  # Different signature, same data.
    before = set(os.listdir(machine.cache.directory))
    with pytest.raises(exception.ImageUnacceptable, match="does not match"):
        fetched(other)
    assert set(os.listdir(machine.cache.directory)) == before
