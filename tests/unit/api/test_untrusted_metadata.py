"""Fuzz tests of metadata: requests of guests and proxies, hostile values in documents, vendor data, server metadata.

Mutations come from a seed, which a failure reports. Requests are served or refused; other errors are defects.
"""

from __future__ import annotations

import base64
import collections
import hashlib
import hmac
import json
import pathlib
import random
from typing import Any

import msgspec
import pytest

from nova.api.guest_metadata.app import NETWORK, Application
from nova.api.guest_metadata.instances import Instances
from nova.conf import CONF
from nova.metadata import config_drive, settings
from nova.metadata.settings import MetadataSettings
from nova.metadata.tree import Tree, segments
from nova.objects.accounts.flavor import Flavor
from nova.objects.networks.network import VIF, FixedIp, HostRoute
from nova.objects.servers.guest import PASSWORD_MAX, password_of
from nova.objects.servers.instance import BlockDevice, Instance, Key, Personality
from nova.rpcapi.accounts import Keypairs
from nova.rpcapi.servers import Servers
from tests.unit.api.canned import stub
from tests.unit.api.test_untrusted_bytes import Tally, changed
from tests.unit.metadata.test_application import SECRET, Conductor, ask
from tests.unit.metadata.test_trees import make

_PATHS = ("/", "/latest/meta-data/public-keys/0/openssh-key", "/2009-04-04/user-data", "/ec2/latest/meta-data/",
          "/openstack/latest/meta_data.json", "/openstack/content/0000", "/openstack/2013-04-04/password",
          "/openstack/latest/vendor_data2.json", "/openstack/latest/network_data.json", "/healthcheck")


def _proxy_headers(uuid: str) -> dict[str, str]:
    signature = hmac.new(SECRET.encode(), uuid.encode(), hashlib.sha256).hexdigest()
    return {"X_INSTANCE_ID": uuid, "X_TENANT_ID": "p1", "X_FORWARDED_FOR": "10.0.0.5", "X_INSTANCE_ID_SIGNATURE":
            signature, "X_METADATA_TOKEN": "t", "ACCEPT": "application/json"}


def _text(rng: random.Random, text: str) -> str:
    """Return a mutated text as a WSGI server passes it."""
    return changed(rng, text.encode("latin-1", "replace")).decode("latin-1")


