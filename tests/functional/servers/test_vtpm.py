"""Servers with a virtual TPM over HTTP: their secret, and the operations that are refused."""

import functools

import pytest
import sqlalchemy as sa

from nova.compute.service import ComputeService
from nova.conductor.resources import volume_keys
from nova.conductor.secret_cipher import SecretCipher
from nova.conf import CONF
from nova.db import tables
from tests.functional.several_hosts import refused, service_of, wait_scheduler

_SCENARIO = """
groups:
  - name: tpm
    hosts: 2
    traits: [COMPUTE_SECURITY_TPM_2_0, COMPUTE_SECURITY_TPM_TIS, COMPUTE_SECURITY_TPM_SECRET_SECURITY_USER,
             COMPUTE_SECURITY_TPM_SECRET_SECURITY_HOST, COMPUTE_SECURITY_TPM_SECRET_SECURITY_DEPLOYMENT]
"""


@pytest.fixture
def hosts(suite, admin, tmp_path):
    """Start two hosts with virtual TPMs; return their fake drivers."""
    path = tmp_path / "scenario.yaml"
    path.write_text(_SCENARIO)
    CONF.set_override("scenario", str(path), group="fake")
    services = [ComputeService(suite.transport, host=host) for host in ("tpm-000", "tpm-001")]
    CONF.clear_override("scenario", group="fake")
    for service in services:
        service.start()
        wait_scheduler(suite, service.host, True)
    yield [service.machine.driver for service in services]
    for shown in admin.get("/servers", all_tenants=1)["servers"]:
        admin.delete(f"/servers/{shown['id']}")
        admin.wait_gone(shown["id"])
    for service in services:
        service.stop()
        admin.delete(f"/os-services/{service_of(admin, service.host)['id']}")


@pytest.fixture
def received(hosts, monkeypatch):
    """Return the secrets that the hosts receive to start guests."""
    secrets = []
    for driver in hosts:
        for role, verb in ((driver.guests, "spawn"), (driver.power, "on"), (driver.power, "reboot"),
                           (driver.power, "pause"), (driver.cold_migration, "finish")):
            monkeypatch.setattr(role, verb, functools.partial(call, secrets, verb, getattr(role, verb)))
    return secrets


def call(secrets, verb, real, instance, *args, **named):
    secrets.append((verb, instance.tpm_secret, instance.encrypted_tpm_secret))
    return real(instance, *args, **named)


@pytest.fixture
def flavored(admin):
    def make(security="", **values):
        flavor = admin.flavor(**values)
        specs = {"hw:tpm_version": "2.0", **({"hw:tpm_secret_security": security} if security else {})}
        admin.post(f"/flavors/{flavor}/os-extra_specs", {"extra_specs": specs})
        return flavor

    return make


def stored(suite, uuid):
    return suite.conductor.core.db.read(lambda connection: connection.scalar(sa.select(
        tables.instances.c.encrypted_tpm_secret).where(tables.instances.c.uuid == uuid)))


def test_hosts_receive_the_secret_only_to_start_the_guest(suite, admin, hosts, image_id, flavored, received):
    plain = admin.boot(admin.flavor(), image_id)
    uuid = admin.boot(flavored(), image_id)
    for server in (plain, uuid):
        admin.wait(server, "ACTIVE")
    assert stored(suite, plain) is None
    token = stored(suite, uuid)
    secret = suite.conductor.core.cipher.decrypt(token)
    assert len(secret) == 64
    assert ("spawn", secret, None) in received
    received.clear()
    admin.action(uuid, "pause")
    admin.wait(uuid, "PAUSED")
    admin.action(uuid, "unpause")
    admin.wait(uuid, "ACTIVE")
    admin.action(uuid, "reboot", {"type": "HARD"})
    admin.wait(uuid, "ACTIVE")
    admin.action(uuid, "migrate")
    admin.wait(uuid, "VERIFY_RESIZE")
    assert received == [("pause", None, None), ("reboot", secret, None), ("finish", secret, None), ("on", secret, None)]
    admin.action(uuid, "confirmResize", expect=204)
    admin.wait(uuid, "ACTIVE")
    assert stored(suite, uuid) == token
    admin.delete(f"/servers/{uuid}")
    admin.wait_gone(uuid)
    assert stored(suite, uuid) is None


