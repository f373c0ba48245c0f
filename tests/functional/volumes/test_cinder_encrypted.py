# ruff: noqa: F811 - fixtures of other modules
"""Encrypted volumes over HTTP: tokens used to read keys, hosts that receive keys, and absence of keys elsewhere."""

import logging
import os

import msgspec
import pytest
import sqlalchemy as sa
from cryptography.fernet import Fernet

from nova import bus, context
from nova.conductor.resources import volume_keys
from nova.conductor.saga.step_executor import StepExecutor
from nova.conductor.secret_cipher import SecretCipher
from nova.conf import CONF
from nova.db import tables
from nova.db.servers import passwords
from nova.rpcapi.by_hosts import Guests
from nova.rpcapi.servers import Servers
from tests.cinder_service import ENCRYPTED, Snapshot
from tests.functional.client import Client, wait_for
from tests.functional.conftest import remove_servers
from tests.functional.services.test_secrets import everything
from tests.functional.several_hosts import SECOND, error_of, refused, set_service
from tests.functional.volumes.test_assisted_snapshots import create
from tests.functional.volumes.test_cinder import (  # noqa: F401
    MEMBER,
    attach,
    attached,
    boot,
    cinder,
    detach,
    ended,
    from_volume,
    holds_nothing,
    outside,
    server,
    wait_status,
)
from tests.functional.volumes.test_cinder_moves import hosts, move  # noqa: F401 (fixtures)
from tests.functional.volumes.test_swaps import swap
from tests.key_manager import Keys, answers, is_silent

TOKEN = f"m:{MEMBER}"


class Given:
    """Records of what the hosts received: (host, step, passphrases) of each order, and the keys of connected
    volumes."""

    def __init__(self, monkeypatch):
        self.orders, self.said = [], []
        real = StepExecutor.send

        def send(executor, ctx, host, order):
            self.orders.append((host, order.step, [key.passphrase for key in order.volume_keys]))
            self.said.append(f"{order!r} {order.volume_keys!r}")
            keyless = msgspec.json.encode(msgspec.structs.replace(order, volume_keys=[])).decode()
            assert "sealed" not in keyless
            assert not any(value.hex() in keyless for _project, value in Keys.kept.values())
            real(executor, ctx, host, order)

        monkeypatch.setattr(StepExecutor, "send", send)

    def steps(self, passphrase):
        """Return the steps for which a host received the key."""
        return [step for _host, step, given in self.orders if passphrase in given]

    def hosts(self, passphrase):
        return {host for host, _step, given in self.orders if passphrase in given}


@pytest.fixture(autouse=True)
def keys(outside):
    """Configure the fake key manager."""
    CONF.register_opts(_options(), group="key_manager")
    CONF.set_override("backend", "tests.key_manager.Keys", "key_manager")
    outside.new_secret = Keys.new
    yield Keys
    unset()
    Keys.clear()


def unset():
    """Configure no key manager; oslo.config would not reset the option."""
    CONF.clear_override("backend", "key_manager")
    CONF._get_opt_info("backend", "key_manager").pop("location", None)


def _options():
    from castellan import key_manager

    return key_manager.key_manager_opts


@pytest.fixture(autouse=True)
def nothing_is_said(suite, outside, keys, caplog, given):
    """Check that no passphrase is in any log, row or message text."""
    caplog.set_level(logging.DEBUG)
    yield
    assert keys.kept
    rows = everything(suite)
    files = [os.path.join(CONF.state_path, name) for name in ("nova.sqlite", "nova.sqlite-wal")]
    for _project, value in keys.kept.values():
        secret = value.hex()
        assert secret not in rows
        assert secret not in caplog.text
        assert not any(secret in said for said in given.said)
        for name in files:
            with open(name, "rb") as file:
                assert secret.encode() not in file.read()


@pytest.fixture
def given(monkeypatch):
    return Given(monkeypatch)


@pytest.fixture
def volume(cinder):
    """Create an encrypted bootable volume."""
    return encrypted(cinder, bootable=True)


