"""Admin passwords and user data: delivery, encryption in the database, and deletion."""

import base64
import os

import pytest
import sqlalchemy as sa

from nova.conf import CONF
from nova.db import tables

PASSWORD = "correct-horse-battery"
SCRIPT = base64.b64encode(b"#!/bin/sh echo staple").decode()


@pytest.fixture
def given(driver, monkeypatch):
    """Return the passwords that guests received, in the order of their starts."""
    found, real = [], driver.guests.spawn

    def spawn(instance, *args, **named):
        found.append(instance.admin_pass)
        return real(instance, *args, **named)

    monkeypatch.setattr(driver.guests, "spawn", spawn)
    return found


def everything(suite):
    """Return all rows of all tables as text."""
    def look(connection):
        return "\n".join(str(row) for table in tables.metadata.sorted_tables
                         for row in connection.execute(sa.text(f"SELECT * FROM {table.name}")))  # noqa: S608

    return suite.conductor.core.db.read(look)


def row(suite, uuid):
    return suite.conductor.core.db.read(lambda connection: connection.execute(
        sa.select(tables.instances).where(tables.instances.c.uuid == uuid)).one())


def no_password(suite, uuid):
    """Check that the row no longer contains the password, and that the file never did."""
    assert (row(suite, uuid).admin_pass, row(suite, uuid).encrypted_pass) == (None, None)
    for name in ("nova.sqlite", "nova.sqlite-wal"):
        with open(os.path.join(CONF.state_path, name), "rb") as file:
            assert PASSWORD.encode() not in file.read()


def test_admin_password_is_encrypted_during_build_and_deleted_afterwards(suite, admin, flavor, image_id, hold, given):
    held = hold("guests.spawn")
    uuid = admin.boot(flavor, image_id, adminPass=PASSWORD)
    held.wait_until_begun()
    assert row(suite, uuid).encrypted_pass
    assert PASSWORD not in everything(suite)
    held.let_go()
    admin.wait(uuid, "ACTIVE")
    assert given == [PASSWORD]
    no_password(suite, uuid)


def test_failed_build_deletes_the_admin_password(suite, admin, flavor, image_id, driver, given):
    driver.behaviour.failure["spawn"] = 1.0
    uuid = admin.boot(flavor, image_id, adminPass=PASSWORD)
    admin.wait(uuid, "ERROR")
    no_password(suite, uuid)


def test_superseded_build_deletes_the_admin_password(suite, admin, flavor, image_id, hold):
    held = hold("guests.spawn")
    uuid = admin.boot(flavor, image_id, adminPass=PASSWORD, user_data=SCRIPT)
    held.wait_until_begun()
    admin.delete(f"/servers/{uuid}")
    assert row(suite, uuid).encrypted_pass is None
    held.let_go()
    admin.wait_gone(uuid)
    no_password(suite, uuid)


def test_user_data_is_deleted_with_the_server(suite, admin, flavor, image_id):
    uuid = admin.boot(flavor, image_id, user_data=SCRIPT)
    admin.wait(uuid, "ACTIVE")
    assert admin.server(uuid)["OS-EXT-SRV-ATTR:user_data"] == SCRIPT
    admin.delete(f"/servers/{uuid}")
    admin.wait_gone(uuid)
    assert SCRIPT not in everything(suite)


def test_build_with_a_missing_cipher_key_fails_with_the_cause(suite, admin, flavor, image_id, monkeypatch):
    cipher = suite.conductor.core.cipher
    real = cipher.encrypt
    monkeypatch.setattr(cipher, "encrypt", lambda secret: real(secret) and "gAAAA-of-another-key")
    uuid = admin.boot(flavor, image_id, adminPass=PASSWORD)
    server = admin.wait(uuid, "ERROR")
    assert "the key that encrypted it is missing" in server["fault"]["message"]
    no_password(suite, uuid)
