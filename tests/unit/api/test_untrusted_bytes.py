"""Fuzz tests of user input that libraries parse: mutated keys, certificates, images and user data.

Mutations come from a seed, which a failure reports. The input is accepted or refused as the user's error; an
unexpected exception is a defect.
"""

from __future__ import annotations

import base64
import collections
import gzip
import io
import json
import pathlib
import random
import struct
import tarfile
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import castellan.key_manager
import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import dsa, ec, ed448, ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from nova import exception, image
from nova.api import keys
from nova.context import RequestContext
from nova.image import signatures
from nova.metadata.settings import MetadataSettings
from nova.metadata.tree import Tree
from nova.objects.images.image import Image
from nova.objects.servers.instance import Personality
from nova.rpcapi.accounts import Keypairs
from nova.virt.images import image_formats
from tests.unit.api.canned import stub
from tests.unit.api.servers.test_servers import IMAGE, MINE, Conductor, Images
from tests.unit.image.signing import certificate, rsa_key, signed
from tests.unit.metadata.test_trees import make
from tests.unit.virt.test_image_formats import qcow2, vhd, vmdk

Tally = collections.Counter[str]


def changed(rng: random.Random, content: bytes, head: int = 2048) -> bytes:
    """Return ``content`` with up to four mutations, most in the first ``head`` bytes, where formats store sizes."""
    made = bytearray(content)
    for _change in range(rng.choice((1, 1, 2, 4))):
        at = rng.randrange(min(len(made), head) if rng.random() < 0.8 else len(made)) if made else 0
        piece = rng.choice((b"\xff", b"\0", b"\x7f", b"\x80", rng.randbytes(1))) * rng.choice((1, 1, 2, 4, 8))
        match rng.randrange(6):
            case 0 | 1:
                made[at:at + len(piece)] = piece
            case 2:
                made[at:at] = piece
            case 3:
                del made[at:at + len(piece)]
            case 4:
                del made[at + 1:]
            case 5 if made:
                made[at] ^= 1 << rng.randrange(8)
    return bytes(made)


def tally(found: Tally, work: Callable[[], Any], *refusals: type[Exception]) -> None:
    try:
        work()
        found["accepted"] += 1
    except refusals as error:
        found["refused" if getattr(error, "code", 400) < 500 else f"{error}"] += 1


@pytest.fixture
def kept(api: Any) -> Any:
    return stub(api, "keypairs", Keypairs, create=lambda keypair, imported: keypair)


# -- key pairs -----------------------------------------------------------------------------------------
def _string(content: bytes) -> bytes:
    return len(content).to_bytes(4, "big") + content