@pytest.fixture
def operator(suite):
    """Return an administrator client without access to the keys of users."""
    return Client(suite.url, project="operators", user="root")


def encrypted(cinder, **values):
    return cinder.new(MEMBER, secret=Keys.new(MEMBER), **values)


def passphrase(cinder, volume):
    return Keys.kept[cinder.volumes[volume].secret][1].hex()


def rows_of(suite, uuid):
    return suite.conductor.core.db.read(lambda connection: connection.execute(
        sa.select(tables.instances.c.block_devices).where(tables.instances.c.uuid == uuid)).scalar_one())


# --- attach ----------------------------------------------------------------------------------------------
def test_encrypted_volume_key_is_read_with_the_token_of_the_caller(
        suite, admin, member, operator, server, cinder, driver, given, volume):
    attach(member, server, volume)
    wait_status(cinder, volume, "in-use")
    assert Keys.asked == [(TOKEN, cinder.volumes[volume].secret)]
    assert {project for verb, project in cinder.asked if verb == "show_encryption"} == {MEMBER}
    assert given.steps(passphrase(cinder, volume)) == ["attach"]
    assert dict(driver.guest(server).volumes) == {"/dev/vdb": volume}
    operator.action(server, "pause", expect=202)
    admin.wait(server, "PAUSED")
    operator.action(server, "reboot", {"type": "HARD"}, expect=202)
    admin.wait(server, "ACTIVE")
    operator.action(server, "os-stop", expect=202)
    admin.wait(server, "SHUTOFF")
    operator.action(server, "os-start", expect=202)
    admin.wait(server, "ACTIVE")
    assert given.steps(passphrase(cinder, volume)) == ["attach", "reboot", "power_on"]
    assert len(Keys.asked) == 1
    shown = [admin.get(path, version="2.96") for path in (
        f"/servers/{server}", "/servers/detail?all_tenants=1", f"/servers/{server}/os-volume_attachments",
        f"/servers/{server}/os-instance-actions", f"/servers/{server}/diagnostics")]
    assert "sealed" not in str(shown)
    detach(member, server, volume)
    wait_status(cinder, volume, "available")
    holds_nothing(cinder, driver, member, server)
    assert "encrypted_passphrase" not in str(rows_of(suite, server))


def test_assisted_snapshot_of_an_encrypted_volume_is_refused(admin, member, server, cinder, driver, volume):
    """Check the refusal: the overlay would be in qcow2, and the guest could not be started again."""
    attach(member, server, volume)
    wait_status(cinder, volume, "in-use")
    admin.wait_idle(server)
    code, message = refused(lambda: create(admin, volume, cinder.assist(volume), f"volume-{volume}.new"))
    assert (code, f"volume {volume} is encrypted" in message) == (400, True), message
    cinder.snapshots.clear()


def test_hosts_receive_no_encrypted_passphrase(suite, admin, member, server, cinder, volume):
    attach(member, server, volume)
    wait_status(cinder, volume, "in-use")
    admin.wait_idle(server)
    transport = bus.connect(CONF, suite.compute.host)
    try:
        guests, servers = bus.client(transport, Guests), bus.client(transport, Servers)
        told = [*guests.on_host(context.admin(), suite.compute.host), *guests.described(context.admin(), [server]),
                servers.get(context.admin(), server)]
    finally:
        transport.cleanup()
    for device in (device for instance in told for device in instance.block_devices):
        assert (device.encryption.key_id, device.encryption.encrypted_passphrase) == (cinder.volumes[volume].secret, "")
    assert [instance.uuid for instance in told].count(server) == 3


def test_finished_actions_keep_no_volume_key(suite, admin, member, server, cinder, volume):
    attach(member, server, volume)
    wait_status(cinder, volume, "in-use")
    admin.wait_idle(server)
    wait_for(lambda: all(action.get("finish_time") for action in admin.get(
        f"/servers/{server}/os-instance-actions")["instanceActions"]) or True)

    def payloads(connection):
        return str(connection.execute(sa.select(tables.actions.c.payload)).all())

    wait_for(lambda: "sealed" not in suite.conductor.core.db.read(payloads), 20, "journals contain encryption keys")
    assert "encrypted_passphrase" in str(rows_of(suite, server))
    detach(member, server, volume)
    wait_status(cinder, volume, "available")


