"""Actions inside a running guest: password change, crash dump, and actions of old clients."""

import base64
import threading

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import padding, rsa

from nova import exception
from nova.conf import CONF
from tests.functional.client import Client, wait_for
from tests.functional.services.test_costs import measured
from tests.functional.services.test_secrets import everything
from tests.functional.several_hosts import error_of, events_of, newest_action, refused

SECRET = "a-new-word-for-root"


@pytest.fixture
def key(admin):
    """Yield the private key of the key pair "mine"."""
    made = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    public = made.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    admin.post("/os-keypairs", {"keypair": {"name": "mine", "public_key": public.decode()}})
    yield made
    admin.delete("/os-keypairs/mine")


def booted(admin, flavor, image_id, **values):
    uuid = admin.boot(flavor, image_id, **values)
    admin.wait(uuid, "ACTIVE")
    return uuid


@pytest.fixture
def server(admin, flavor, image_id):
    return booted(admin, flavor, image_id)


def change(client, uuid, password=SECRET, **options):
    return client.action(uuid, "changePassword", {"adminPass": password}, **options)


def test_change_password_returns_after_the_guest_has_the_new_password(suite, admin, member, driver, server):
    change(member, server, expect=202)
    assert driver.state.passwords[server] == SECRET
    assert admin.server(server)["OS-EXT-STS:task_state"] is None
    assert events_of(admin, server, "changePassword") == [
        ("compute_set_admin_password", "Success", suite.compute.host)]
    assert admin.get(f"/servers/{server}/os-server-password") == {"password": ""}


def test_changed_password_is_encrypted_with_the_key_pair_of_the_server(admin, flavor, image_id, key):
    uuid = booted(admin, flavor, image_id, key_name="mine")
    change(admin, uuid)
    sealed = admin.get(f"/servers/{uuid}/os-server-password")["password"]
    assert key.decrypt(base64.b64decode(sealed), padding.PKCS1v15()).decode() == SECRET
    change(admin, uuid, "another")
    sealed = admin.get(f"/servers/{uuid}/os-server-password")["password"]
    assert key.decrypt(base64.b64decode(sealed), padding.PKCS1v15()).decode() == "another"


def test_pending_password_change_is_shown_and_stores_no_plain_text(suite, admin, driver, server, hold, monkeypatch):
    monkeypatch.setattr("nova.api.compute.servers.actions.server_actions._PASSWORD_WAIT", 0.0)
    held = hold("guests.set_password")
    change(admin, server)
    held.wait_until_begun()
    assert admin.server(server)["status"] == "PASSWORD"
    assert SECRET not in everything(suite)
    assert refused(lambda: change(admin, server)) == (
        409, f"Cannot 'changePassword' instance {server} while it is in task_state updating_password")
    held.let_go()
    admin.wait(server, "ACTIVE")
    assert driver.state.passwords[server] == SECRET
    assert SECRET not in everything(suite)


def test_delete_during_password_change_succeeds(admin, server, hold, monkeypatch):
    monkeypatch.setattr("nova.api.compute.servers.actions.server_actions._PASSWORD_WAIT", 0.0)
    held = hold("guests.set_password")
    change(admin, server)
    held.wait_until_begun()
    admin.delete(f"/servers/{server}")
    held.let_go()
    admin.wait_gone(server)


def test_unresponsive_guest_agents_do_not_block_all_api_threads(admin, driver, server, flavor, image_id, hold):
    CONF.set_override("threads", 2, group="api")
    other = booted(admin, flavor, image_id)
    held = hold("guests.set_password")
    first = threading.Thread(target=change, args=(Client(admin.url), server))
    try:
        first.start()
        held.wait_until_begun()
        change(admin, other)
        assert first.is_alive(), "the first request returned before its guest agent answered"
    finally:
        CONF.clear_override("threads", group="api")
        held.let_go()
        first.join()


@pytest.mark.parametrize(("error", "code", "message"), [
    (exception.InstancePasswordSetFailed(instance="I", reason="QEMU guest agent is not configured"), 409,
     "Failed to set admin password on I because QEMU guest agent is not configured"),
    (exception.NotImplementedHere(what="set password on instance"), 501, "Unable to set password on instance"),
    (RuntimeError("secret of the host"), 409,
     "Failed to set admin password on {uuid} because Unexpected error: RuntimeError"),
])
def test_failed_password_change_returns_the_error_to_the_client(
        admin, driver, server, monkeypatch, error, code, message):
    def fail(instance, password):
        raise error

    monkeypatch.setattr(driver.guests, "set_password", fail)
    assert refused(lambda: change(admin, server)) == (code, message.format(uuid=server))
    assert admin.server(server)["status"] == "ACTIVE"
    assert newest_action(admin, server, "changePassword")["message"] == "Error"
    assert admin.get(f"/servers/{server}/os-server-password") == {"password": ""}