def test_mutated_metadata_requests_are_served_or_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Mutate headers (also of validly signed ids), paths, methods, lengths and posted passwords."""
    monkeypatch.setattr(Instances, "check_conductor", lambda _self: None)
    found: Tally = collections.Counter()
    rng = random.Random(7)
    for seed in range(3000):
        conductor = Conductor()
        app = Application(Instances(conductor, conductor, 15), MetadataSettings(), SECRET)
        uuid = conductor.instance.uuid
        headers = _proxy_headers(_text(rng, uuid) if rng.random() < 0.2 else uuid)
        for name in headers:
            if rng.random() < 0.1:
                headers[name] = _text(rng, headers[name])
        path, method, body = rng.choice(_PATHS), rng.choice(("GET", "GET", "HEAD", "POST", "OPTIONS")), b"secret" * 9
        environ = {f"HTTP_{name}": value for name, value in headers.items()}
        if rng.random() < 0.3:
            environ |= {NETWORK: "n1", "REMOTE_ADDR": _text(rng, "10.0.0.5") if rng.random() < 0.3 else "10.0.0.5"}
        if rng.random() < 0.5:
            path = _text(rng, path)
        if method == "POST":
            path = rng.choice((path, "/openstack/latest/password"))
            body = changed(rng, rng.choice((body, b"x" * PASSWORD_MAX, "é".encode() * 400)))
            environ["CONTENT_LENGTH"] = rng.choice((str(len(body)), "-1", "-9999", "1e3", "", "9" * 30, "\u0663"))
            body += b"y" * 2000 if environ["CONTENT_LENGTH"].startswith("-") else b""
        if rng.random() < 0.05:
            method = _text(rng, method)
        status = ask(app, path, method, body, **environ)[0]
        assert status in (200, 400, 403, 404, 405, 409), (seed, method, path, environ, body)
        stored = password_of(conductor.instance.system_metadata)
        assert len(stored) <= PASSWORD_MAX, (seed, environ)
        assert "\0" not in stored, (seed, body)
        found[f"{method if method in ('GET', 'POST') else 'other'} {status}"] += 1
    print(f"requests of guests and proxies: {dict(found)}")
    assert {f"{method} {status}" for method, status in (("GET", 200), ("GET", 400), ("GET", 403), ("GET", 404),
                                                        ("POST", 200), ("POST", 400))} <= set(found)


# Texts that users, operators or other services may choose, and that columns can hold.
_HOSTILE = ("", " ", "é😀", "\u202e\u200b\ufeff", "a\nb\r\nContent-Length: 0\r\n\r\n", "../../etc/passwd", "a/b//c",
            "_name", "0=x", "{}", "[" * 50, '"\\', "</script>", "%s%n{0}", "x" * 255, "\x01\x1b[2J\x7f", "\u2028\x85",
            "null", "-1", "1e999", "\uffff\U0010ffff", "latest", "name/")
_BYTES = ("", "=", "====", "YQ", "YQ=", "!!", "é", "Y Q = =", base64.b64encode(bytes(range(256))).decode())


def _hostile(rng: random.Random) -> Instance:
    """Return an instance with hostile values in all fields that its documents show."""
    def text() -> str:
        return rng.choice((*_HOSTILE, "".join(chr(rng.randrange(1, 0xd800)) for _char in range(9))))

    def address(version: int) -> FixedIp:
        name, prefix = ("10.0.0.5", 24) if version == 4 else ("fd00::5", 64)
        return FixedIp(address=name, version=version, prefix=rng.choice((0, prefix, 32 if version == 4 else 128)),
                       gateway=rng.choice((None, "", "10.0.0.1")), dns=[text()], mode=rng.choice((None, text())),
                       routes=[HostRoute(destination=rng.choice(("0.0.0.0/0", "10.9.0.1/8", "::/0", "fd00::1/64")),
                                         gateway=text())])

    vifs = [VIF(id=text(), network_id=text(), label=text(), mac=text(), devname=text(), tag=text(), bridge=text(),
                mtu=rng.choice((0, -1, 2**31)), floating=text(),
                fixed_ips=[address(version) for version in rng.choices((4, 6), k=rng.randrange(4))])
            for _vif in range(rng.randrange(3))]
    disks = [BlockDevice(source=rng.choice(("blank", "volume", "image")), destination=rng.choice(("local", "volume")),
                         device_name=rng.choice((None, text())), tag=text(), disk_bus=text(), guest_format=rng.choice(
                             ("swap", text())), boot_index=rng.choice((None, 0, 1, 2**31)), volume_id=text())
             for _disk in range(rng.randrange(4))]
    return make(display_name=text(), hostname=text(), metadata={text(): text() for _item in range(3)},
                availability_zone=rng.choice((None, text())), security_groups=[text(), text()], network_info=vifs,
                flavor=Flavor(flavorid="1", name=text(), memory_mb=1, vcpus=1), block_devices=disks,
                key=rng.choice((None, Key(name=text(), public_key=text(), type=text()))), image_ref=text(),
                kernel_id=text(), ramdisk_id=text(), user_data=rng.choice((None, *_BYTES)), reservation_id=text(),
                personality=[Personality(path=text(), contents=rng.choice(("", "YQ==", _BYTES[-1])))],
                system_metadata={"password_0": text()}, launch_index=rng.choice((0, 2**31)), id=rng.choice((0, 2**40)))


def _served(tree: Tree, path: str) -> int:
    """Look up a path, and all paths below it that its listing names; return the number of documents."""
    document = tree.lookup(path)
    if document is None:
        return 0
    body = "" if path.endswith(("user-data", "user_data")) or "/content/" in path else document.body.decode()
    if path.endswith(".json"):
        msgspec.json.decode(body)  # refuses what no JSON is, such as NaN
        return 1
    depth = len(segments(path))
    below = body.split("\n") if depth < 2 or (depth < 6 and "meta-data" in path) else ()
    return 1 + sum(_served(tree, f"{path.rstrip('/')}/{name.partition('=')[0]}") for name in below if name)


def test_documents_of_instances_with_hostile_values_are_served() -> None:
    """Read all documents of both trees, and the files of the config drive."""
    rng, documents = random.Random(8), 0
    for seed in range(60):
        # Values arrive over the bus.
        instance = msgspec.msgpack.decode(msgspec.msgpack.encode(_hostile(rng)), type=Instance)
        options = MetadataSettings(dhcp_domain=rng.choice(_HOSTILE), vendordata=rng.choice((None, list(_HOSTILE))))
        try:
            for root in ("/latest", "/1.0", "/2008-09-01", "/openstack/latest", "/openstack/2012-08-10"):
                documents += _served(Tree(instance, options), root)
            for path in ("meta_data.json", "network_data.json", "vendor_data.json", "password", "user_data"):
                documents += _served(Tree(instance, options), f"/openstack/latest/{path}")
            documents += len(config_drive.files(instance, options, admin_pass=rng.choice(_HOSTILE)))
        except Exception as error:
            raise AssertionError(f"seed {seed}: {instance}") from error
    print(f"{documents} documents of 60 instances with hostile values")
    assert documents > 5_000


def test_mutated_vendor_data_files_are_served_or_ignored(tmp_path: pathlib.Path) -> None:
    """A file that is not JSON is ignored; all documents stay valid JSON."""
    path, found, rng = tmp_path / "vendor.json", collections.Counter[str](), random.Random(9)
    CONF.set_override("vendordata_jsonfile_path", str(path), group="metadata")
    known = [json.dumps({"a": [1, 1.5, None, True, "é"], "_b": {"c": {}}}).encode(), b"[NaN, Infinity, -Infinity]",
             b'"\\ud800"', b"[" * 100_000, b'{"a":' * 3_000 + b"1" + b"}" * 3_000, b"1" * 5_000, b"1e999", b"", b"null",
             b"\xef\xbb\xbf{}", b'{"a": 1, "a": 2}', '{"\u202e": "\\u0000"}'.encode(), b"\xff\xfe{\0}\0"]
    for seed in range(600):
        path.write_bytes(content := known[seed] if seed < len(known) else changed(rng, rng.choice(known)))
        try:
            made = settings.from_conf(CONF)
            for name in ("vendor_data.json", "vendor_data2.json"):
                assert _served(Tree(make(), made), f"/openstack/latest/{name}") == 1
            config_drive.files(make(), made)
        except Exception as error:
            raise AssertionError(f"seed {seed}: {content[:200]!r}") from error
        found["ignored" if made.vendordata is None else "served"] += 1
    CONF.clear_override("vendordata_jsonfile_path", group="metadata")
    print(f"vendor data: {dict(found)}")
    assert min(found["ignored"], found["served"]) > 20


def test_mutated_server_metadata_reach_the_conductor_unchanged_or_are_refused(api: Any) -> None:
    """Set metadata with mutated JSON; what is accepted can be sent, stored and served to the guest."""
    servers = stub(api, "servers", Servers, set_metadata=lambda metadata, **_given: metadata,
                   create=lambda **_given: None)
    found, rng = collections.Counter[str](), random.Random(10)
    known = [b'{"metadata": {"role": "web", "a.b:c-d_e f": ""}}', '{"metadata": {"k": "é😀\u202e\u2028"}}'.encode(),
             b'{"metadata": {"k": "\\ud800", "\\u0000": "\\udfff"}}', b'{"metadata": {"k": "\\n\\r\\u001b\\u007f"}}',
             b'{"metadata": {"__class__": "{0.__class__}", "k": "' + b"v" * 255 + b'"}}']
    path = "/v2.1/servers/6f70656e-7374-6163-6b20-342065766572/metadata"
    for seed in range(1500):
        raw = known[seed] if seed < len(known) else changed(rng, rng.choice(known))
        answer = api(rng.choice(("POST", "PUT")), path, raw=raw, version="2.104")
        assert answer.status in (200, 400), (seed, raw, answer.text)
        found[str(answer.status)] += 1
        if answer.status == 200:
            metadata = servers.last("set_metadata")["metadata"]
            assert answer.json["metadata"] == metadata == json.loads(raw)["metadata"], (seed, raw)
            assert "\0" not in json.dumps(metadata, ensure_ascii=False), (seed, raw)
            assert _served(Tree(make(metadata=metadata), MetadataSettings()), "/openstack/latest/meta_data.json")
    print(f"server metadata: {dict(found)}")
    assert len(found) == 2


def test_mutated_proxy_headers_are_used_or_refused(api: Any) -> None:
    """Mutate Host and X-Forwarded-* of requests of a trusted proxy, with rate limits by address."""
    stub(api, "keypairs", Keypairs, index=[])
    CONF.set_override("trusted_proxies", ["127.0.0.0/8"], group="api")
    known = {"X-Forwarded-For": "10.0.0.1, 127.0.0.1,[fd00::1]:80, unknown", "X-Forwarded-Proto": "http, https",
             "X-Forwarded-Host": "cloud.example:8774", "Host": "[fd00::1]:8774", "X-Forwarded-Prefix": "/compute",
             "Forwarded": "for=10.0.0.1;proto=https", "X-Real-IP": "10.0.0.1"}
    found, rng = collections.Counter[str](), random.Random(11)
    try:
        for seed in range(1500):
            headers = {name: _text(rng, value) if rng.random() < 0.5 else value for name, value in known.items()}
            answer = api.get(rng.choice(("/", "/v2.1/", "/v2.1/os-keypairs")), version="2.104", headers=headers)
            assert answer.status in (200, 300, 400), (seed, headers, answer.text)
            found[str(answer.status)] += 1
    finally:
        CONF.clear_override("trusted_proxies", group="api")
    print(f"headers of proxies ({', '.join(known)}): {dict(found)}")
    assert {"200", "400"} <= set(found)