@pytest.mark.parametrize(("values", "text"), [
    ({"provider": "plain"}, "is encrypted by plain; only luks"), ({"provider": "luks2"}, "only luks is supported"),
    ({"control_location": "back-end"}, "only front-end is supported")])
def test_unsupported_volume_encryption_is_refused(member, flavor, server, cinder, driver, volume, values, text):
    for name, value in values.items():
        setattr(cinder.volumes[volume], name, value)
    for act in (lambda: attach(member, server, volume), lambda: boot(member, flavor, from_volume(volume))):
        code, message = refused(act)
        assert (code, volume in message, text in message) == (400, True, True), message
    assert Keys.asked == []
    holds_nothing(cinder, driver, member, server)


def test_legacy_encryption_provider_names_are_accepted(member, server, cinder, volume):
    cinder.volumes[volume].provider = "nova.volume.encryptors.luks.LuksEncryptor"
    attach(member, server, volume)
    wait_status(cinder, volume, "in-use")


@pytest.mark.parametrize(("failure", "code", "text"), [
    (answers(403), 400, "the key manager does not return the key"), (answers(503), 503, "key manager is not available"),
    (is_silent, 503, "key manager is not available")], ids=["403", "503", "silent"])
def test_key_manager_failure_is_returned(member, flavor, server, cinder, driver, volume, failure, code, text):
    for act in (lambda: attach(member, server, volume), lambda: boot(member, flavor, from_volume(volume))):
        Keys.failures.append(failure)
        found, message = refused(act)
        assert (found, text in message, volume in message) == (code, True, code == 400), message
    holds_nothing(cinder, driver, member, server)


def test_missing_volume_key_is_refused_with_400(member, server, cinder, driver, volume):
    cinder.volumes[volume].secret = "11111111-1111-4111-8111-111111111111"
    code, message = refused(lambda: attach(member, server, volume))
    assert (code, "does not return the key" in message, volume in message) == (400, True, True)
    holds_nothing(cinder, driver, member, server)


def test_encrypted_volume_without_a_key_manager_is_refused(member, flavor, server, cinder, driver, volume):
    unset()
    made = Snapshot(cinder.volumes[volume])
    cinder.snapshots[made.id] = made
    for act in (lambda: attach(member, server, volume), lambda: boot(member, flavor, from_volume(volume)),
                lambda: boot(member, flavor, from_snapshot(made.id))):
        code, message = refused(act)
        assert (code, "no key manager is configured" in message, volume in message) == (400, True, True), message
    cinder.snapshots.clear()
    holds_nothing(cinder, driver, member, server)


def test_lost_cipher_key_fails_reboot_and_volume_can_be_reattached(
        suite, admin, member, server, cinder, driver, volume, monkeypatch):
    attach(member, server, volume)
    wait_status(cinder, volume, "in-use")
    admin.wait_idle(server)
    core = suite.conductor.core
    monkeypatch.setitem(vars(core), "cipher", SecretCipher(os.path.join(CONF.state_path, "another.keys")))
    core.db.write(passwords.forget)
    member.action(server, "reboot", {"type": "HARD"})
    ended(admin, server, "reboot", "Error")
    assert "stored key of the encrypted volume cannot be decrypted" in error_of(admin, server, "reboot")
    admin.wait_idle(server)
    for _ in range(2):
        detach(member, server, volume)
        wait_status(cinder, volume, "available")
        attach(member, server, volume)
        wait_status(cinder, volume, "in-use")
    member.action(server, "reboot", {"type": "HARD"})
    admin.wait(server, "ACTIVE")