def test_undecryptable_new_password_fails_and_keeps_the_guests_password(suite, admin, driver, server, monkeypatch):
    """The encryption key is lost after the API has accepted the request."""
    monkeypatch.setattr(suite.conductor.core.cipher, "try_decrypt", lambda token: None)
    code, message = refused(lambda: change(admin, server))
    assert (code, message) == (
        409, f"Failed to set admin password on {server} because the stored new password cannot be decrypted")
    assert driver.state.passwords == {}


def test_empty_password_can_be_set(admin, driver, server):
    change(admin, server, "")
    assert driver.state.passwords[server] == ""


def test_change_password_of_locked_or_stopped_server_is_refused(admin, member, server):
    admin.action(server, "lock")
    assert refused(lambda: change(member, server)) == (
        409, f"Instance {server} is in an invalid state for 'changePassword'")
    admin.action(server, "unlock")
    admin.action(server, "os-stop")
    admin.wait(server, "SHUTOFF")
    assert refused(lambda: change(admin, server)) == (
        409, f"Cannot 'changePassword' instance {server} while it is in vm_state stopped")
    assert refused(lambda: change(admin, server, "x" * 256))[0] == 400


def test_change_password_message_and_statement_count(suite, admin, server):
    _none, messages, statements = measured(suite, admin, lambda: change(admin, server))
    looks = messages.pop("servers.password_changed")  # the number of polls varies
    assert sum(messages.values()) <= 5, messages
    assert len(statements) <= 15 + looks, statements


# --- crash dumps -------------------------------------------------------------------------------------
def test_a_crash_dump_is_triggered_from_2_17(suite, admin, member, driver, server):
    assert refused(lambda: admin.action(server, "trigger_crash_dump", version="2.16"))[0] == 404
    member.action(server, "trigger_crash_dump", version="2.17", expect=202)
    wait_for(lambda: driver.state.crash_dumps[server] == 1)
    wait_for(lambda: newest_action(admin, server, "trigger_crash_dump")["events"][0]["result"])
    assert events_of(admin, server, "trigger_crash_dump") == [
        ("compute_trigger_crash_dump", "Success", suite.compute.host)]
    assert admin.server(server)["OS-EXT-STS:task_state"] is None


def test_failed_crash_dump_keeps_the_server_active(admin, driver, server):
    driver.behaviour.failure["trigger_crash_dump"] = 1.0
    admin.action(server, "trigger_crash_dump")
    wait_for(lambda: newest_action(admin, server, "trigger_crash_dump")["message"] == "Error")
    assert "configured to fail at trigger_crash_dump" in error_of(admin, server, "trigger_crash_dump")
    assert admin.wait(server, "ACTIVE")


def test_crash_dump_of_stopped_or_hostless_server_is_refused(admin, driver, server, flavor, image_id):
    admin.action(server, "os-stop")
    admin.wait(server, "SHUTOFF")
    assert refused(lambda: admin.action(server, "trigger_crash_dump")) == (
        409, f"Cannot 'trigger_crash_dump' instance {server} while it is in vm_state stopped")
    driver.behaviour.failure["spawn"] = 1.0
    uuid = admin.boot(flavor, image_id)
    admin.wait(uuid, "ERROR")
    assert refused(lambda: admin.action(uuid, "trigger_crash_dump")) == (409, f"Instance {uuid} is not ready")


# --- networks in guests ------------------------------------------------------------------------------
def test_inject_network_info_does_nothing_and_reset_network_returns_410(admin, member, server):
    admin.action(server, "injectNetworkInfo", expect=202)
    assert refused(lambda: member.action(server, "injectNetworkInfo"))[0] == 403
    assert [action["action"] for action in admin.get(f"/servers/{server}/os-instance-actions")["instanceActions"]] == [
        "create"]
    code, _message = refused(lambda: admin.action(server, "resetNetwork"))
    assert code == 410
