"""Key pairs: import, generation, fingerprints and ownership."""

import base64
import hashlib

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519

from nova import exception
from nova.objects.accounts.keypair import Keypair
from nova.rpcapi.accounts import Keypairs
from tests.unit.api.canned import stub

PATH = "/v2.1/os-keypairs"


@pytest.fixture
def kept(api):
    key = Keypair(user_id="admin", name="k", public_key="ssh-rsa AAAA", fingerprint="aa:bb")
    return stub(api, "keypairs", Keypairs, index=[key], get=key, create=lambda keypair, imported: keypair)


def ssh_line(key):
    return key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH).decode()


def create(api, version="2.10", **keypair):
    return api.post(PATH, {"keypair": {"name": "k", **keypair}}, version=version)


@pytest.mark.parametrize("key", [ed25519.Ed25519PrivateKey.generate(), ec.generate_private_key(ec.SECP256R1())],
                         ids=["ed25519", "ecdsa"])
def test_imported_keypair_keeps_the_public_key_and_gets_a_fingerprint(api, kept, key):
    public = ssh_line(key) + " me@home"
    answer = create(api, public_key=public)
    assert answer.status == 201
    digest = hashlib.md5(base64.b64decode(public.split()[1]), usedforsecurity=False).hexdigest()
    assert answer.json["keypair"] == {
        "name": "k", "type": "ssh", "user_id": "admin", "public_key": public,
        "fingerprint": ":".join(digest[at:at + 2] for at in range(0, 32, 2))}


def test_import_of_a_security_key_keypair_is_accepted(api, kept):
    kind = b"sk-ssh-ed25519@openssh.com"
    blob = len(kind).to_bytes(4, "big") + kind + (32).to_bytes(4, "big") + bytes(32) + (4).to_bytes(4, "big") + b"ssh:"
    assert create(api, public_key=f"{kind.decode()} {base64.b64encode(blob).decode()}").status == 201


@pytest.mark.parametrize("public", [
    "", "ssh-rsa", "ssh-rsa AAAA", "ssh-rsa !!!!", "hello world", "ssh-ed25519 " + base64.b64encode(b"x" * 51).decode(),
    "-----BEGIN CERTIFICATE-----", "ssh-rsa \u00e4"])
def test_import_of_a_malformed_public_key_is_refused(api, kept, public):
    assert create(api, public_key=public).error == (
        "badRequest", 400, "Keypair data is invalid: failed to generate fingerprint")
    assert not kept.calls


def test_import_of_a_public_key_with_a_wrong_type_prefix_is_refused(api, kept):
    public = ssh_line(ed25519.Ed25519PrivateKey.generate()).replace("ssh-ed25519", "ssh-rsa")
    assert create(api, public_key=public).status == 400


def test_generated_private_key_matches_the_public_key(api, kept):
    answer = create(api)
    shown = answer.json["keypair"]
    private = serialization.load_pem_private_key(shown["private_key"].encode(), None)
    assert private.key_size >= 2048
    assert shown["public_key"].split()[:2] == ssh_line(private).split()
    assert "private_key" not in kept.last("create")["keypair"].__struct_fields__


def test_generated_x509_certificate_matches_its_private_key(api, kept):
    shown = create(api, type="x509").json["keypair"]
    certificate = x509.load_pem_x509_certificate(shown["public_key"].encode())
    private = serialization.load_pem_private_key(shown["private_key"].encode(), None)
    assert certificate.public_key() == private.public_key()
    assert shown["fingerprint"] == certificate.fingerprint(hashes.SHA1()).hex(":")  # noqa: S303
    assert shown["type"] == "x509"
    imported = create(api, version="2.104", type="x509", public_key=shown["public_key"]).json["keypair"]
    assert imported["fingerprint"] == shown["fingerprint"]


def test_keypair_generation_is_refused_from_2_92(api, kept):
    answer = create(api, version="2.92")
    assert answer.error == ("badRequest", 400, "Invalid input for field/attribute keypair. Value: {'name': 'k'}. "
                                               "'public_key' is a required property")


@pytest.mark.parametrize(("version", "statuses"), [("2.1", (200, 202)), ("2.2", (201, 204))])
def test_keypair_status_codes_per_microversion(api, kept, version, statuses):
    public = ssh_line(ed25519.Ed25519PrivateKey.generate())
    assert create(api, version, public_key=public).status == statuses[0]
    assert api("DELETE", f"{PATH}/k", version=version).status == statuses[1]


@pytest.mark.parametrize(("name", "version", "status"), [
    ("a b-c_d", "2.10", 201), ("a@b.c", "2.10", 400), ("a@b.c", "2.92", 201), ("", "2.10", 400), (" a", "2.10", 400),
    ("a/b", "2.92", 400), ("x" * 256, "2.92", 400)])
def test_keypair_names_per_microversion(api, kept, name, version, status):
    public = ssh_line(ed25519.Ed25519PrivateKey.generate())
    assert create(api, version, name=name, public_key=public).status == status


@pytest.mark.parametrize(("method", "path"), [("GET", PATH), ("GET", f"{PATH}/k"), ("DELETE", f"{PATH}/k")])
def test_keypairs_of_other_users_require_admin_from_2_10(api, kept, method, path):
    asked = {"headers": {"X-User-Id": "me"}, "version": "2.10"}
    assert api(method, f"{path}?user_id=other", roles="member", **asked).error[1] == 403
    assert not kept.calls
    assert api(method, f"{path}?user_id=me", roles="member", **asked).status in (200, 204)
    assert api(method, f"{path}?user_id=other", roles="admin", **asked).status in (200, 204)
    assert kept.calls[-1][1]["user_id"] == "other"


def test_keypair_user_id_is_ignored_before_2_10(api, kept):
    assert api.get(f"{PATH}?user_id=other", version="2.9", roles="member", headers={"X-User-Id": "me"}).status == 200
    assert kept.last("index")["user_id"] == "me"


def test_create_keypair_for_another_user_requires_admin(api, kept):
    body = {"keypair": {"name": "k", "public_key": ssh_line(ed25519.Ed25519PrivateKey.generate()), "user_id": "other"}}
    assert api.post(PATH, body, version="2.10", roles="member").status == 403
    assert api.post(PATH, body, version="2.10").json["keypair"]["user_id"] == "other"


def test_keypair_user_id_above_255_characters_is_refused(api, kept):
    assert api.get(f"{PATH}?user_id={'u' * 256}", version="2.10").error[1] == 400
    assert not kept.calls


def test_keypairs_are_paginated_from_2_35(api, kept):
    answer = api.get(f"{PATH}?limit=1&marker=a", version="2.35").json
    assert answer["keypairs_links"] == [{"rel": "next", "href": f"http://api:8774{PATH}?limit=1&marker=k"}]
    assert kept.last("index") == {"user_id": "admin", "limit": 1, "marker": "a"}
    assert "keypairs_links" not in api.get(f"{PATH}?limit=1", version="2.34").json
    assert kept.last("index") == {"user_id": "admin", "limit": None, "marker": None}


@pytest.mark.parametrize(("error", "status"), [
    (exception.KeyPairExists(key_name="k"), 409), (exception.QuotaLimit("Quota exceeded, too many key pairs."), 403)])
def test_create_keypair_errors_of_the_conductor_reach_the_client(api, kept, error, status):
    kept.answers["create"] = error
    answer = create(api, public_key=ssh_line(ed25519.Ed25519PrivateKey.generate()))
    assert answer.error[1:] == (status, error.message)