def _number(value: int) -> bytes:
    return _string(value.to_bytes(value.bit_length() // 8 + 1, "big", signed=True))


def _line(kind: str, *parts: bytes) -> str:
    return f"{kind} {base64.b64encode(_string(kind.encode()) + b''.join(parts)).decode()}"


def _public_keys() -> dict[str, str]:
    """Return SSH public keys of every type, including invalid keys in a well-formed encoding."""
    curves = {"nistp256": ec.SECP256R1(), "nistp384": ec.SECP384R1(), "nistp521": ec.SECP521R1()}
    found = {}
    for name, key in {"rsa": rsa.generate_private_key(65537, 2048), "ed25519": ed25519.Ed25519PrivateKey.generate(),
                      "dsa": dsa.generate_private_key(1024)}.items():
        found[name] = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()
    for name, curve in curves.items():
        public = ec.generate_private_key(curve).public_key()
        found[name] = public.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()
        point = public.public_bytes(Encoding.X962, PublicFormat.CompressedPoint)
        found[f"{name} compressed"] = _line(f"ecdsa-sha2-{name}", _string(name.encode()), _string(point))
        whole = public.public_bytes(Encoding.X962, PublicFormat.UncompressedPoint)
        found[f"{name} hybrid"] = _line(f"ecdsa-sha2-{name}", _string(name.encode()), _string(b"\6" + whole[1:]))
        found[f"{name} at infinity"] = _line(f"ecdsa-sha2-{name}", _string(name.encode()), _string(b"\0"))
        found[f"{name} off the curve"] = _line(f"ecdsa-sha2-{name}", _string(name.encode()), _string(
            b"\4" + b"\1" * (len(whole) - 1)))
        found[f"sk {name}"] = _line(f"sk-ecdsa-sha2-{name}@openssh.com", _string(name.encode()), _string(point),
                                    _string(b"ssh:"))
        found[f"{name} of another curve"] = _line(f"ecdsa-sha2-{name}", _string(b"nistp256"), _string(point))
    for exponent in (0, 1, -3, 3, 2, 2**2048 + 1):
        for modulus in (0, -1, 5, 6, 2**512 - 1, 2**2047 + 1, 2**16384 + 1, 2**80000 + 1):
            found[f"rsa {exponent} of {modulus.bit_length()} bits"] = _line(
                "ssh-rsa", _number(exponent), _number(modulus))
    for content in (b"", bytes(31), bytes(32), b"\xff" * 32, bytes(33)):
        found[f"ed25519 of {content[:1]!r} * {len(content)}"] = _line("ssh-ed25519", _string(content))
    found["sk ed25519"] = _line("sk-ssh-ed25519@openssh.com", _string(bytes(32)), _string(b"ssh:"))
    found["dsa of nothing"] = _line("ssh-dss", *(_number(0) for _part in range(4)))
    found["dsa of primes"] = _line("ssh-dss", *(_number(value) for value in (23, 11, 2, 4)))
    found["a certificate"] = _line("ssh-ed25519-cert-v01@openssh.com", _string(bytes(32)), _string(bytes(32)))
    found["ed448"] = _line("ssh-ed448", _string(ed448.Ed448PrivateKey.generate().public_key().public_bytes_raw()))
    return found


@pytest.mark.filterwarnings("ignore")
def test_mutated_public_keys_are_imported_or_refused(api: Any, kept: Any) -> None:
    found: Tally = collections.Counter()
    known = _public_keys()
    for name, public in known.items():
        assert _import(api, found, "ssh", public) in (201, 400), name
    rng = random.Random(1)
    for seed in range(1500):
        kind, _space, encoded = rng.choice(list(known.values())).partition(" ")
        public = f"{kind} {base64.b64encode(changed(rng, base64.b64decode(encoded.split()[0]))).decode()}"
        assert _import(api, found, "ssh", public) in (201, 400), (seed, public)
        text = changed(rng, f"{kind} {encoded}".encode()).decode("latin-1").replace("\0", "")
        assert _import(api, found, "ssh", text) in (201, 400), (seed, text)
    print(f"{len(known)} well-formed public keys ({', '.join(list(known)[:9])}, …) and changed ones: {dict(found)}")
    assert len(found) == 2


def _certificates() -> dict[str, bytes]:
    keys: dict[str, Any] = {"rsa": rsa_key(), "ec": ec.generate_private_key(ec.SECP384R1())}
    found = {name: certificate(key, "signer").public_bytes(Encoding.DER) for name, key in keys.items()}
    # The version is the first field of TBSCertificate: [0] EXPLICIT INTEGER.
    for version in (0, 1, 3, 86, 127):
        found[f"version {version + 1}"] = found["rsa"].replace(
            b"\xa0\x03\x02\x01\x02", bytes([0xA0, 3, 2, 1, version]), 1)
    # Unknown algorithms and curves of the same length.
    found["unknown algorithm"] = found["rsa"].replace(b"\x2a\x86\x48\x86\xf7\x0d\x01\x01\x01",
                                                      b"\x2a\x86\x48\x86\xf7\x0d\x01\x01\x7f")
    found["unknown signature"] = found["rsa"].replace(b"\x2a\x86\x48\x86\xf7\x0d\x01\x01\x0b",
                                                      b"\x2a\x86\x48\x86\xf7\x0d\x01\x01\x7f")
    found["unknown curve"] = found["ec"].replace(b"\x2b\x81\x04\x00\x22", b"\x2b\x81\x04\x00\x7f")
    return found


def _pem(content: bytes) -> str:
    return f"-----BEGIN CERTIFICATE-----\n{base64.encodebytes(content).decode()}-----END CERTIFICATE-----\n"


@pytest.mark.filterwarnings("ignore")
def test_mutated_certificates_are_imported_or_refused(api: Any, kept: Any) -> None:
    found: Tally = collections.Counter()
    known = _certificates()
    for name, content in known.items():
        assert _import(api, found, "x509", _pem(content)) in (201, 400), name
    rng = random.Random(2)
    for seed in range(1500):
        content = rng.choice(list(known.values()))
        public = _pem(changed(rng, content, head=64))
        assert _import(api, found, "x509", public) in (201, 400), (seed, public)
        text = changed(rng, _pem(content).encode()).decode("latin-1").replace("\0", "")
        assert _import(api, found, "x509", text) in (201, 400), (seed, text)
    print(f"certificates ({', '.join(known)}) and changed ones: {dict(found)}")
    assert len(found) == 2


def _import(api: Any, found: Tally, kind: str, public: str) -> int:
    body = {"keypair": {"name": "k", "type": kind, "public_key": public}}
    answer = api.post("/v2.1/os-keypairs", body, version="2.92")
    found[str(answer.status)] += 1
    return int(answer.status)


@pytest.mark.parametrize("user", ["u" * 64, "u" * 65, "é" * 32, "é" * 33, "é" * 64, "u" + "é" * 40, "😀" * 64,
                                  "é" * 255, "\u200b" * 40, "e\u0301" * 40, "名" * 22, "", " ", "a,b=c+d", "x" * 255])
def test_certificates_are_generated_for_any_user_name(user: str) -> None:
    made = x509.load_pem_x509_certificate(keys.generate("x509", user)[0].encode())
    names = [each.value for each in made.subject]
    assert names == ([user.encode()[:64].decode(errors="ignore")] if user else [])
    principals = made.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert [each.value[-len(f"{user}@localhost".encode()):].decode() for each in principals] == [f"{user}@localhost"]


# -- certificates of images ------------------------------------------------------------------------------
@pytest.fixture
def certificates(configuration: Any, tmp_path: pathlib.Path) -> Iterator[pathlib.Path]:
    """Return the directory from which certificates of images are read."""
    configuration.register_opts(castellan.key_manager.key_manager_opts, group="key_manager")
    configuration.set_override("backend", "nova_files", "key_manager")
    configuration.set_override("certificates", str(tmp_path), "image")
    yield tmp_path
    configuration.clear_override("backend", "key_manager")
    configuration.clear_override("certificates", "image")


@pytest.mark.filterwarnings("ignore")
def test_images_with_mutated_certificates_are_accepted_or_refused(
        certificates: pathlib.Path, tmp_path: pathlib.Path) -> None:
    """Mutate the signature properties of an image and the certificates that they reference."""
    ctx = RequestContext(overwrite=False, user_id="u", project_id="p", roles=["member"], auth_token="t")
    key, data = rsa_key(), b"data" * 99
    (tmp_path / "data").write_bytes(data)
    good = certificate(key, "signer", authority=True).public_bytes(Encoding.DER)
    properties = signed(data, key, "one")
    known, found, rng = {**_certificates(), "good": good}, collections.Counter[str](), random.Random(3)

    def accept(taken: Image, trusted: list[str]) -> None:
        taken.certificate = signatures.certificate_of(ctx, taken, trusted)
        signatures.verify(taken, str(tmp_path / "data"))

    for seed in range(400):
        content = list(known.values())[seed] if seed < len(known) else rng.choice([good, *known.values()])
        if seed >= 2 * len(known) and rng.random() < 0.8:
            content = changed(rng, content, head=64)
        (certificates / "one.pem").write_text(_pem(content))
        (certificates / "two.pem").write_text(_pem(rng.choice([good, content])))
        values = {**properties, "img_signature_key_type": rng.choice([*["RSA-PSS"] * 4, "ECC_SECP384R1", "DSA", "x"])}
        if rng.random() < 0.3:
            name = rng.choice(list(values))
            values[name] = changed(rng, values[name].encode()).decode("latin-1")
        taken, trusted = Image(id="i", name="i", properties=values), rng.choice([[], ["two"], ["one"], ["two", "one"]])
        try:
            tally(found, lambda taken=taken, trusted=trusted: accept(taken, trusted), exception.ImageUnacceptable)
        except Exception as error:
            raise AssertionError(f"seed {seed}: {values}, {trusted}, {content.hex()}") from error
    print(f"certificates of images ({', '.join(known)}), changed: {dict(found)}")
    assert set(found) == {"accepted", "refused"}


# -- images ----------------------------------------------------------------------------------------------
def _images() -> dict[str, bytes]:
    vdi = b"<<< Oracle VM VirtualBox Disk Image >>>\n".ljust(0x40, b"\0") + b"\x7f\x10\xda\xbe"
    parts = {
        "qcow2": qcow2(), "qcow2 of version 2": qcow2(version=2), "qcow2 with a parent": qcow2(b"parent" * 9),
        "qcow2 with data elsewhere": qcow2(features=4), "vmdk": vmdk(), "vmdk with a footer": vmdk(footer=16384),
        "dynamic vhd": vhd(3) + bytes(4096), "fixed vhd": bytes(4096) + vhd(2),
        "vdi": (vdi + struct.pack("<IIIIII", 0x10001, 400, 1, 0, 0, 0)).ljust(8192, b"\1"),
        "vhdx": b"vhdxfile".ljust(192 << 10, b"\0") + (b"regi" + struct.pack("<III", 0, 2, 0)).ljust(64 << 10, b"\1"),
        "luks": (b"LUKS\xba\xbe" + struct.pack(">H", 1)).ljust(4096, b"\1"),
        "iso": bytes(0x8001) + b"CD001" + bytes(4096), "mbr": bytes(510) + b"\x55\xaa" + bytes(4096),
        "gpt": (bytes(450) + b"\xee" + bytes(59) + b"\x55\xaaEFI PART").ljust(8192, b"\0"), "nothing": b"", "one": b"Q"}
    return {name: content if name in ("vhdx", "vmdk with a footer") else content[:96 << 10]
            for name, content in parts.items()}


def test_mutated_images_are_accepted_or_refused(tmp_path: pathlib.Path) -> None:
    found: Tally = collections.Counter()
    known, rng, path = _images(), random.Random(4), tmp_path / "image"
    formats = [*image_formats.DISK_FORMATS, "other"]
    for seed in range(800):
        name = rng.choice(list(known))
        content = known[name] if seed < 100 else changed(rng, known[name], head=rng.choice((112, 512, 2048)))
        path.write_bytes(content)
        for disk_format in {name.split()[0], "qcow2", "vmdk", "vhd", rng.choice(formats)}:
            try:
                tally(found, lambda disk_format=disk_format: image_formats.check(str(path), disk_format),
                      exception.ImageUnacceptable)
            except Exception as error:
                raise AssertionError(f"seed {seed}, {name} as {disk_format}: {content[:120].hex()}") from error
    print(f"images ({', '.join(known)}), changed, as each format: {dict(found)}")
    assert set(found) == {"accepted", "refused"}


# -- user data and files ---------------------------------------------------------------------------------
def _user_data() -> list[bytes]:
    script = b"#!/bin/sh\necho hello\n" * 9
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w:gz") as made:
        made.addfile(tarfile.TarInfo("etc/motd"))
    return [script, gzip.compress(script), archive.getvalue(), b"Content-Type: multipart/mixed; boundary=\"=\"\n\n--=",
            b"#cloud-config\na: &a [*a]\n", bytes(range(256)), "é😀".encode(), b"\x1f\x8b", b""]


def test_user_data_and_files_are_refused_or_reach_guests_unchanged(api: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    api.headers["X-Project-Id"] = MINE
    api.behind.servers = Conductor()
    monkeypatch.setattr(image, "store", Images)
    found, rng = collections.Counter[str](), random.Random(5)
    for seed in range(400):
        text = base64.b64encode(changed(rng, rng.choice(_user_data()))).decode()
        if rng.random() < 0.5:
            text = changed(rng, text.encode()).decode("latin-1").replace("\0", "")
        path = rng.choice(["/a", f"/{text[:9]}"])
        body = {"name": "n", "flavorRef": "1", "imageRef": IMAGE, "networks": "auto", "user_data": text,
                "personality": [{"path": path, "contents": text}]}
        answer = api.post("/v2.1/servers", {"server": body}, version="2.50")
        assert answer.status in (202, 400), (seed, answer.text)
        found[str(answer.status)] += 1
        if answer.status == 202:
            tree = Tree(make(user_data=text, personality=[Personality(path=path, contents=text)]), MetadataSettings())
            for document in ("/latest/user-data", "/openstack/latest/user_data", "/openstack/content/0000"):
                given = tree.lookup(document)
                assert (given.body if given else b"") == base64.b64decode(text), (seed, text)
            assert tree.lookup("/openstack/latest/meta_data.json")
    print(f"user data and files: {dict(found)}")
    assert len(found) == 2


def test_mutated_bodies_are_accepted_or_refused(api: Any, kept: Any) -> None:
    """Send JSON with mutated bytes, compressed or in another encoding."""
    body = {"keypair": {"name": "k", "public_key": _line("ssh-ed25519", _string(bytes(32))), "type": "ssh"}}
    plain = json.dumps(body).encode()
    known = {"JSON": plain, "gzip": gzip.compress(plain), "zlib": zlib.compress(plain),
             "UTF-16": plain.decode().encode("utf-16"),
             "UTF-8 with a mark": b"\xef\xbb\xbf" + plain, "XML": b"<keypair name='k'/>", "numbers": b"[1e999, 1e-999]",
             "surrogates": plain.replace(b'"k"', b'"\\ud800\\udc00\\ud800"'), "twice": plain * 2,
             "spaces": b" " * 9 + plain}
    found, rng = collections.Counter[str](), random.Random(6)
    for seed in range(1500):
        name = rng.choice(list(known))
        raw = known[name] if seed < 50 else changed(rng, known[name], head=120)
        headers = {"Content-Encoding": rng.choice(["gzip", "identity"])} if rng.random() < 0.5 else {}
        answer = api.post("/v2.1/os-keypairs", raw=raw, version="2.92", headers=headers)
        assert answer.status in (201, 400), (seed, name, raw, answer.text)
        found[str(answer.status)] += 1
    print(f"bodies ({', '.join(known)}), changed: {dict(found)}")
    assert len(found) == 2