_REFUSED = [("rebuild", "rebuild"), ("shelve", "shelve"), ("rescue", "rescue"), ("evacuate", "evacuate"),
            ("os-migrateLive", "os-migrateLive")]


def test_operations_that_would_lose_the_tpm_are_refused(suite, admin, hosts, image_id, flavored):
    uuid = admin.boot(flavored(), image_id)
    admin.wait(uuid, "ACTIVE")
    bodies = {"rebuild": {"imageRef": image_id}, "os-migrateLive": {"host": None, "block_migration": "auto"},
              "evacuate": {}}
    admin.action(uuid, "lock")  # the check of the TPM comes first
    for action, label in _REFUSED:
        code, message = refused(lambda action=action: admin.action(uuid, action, bodies.get(action)))
        assert (code, f"'{label}'" in message, "virtual TPM" in message) == (400, True, True), (action, message)
    assert admin.server(uuid)["status"] == "ACTIVE"
    actions = admin.get(f"/servers/{uuid}/os-instance-actions")["instanceActions"]
    assert {action["action"] for action in actions} == {"create", "lock"}


def test_rebuild_to_an_image_with_a_tpm_is_refused(admin, hosts, image_id, new_image):
    uuid = admin.boot(admin.flavor(), image_id)
    admin.wait(uuid, "ACTIVE")
    code, message = refused(lambda: admin.action(uuid, "rebuild", {"imageRef": new_image(hw_tpm_version="2.0")}))
    assert (code, "virtual TPM" in message) == (400, True)


def test_server_whose_secret_the_host_may_keep_is_migrated_live(suite, admin, hosts, image_id, flavored):
    uuid = admin.boot(flavored("host"), image_id)
    before = admin.wait(uuid, "ACTIVE")["OS-EXT-SRV-ATTR:host"]
    admin.action(uuid, "os-migrateLive", {"host": None, "block_migration": "auto"}, expect=202)
    assert admin.wait(uuid, "ACTIVE")["OS-EXT-SRV-ATTR:host"] != before


def test_resize_creates_the_secret_and_never_changes_its_policy(suite, admin, hosts, image_id, flavored):
    uuid = admin.boot(admin.flavor(), image_id)
    admin.wait(uuid, "ACTIVE")
    assert stored(suite, uuid) is None
    admin.action(uuid, "resize", {"flavorRef": flavored("deployment", vcpus=2)})
    admin.wait(uuid, "VERIFY_RESIZE")
    assert stored(suite, uuid)
    admin.action(uuid, "confirmResize", expect=204)
    admin.wait(uuid, "ACTIVE")
    code, message = refused(lambda: admin.action(uuid, "resize", {"flavorRef": flavored("user", vcpus=3)}))
    assert (code, "hw:tpm_secret_security" in message) == (400, True)
    assert admin.server(uuid)["status"] == "ACTIVE"


def test_secrets_are_encrypted_again_with_a_new_key(suite, admin, hosts, image_id, flavored, tmp_path):
    from cryptography.fernet import Fernet

    uuid = admin.boot(flavored(), image_id)
    admin.wait(uuid, "ACTIVE")
    core, token = suite.conductor.core, stored(suite, uuid)
    secret = core.cipher.decrypt(token)
    with open(CONF.conductor.secret_key_file) as file:
        keys = file.read()
    path = tmp_path / "keys"
    path.write_text(f"{Fernet.generate_key().decode()}\n{keys}")
    path.chmod(0o600)
    cipher = SecretCipher(str(path))
    assert volume_keys.renew(core.db, cipher) == 1
    assert volume_keys.renew(core.db, cipher) == 0
    assert stored(suite, uuid) != token
    assert cipher.decrypt(stored(suite, uuid)) == secret