def test_encrypted_volume_works_after_cipher_key_rotation(
        suite, admin, operator, member, server, cinder, volume, monkeypatch, tmp_path):
    core, path = suite.conductor.core, tmp_path / "keys"
    monkeypatch.setitem(vars(core), "cipher", SecretCipher(str(path)))
    attach(member, server, volume)
    wait_status(cinder, volume, "in-use")
    admin.wait_idle(server)
    first, second = path.read_text(), Fernet.generate_key().decode()
    assert volume_keys.renew(core.db, core.cipher) == 0
    path.write_text(f"{second}\n{first}")
    assert [volume_keys.renew(core.db, core.cipher) for _ in range(2)] == [1, 0]
    path.write_text(f"{second}\n")
    operator.action(server, "reboot", {"type": "HARD"}, expect=202)
    admin.wait(server, "ACTIVE")
    ended(admin, server, "reboot")
    path.write_text(Fernet.generate_key().decode())
    assert volume_keys.renew(core.db, core.cipher) == 0, "keys that cannot be decrypted stay unchanged"


# --- boot ------------------------------------------------------------------------------------------------
def from_snapshot(snapshot):
    return {"source_type": "snapshot", "uuid": snapshot, "destination_type": "volume", "boot_index": 0}


def test_operator_shelves_and_unshelves_a_server_booted_from_an_encrypted_volume(
        admin, member, operator, flavor, cinder, driver, given, volume):
    uuid = boot(member, flavor, from_volume(volume))
    admin.wait(uuid, "ACTIVE")
    assert [token for token, _id in Keys.asked] == [TOKEN]
    operator.action(uuid, "shelve", expect=202)
    admin.wait(uuid, "SHELVED_OFFLOADED", seconds=60)
    operator.action(uuid, "unshelve", expect=202)
    admin.wait(uuid, "ACTIVE", seconds=60)
    assert dict(driver.guest(uuid).volumes) == {"/dev/vda": volume}
    assert given.steps(passphrase(cinder, volume)) == ["network", "network"]
    assert len(Keys.asked) == 1


@pytest.mark.parametrize("looks", [0, 2])
def test_boot_with_new_encrypted_volumes_reads_each_key_once(admin, member, flavor, image_id, cinder, driver, given,
                                                                 volume, looks):
    """Check that the keys are read before any operation waits for them."""
    made = Snapshot(cinder.volumes[volume])
    cinder.snapshots[made.id] = made
    cinder.looks = looks
    uuid = boot(member, flavor, from_snapshot(made.id), {
        "source_type": "blank", "destination_type": "volume", "volume_size": 1, "volume_type": ENCRYPTED,
        "boot_index": -1, "delete_on_termination": True})
    admin.wait(uuid, "ACTIVE", seconds=60)
    new = [each.id for each in cinder.volumes.values() if each.id != volume]
    assert len(new) == 2
    assert sorted(Keys.asked) == sorted((TOKEN, cinder.volumes[each].secret) for each in new)
    for each in new:
        assert given.steps(passphrase(cinder, each)) == ["network"]
    assert sorted(each for _device, each in driver.guest(uuid).volumes) == sorted(new)
    admin.delete(f"/servers/{uuid}")
    admin.wait_gone(uuid)
    cinder.snapshots.clear()


def test_key_manager_outage_fails_a_boot_with_a_new_encrypted_volume(admin, member, flavor, cinder, volume):
    made = Snapshot(cinder.volumes[volume])
    cinder.snapshots[made.id] = made
    Keys.failures += [is_silent] * 50
    uuid = boot(member, flavor, from_snapshot(made.id))
    shown = admin.wait(uuid, "ERROR", seconds=60)
    assert "user's token was available" in shown["fault"]["message"]
    cinder.snapshots.clear()
    wait_for(lambda: list(cinder.volumes) == [volume], 20, "the created volumes are deleted")


