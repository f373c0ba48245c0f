# ruff: noqa: F811 - fixtures of other modules
"""Stored keys of encrypted volumes: cleanup of keys, and rotation of the cipher key."""

import pytest
import sqlalchemy as sa
from cryptography.fernet import Fernet

from nova.conductor.resources import volume_keys
from nova.conductor.secret_cipher import SecretCipher
from nova.db import tables
from tests.functional.client import wait_for
from tests.functional.volumes.test_cinder import (  # noqa: F401
    MEMBER,
    attach,
    boot,
    cinder,
    detach,
    ended,
    from_volume,
    outside,
    server,
    wait_status,
)
from tests.functional.volumes.test_cinder_encrypted import (  # noqa: F401
    encrypted,
    given,
    keys,
    nothing_is_said,
    operator,
    passphrase,
    volume,
)
from tests.functional.volumes.test_swaps import swap


def journals(suite, uuid):
    """Return the journals of the ended actions of a server."""
    found = suite.conductor.core.db.read(lambda connection: connection.execute(sa.select(
        tables.actions.c.operation, tables.actions.c.payload).where(
            tables.actions.c.instance_uuid == uuid, tables.actions.c.outcome.is_not(None))).all())
    return {operation: str(payload) for operation, payload in found}


def devices(suite, uuid):
    return str(suite.conductor.core.db.read(lambda connection: connection.scalar(
        sa.select(tables.instances.c.block_devices).where(tables.instances.c.uuid == uuid))))


def cleanup_state(suite, uuid):
    """Return the attempt of the attach action, and True if a cleanup is due for it."""
    attempt, until = suite.conductor.core.db.read(lambda connection: connection.execute(sa.select(
        tables.actions.c.attempt, tables.actions.c.lease_until).where(
            tables.actions.c.instance_uuid == uuid, tables.actions.c.operation == "attach_volume")).one())
    return attempt, until is not None


def nothing_is_kept(suite, uuid, operation):
    wait_for(lambda: {operation, "delete"} <= journals(suite, uuid).keys(), 20)
    assert [name for name, kept in journals(suite, uuid).items() if "sealed" in kept] == []
    assert "encrypted_passphrase" not in devices(suite, uuid)


# --- cleanup ---------------------------------------------------------------------------------------------
@pytest.mark.parametrize("queued", [False, True])
def test_delete_server_during_attach_leaves_no_volume_key(
        suite, admin, member, server, cinder, hold, volume, queued):
    held = hold("volumes.attach")
    attach(member, server, volume)
    held.wait_until_begun()
    other = encrypted(cinder)
    if queued:
        attach(member, server, other)
    admin.delete(f"/servers/{server}")
    held.let_go()
    admin.wait_gone(server)
    nothing_is_kept(suite, server, "attach_volume")
    for each in (volume, other):
        wait_status(cinder, each, "available")


def test_delete_server_while_cinder_hangs_leaves_no_volume_key(
        suite, admin, member, server, cinder, volume):
    asked, release = cinder.hold("create_attachment", after=True)
    attach(member, server, volume)
    assert asked.wait(20)
    admin.delete(f"/servers/{server}")
    admin.wait_gone(server)
    before = cleanup_state(suite, server)
    release()
    wait_for(lambda: cleanup_state(suite, server)[0] > before[0] and not cleanup_state(suite, server)[1], 40,
             "the late report has completed the cleanup")
    assert cinder.attachments == {}
    nothing_is_kept(suite, server, "attach_volume")


def test_delete_server_during_build_leaves_no_volume_key(
        suite, admin, member, flavor, cinder, hold, volume):
    held = hold("guests.spawn")
    uuid = boot(member, flavor, from_volume(volume))
    held.wait_until_begun()
    admin.delete(f"/servers/{uuid}")
    held.let_go()
    admin.wait_gone(uuid)
    nothing_is_kept(suite, uuid, "build")
    wait_status(cinder, volume, "available")


# --- rotation of the cipher key --------------------------------------------------------------------------
@pytest.fixture
def cipher(suite, monkeypatch, tmp_path):
    """Return the cipher key file of the conductor."""
    path = tmp_path / "keys"
    monkeypatch.setitem(vars(suite.conductor.core), "cipher", SecretCipher(str(path)))
    return path


def replaced(suite, path):
    """Rotate the cipher key and remove the old key after all secrets are re-encrypted."""
    core, first, second = suite.conductor.core, path.read_text(), Fernet.generate_key().decode()
    path.write_text(f"{second}\n{first}")
    while volume_keys.renew(core.db, core.cipher):
        pass
    path.write_text(f"{second}\n")


def starts_again(admin, operator, uuid):
    operator.action(uuid, "reboot", {"type": "HARD"}, expect=202)
    admin.wait(uuid, "ACTIVE")
    ended(admin, uuid, "reboot")


def test_queued_attach_uses_the_cipher_key_rotated_meanwhile(
        suite, admin, member, operator, server, cinder, hold, given, volume, cipher):
    held, other = hold("volumes.attach"), encrypted(cinder)
    attach(member, server, other)
    held.wait_until_begun()
    attach(member, server, volume)
    replaced(suite, cipher)
    held.let_go()
    wait_status(cinder, volume, "in-use")
    admin.wait_idle(server)
    starts_again(admin, operator, server)
    for each in (volume, other):
        assert given.steps(passphrase(cinder, each))[-1] == "reboot"
        detach(member, server, each)
        wait_status(cinder, each, "available")


@pytest.mark.parametrize("same", [True, False])
def test_long_volume_swap_uses_the_cipher_key_rotated_meanwhile(
        suite, admin, member, operator, server, cinder, hold, given, volume, cipher, same):
    attach(member, server, volume)
    wait_status(cinder, volume, "in-use")
    wait_for(lambda: all(each.complete for each in cinder.attachments.values()))
    new, held = cinder.migrate(volume), hold("volume_swaps.swap")
    cinder.volumes[new].secret = cinder.volumes[volume].secret if same else encrypted_by(MEMBER)
    key = passphrase(cinder, new)
    swap(admin, server, volume, new)
    held.wait_until_begun()
    replaced(suite, cipher)
    held.let_go()
    wait_for(lambda: cinder.volumes[volume].migration == "success", 40)
    admin.wait_idle(server)
    starts_again(admin, operator, server)
    assert given.steps(key)[-1] == "reboot"
    detach(member, server, volume)
    wait_status(cinder, volume, "available")


def encrypted_by(project):
    from tests.key_manager import Keys

    return Keys.new(project)