# --- moves and swaps -----------------------------------------------------------------------------------------
@pytest.mark.parametrize("how", ["live", "resize"])
def test_encrypted_volumes_move_with_their_server(hosts, admin, member, operator, cinder, given, how):
    root, data = encrypted(cinder, bootable=True), encrypted(cinder)
    uuid = admin.boot(hosts.flavor, "", availability_zone=f"nova:{hosts.first.host}",
                      block_device_mapping_v2=[from_volume(root)])
    admin.wait(uuid, "ACTIVE")
    attach(member, uuid, data)
    wait_status(cinder, data, "in-use")
    admin.wait_idle(uuid)
    for each in (root, data):
        assert given.hosts(passphrase(cinder, each)) == {hosts.first.host}
    given.orders.clear()
    admin.wait(uuid, move(operator, uuid, how, admin.flavor(ram=256, vcpus=2, disk=2)), seconds=60)
    wait_for(lambda: admin.server(uuid)["OS-EXT-SRV-ATTR:host"] == hosts.second.host, 40)
    admin.wait_idle(uuid)
    for each in (root, data):
        assert given.hosts(passphrase(cinder, each)) == {hosts.second.host}
    if how == "resize":
        operator.action(uuid, "revertResize", expect=202)
        admin.wait(uuid, "ACTIVE")
        assert given.hosts(passphrase(cinder, data)) == {hosts.first.host, hosts.second.host}
    assert len(Keys.asked) == 2


def test_evacuated_server_keeps_its_encrypted_volume(hosts, admin, member, operator, cinder, given, volume):
    uuid = admin.boot(hosts.flavor, "", availability_zone=f"nova:{SECOND}",
                      block_device_mapping_v2=[from_volume(volume)])
    admin.wait(uuid, "ACTIVE")
    hosts.second.stop()
    set_service(admin, SECOND, forced_down=True)
    given.orders.clear()
    operator.action(uuid, "evacuate", {}, version="2.95")
    wait_for(lambda: admin.server(uuid)["OS-EXT-SRV-ATTR:host"] == hosts.first.host, 60)
    admin.wait_idle(uuid, seconds=60)
    operator.action(uuid, "reboot", {"type": "HARD"}, expect=202)
    admin.wait(uuid, "ACTIVE")
    assert given.hosts(passphrase(cinder, volume)) == {hosts.first.host}
    assert len(Keys.asked) == 1
    remove_servers(admin)


def test_migrated_encrypted_volume_keeps_its_stored_key(
        admin, member, operator, server, cinder, driver, given, volume):
    attach(member, server, volume)
    wait_status(cinder, volume, "in-use")
    wait_for(lambda: all(each.complete for each in cinder.attachments.values()))
    secret, key = cinder.volumes[volume].secret, passphrase(cinder, volume)
    new = cinder.migrate(volume)
    cinder.volumes[new].secret = secret
    swap(operator, server, volume, new)
    wait_for(lambda: cinder.volumes[volume].migration == "success", 40)
    admin.wait_idle(server)
    assert Keys.asked == [(TOKEN, secret)]
    assert given.steps(key) == ["attach", "swap"]
    operator.action(server, "reboot", {"type": "HARD"}, expect=202)
    admin.wait(server, "ACTIVE")
    assert given.steps(key) == ["attach", "swap", "reboot"]
    detach(member, server, volume)
    wait_status(cinder, volume, "available")


def test_swap_to_a_volume_with_another_key_requires_access_to_that_key(
        admin, member, operator, server, cinder, driver, given, volume):
    attach(member, server, volume)
    wait_status(cinder, volume, "in-use")
    wait_for(lambda: all(each.complete for each in cinder.attachments.values()))
    new = cinder.migrate(volume)
    cinder.volumes[new].secret = Keys.new(MEMBER)
    code, message = refused(lambda: swap(operator, server, volume, new))
    assert (code, "does not return the key" in message) == (400, True)
    assert attached(member, server) == [volume]
    key = passphrase(cinder, new)
    swap(admin, server, volume, new)
    wait_for(lambda: cinder.volumes[volume].migration == "success", 40)
    admin.wait_idle(server)
    assert given.steps(key) == ["swap"]
    operator.action(server, "reboot", {"type": "HARD"}, expect=202)
    admin.wait(server, "ACTIVE")
    assert given.steps(key) == ["swap", "reboot"]
    detach(member, server, volume)
    wait_status(cinder, volume, "available")
