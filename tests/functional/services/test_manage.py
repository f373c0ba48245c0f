"""nova-manage and nova-status against the running suite."""

import concurrent.futures
import datetime
import json
import os
import re

import pytest
import sqlalchemy as sa

from nova.cmd import manage, status
from nova.db import audit, tables
from nova.db.maintenance import purge
from nova.objects.base import utcnow
from tests.functional.client import wait_for
from tests.polling import poll
from tests.unit.databases import unfinished


def eventually(condition):
    assert poll(condition, 30, 0.2)


@pytest.fixture
def run(suite, capsys):
    """Return a function that runs nova-manage and returns its exit code, output and errors."""
    def manage_nova(*arguments):
        capsys.readouterr()
        code = manage.main(list(arguments))
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return manage_nova


def test_service_list_shows_states(run):
    code, out, _err = run("service", "list")
    assert code == 0
    assert all(binary in out for binary in ("nova-conductor", "nova-scheduler", "nova-compute"))
    assert out.count(" up ") == 3


def test_service_list_shows_load(run):
    def loads():
        code, out, _err = run("service", "list", "--json")
        assert code == 0
        return [load for service in json.loads(out) for load in service.get("load") or []]

    eventually(lambda: len(loads()) == 3)
    assert {load["pid"] for load in loads()} == {os.getpid()}
    assert all(load["rss_mb"] > 10 for load in loads())
    assert " RSS MB " in run("service", "list")[1]


def test_network_is_created_listed_and_deleted(run):
    code, out, _err = run("network", "create", "--name", "made", "--cidr", "10.77.0.0/24")
    assert code == 0
    assert run("network", "create", "--name", "made", "--cidr", "10.77.0.0/24", "--if-missing")[0] == 0
    assert out.strip() in run("network", "list")[1]
    assert run("network", "delete", "made")[0] == 0
    assert out.strip() not in run("network", "list")[1]


def test_tunnel_network_with_ipv6_is_created(run):
    code, out, err = run("network", "create", "--name", "six", "--cidr", "10.78.0.0/24", "--cidr-v6", "fd00:78::/64",
                         "--ipv6-mode", "dhcpv6-stateful", "--vni", "0")
    assert code == 0, err
    listed = run("network", "list")[1]
    assert "fd00:78::/64" in next(line for line in listed.splitlines() if out.strip() in line)
    assert run("network", "delete", "six")[0] == 0


def test_floating_ips_are_created_listed_and_deleted(run, admin):
    assert run("floating", "create", "--pool", "public", "--ip_range", "203.0.113.16/29") == (
        0, "Added 6 addresses to pool public\n", "")
    assert run("floating", "create", "--pool", "other", "--ip_range", "203.0.113.17/32")[0] == 127  # exists
    for bad in ("203.0.113.17/29", "203.0.0.0/21", "127.0.0.0/30", "x"):
        code, _out, err = run("floating", "create", "--ip_range", bad)
        assert (code, bad in err) == (127, True)
    taken = admin.post("/os-floating-ips", None, version="2.35")["floating_ip"]
    assert "203.0.113.17 | public | p " in run("floating", "list")[1]
    code, _out, err = run("floating", "delete", "--ip_range", "203.0.113.16/29")
    assert (code, "203.0.113.17 is in use" in err) == (127, True)
    admin.delete(f"/os-floating-ips/{taken['id']}", version="2.35")
    assert run("floating", "delete", "--ip_range", "203.0.113.16/29")[1] == "Removed 6 addresses\n"


@pytest.mark.parametrize(("cidr", "text"), [("10.77.0.0/33", "10.77.0.0/33"), ("banana", "banana")])
def test_invalid_network_is_refused_with_a_message(run, cidr, text):
    code, _out, err = run("network", "create", "--name", "bad", "--cidr", cidr)
    assert code == 127
    assert text in err


def test_schedule_explain_shows_reasons_per_host(run, admin, flavor):
    code, out, _err = run("schedule", "explain", "--flavor", flavor)
    assert (code, "passes" in out) == (0, True)
    huge = admin.flavor(ram=10_000_000)
    code, out, _err = run("schedule", "explain", "--flavor", huge)
    assert code == 1
    assert "MEMORY_MB" in out


def test_audit_of_consistent_records_reports_nothing(run, admin, flavor, image_id):
    admin.wait(admin.boot(flavor, image_id), "ACTIVE")
    assert run("audit", "--settle", "0.1") == (0, "", "")


def test_audit_of_a_server_in_verify_resize_reports_nothing(run, pair, admin):
    uuid = pair.boot()
    admin.action(uuid, "migrate", expect=202)
    admin.wait(uuid, "VERIFY_RESIZE")
    assert run("audit", "--settle", "0.1") == (0, "", "")
    admin.action(uuid, "confirmResize", expect=204)
    admin.wait(uuid, "ACTIVE")
    assert run("audit", "--settle", "0.1") == (0, "", "")


def test_audit_reports_and_repairs_wrong_usage(run, suite, admin, flavor, image_id):
    uuid = admin.boot(flavor, image_id)
    admin.wait(uuid, "ACTIVE")
    db = suite.conductor.core.db
    db.write(lambda connection: connection.execute(sa.update(tables.inventories).where(
        tables.inventories.c.resource_class == "VCPU").values(used=7)))
    db.write(lambda connection: connection.execute(sa.update(tables.quota_usages).where(
        tables.quota_usages.c.project_id == "p").values(ram=1)))
    code, out, _err = run("audit", "--repair", "--settle", "0.1")
    assert code == 1
    assert "VCPU: 7 used, but the claims sum up to 1 (repaired)" in out
    assert "ram is 1, counted 128" in out
    assert run("audit", "--settle", "0.1")[:2] == (0, "")


def test_audit_repair_removes_orphaned_guests_and_retains_unknown_ones(run, suite, admin, flavor, image_id):
    """Check that a guest of a deleted server is removed, and that [compute]unknown_guests controls unknown guests."""
    driver = suite.compute.machine.driver
    orphaned, unknown = admin.boot(flavor, image_id), "0f5c5b0e-1111-4000-8000-000000000000"
    admin.wait(orphaned, "ACTIVE")
    admin.delete(f"/servers/{orphaned}")
    admin.wait_gone(orphaned)
    for uuid in (orphaned, unknown):
        driver.state.guests.add(uuid, 1)
    try:
        code, out, _err = run("audit", "--repair", "--settle", "0.1")
        assert code == 1
        finding = f"guest: {orphaned}: runs on {suite.compute.host}, but its server is deleted or evicted"
        assert f"{finding} (repaired)" in out
        assert "[compute]unknown_guests" in next(line for line in out.splitlines() if unknown in line)
        # Guest removal is a message to the host.
        eventually(lambda: orphaned not in {guest.uuid for guest in driver.guests.all()})
        assert unknown in {guest.uuid for guest in driver.guests.all()}
    finally:
        driver.guests.remove_orphan(unknown)


def test_audit_during_boots_and_deletes_reports_nothing(suite, admin, flavor, image_id):
    def come_and_go(number):
        for _round in range(4):
            uuid = admin.boot(flavor, image_id)
            admin.wait(uuid, "ACTIVE")
            admin.delete(f"/servers/{uuid}")
            admin.wait_gone(uuid)

    with concurrent.futures.ThreadPoolExecutor(3) as users:
        busy = [users.submit(come_and_go, number) for number in range(3)]
        while not all(user.done() for user in busy):
            assert [str(finding) for finding in audit.audit(suite.conductor.core.db, repair=True)] == []
        for user in busy:
            user.result()


def test_audit_reports_a_server_without_a_guest(run, suite, admin, flavor, image_id):
    uuid = admin.boot(flavor, image_id)
    admin.wait(uuid, "ACTIVE")
    suite.compute.machine.driver.guests.remove_orphan(uuid)
    code, out, _err = run("audit", "--settle", "0.1")
    assert (code, uuid in out) == (1, True)


def deleted_long_ago(suite, uuid):
    """Move the deletion of the server two hours into the past."""
    when = utcnow() - datetime.timedelta(hours=2)
    suite.conductor.core.db.write(lambda connection: connection.execute(
        sa.update(tables.instances).where(tables.instances.c.uuid == uuid).values(terminated_at=when)))


def test_deleted_servers_are_counted_archived_and_purged(run, suite, admin, flavor, image_id, tmp_path):
    run("db", "purge")  # rows of earlier tests
    uuids = [admin.boot(flavor, image_id) for _number in range(2)]
    for uuid in uuids:
        admin.wait(uuid, "ACTIVE")
        admin.delete(f"/servers/{uuid}")
        admin.wait_gone(uuid)
    eventually(lambda: not suite.conductor.core.db.read(unfinished))
    deleted_long_ago(suite, uuids[0])
    code, out, _err = run("db", "purge", "--dry-run")
    assert (code, " 1 " in out) == (0, True)
    archive = tmp_path / "archive"
    code, out, _err = run("db", "purge", "--archive", str(archive), "--compact")
    assert (code, "1 instances removed" in out) == (0, True)
    assert oct(archive.stat().st_mode)[-3:] == "600"
    assert {json.loads(line)["row"].get("instance_uuid", uuids[0]) for line in archive.open()} == {uuids[0]}
    shown = {server["id"] for server in admin.get("/servers", deleted=True)["servers"]}
    assert uuids[1] in shown
    assert uuids[0] not in shown
    assert run("db", "purge")[0] == 3  # The second purge removes nothing.


def test_forget_secrets_deletes_stored_passwords(run, suite, admin, flavor, image_id, hold):
    held = hold("guests.spawn")
    uuid = admin.boot(flavor, image_id)
    held.wait_until_begun()
    code, out, _err = run("db", "forget_secrets")
    assert (code, out.splitlines()[0]) == (0, "Deleted the passwords of 1 servers")
    held.let_go()
    admin.wait(uuid, "ACTIVE")


def test_renew_secrets_reports_reencrypted_volume_keys(run):
    assert run("db", "renew_secrets")[:2] == (0, "Re-encrypted the volume keys of 0 servers\n")


@pytest.mark.parametrize(("arguments", "says"), [
    (("--older-than", "60"), "--older-than"), (("--history-older-than", "0"), "--history-older-than"),
    (("--history-keep", "-1"), "--history-keep"), (("--history-keep", "5"), "--history-older-than"),
    (("--page", "0"), "--page"), (("--archive", "/nowhere/at/all"), "/nowhere/at/all")])
def test_invalid_purge_arguments_are_refused(run, arguments, says):
    code, _out, err = run("db", "purge", *arguments)
    assert (code, says in err) == (127, True)


def test_purge_does_not_disturb_boots_and_deletes(run, suite, admin, flavor, image_id):
    db = suite.conductor.core.db

    def come_and_go(number):
        for _round in range(5):
            uuid = admin.boot(flavor, image_id)
            admin.wait(uuid, "ACTIVE")
            admin.delete(f"/servers/{uuid}")
            admin.wait_gone(uuid)
            deleted_long_ago(suite, uuid)

    with concurrent.futures.ThreadPoolExecutor(3) as users:
        busy = [users.submit(come_and_go, number) for number in range(3)]
        removed = purge.Removed()
        while not all(user.done() for user in busy):
            an_hour_ago = utcnow() - datetime.timedelta(hours=1)
            removed += sum(purge.purge(db, purge.What(an_hour_ago, an_hour_ago), page=2), purge.Removed())
        for user in busy:
            user.result()
    assert removed["instances"] > 0
    assert run("audit", "--settle", "0.1") == (0, "", "")


def test_upgrade_check_passes_on_a_running_suite(suite, capsys):
    assert status.main(["upgrade", "check"]) == 0
    assert capsys.readouterr().out.count("Success") == 3


def test_db_version_is_the_newest_schema_version(run):
    from nova.db.maintenance import readiness

    assert run("db", "version")[1].strip() == readiness.newest()


def test_volume_command_creates_shows_lists_and_deletes(run):
    code, out, _err = run("volume", "create", "--project", "p1", "--size", "2", "--name", "made")
    uuid = out.strip()
    assert code == 0
    wait_for(lambda: "available" in run("volume", "show", uuid)[1])
    assert re.search(r"size_gb\W+2\b", run("volume", "show", uuid)[1])
    listed = run("volume", "list", "--project", "p1")[1]
    assert uuid in listed
    assert "made" in listed
    assert uuid not in run("volume", "list", "--project", "p2")[1]
    assert run("volume", "delete", uuid)[0] == 0
    wait_for(lambda: uuid not in run("volume", "list")[1])
    code, out, err = run("volume", "show", uuid)
    assert (code, out) == (127, "")
    assert uuid in err


def test_volume_command_derives_the_size_from_the_image(run, image_id):
    code, out, _err = run("volume", "create", "--project", "p1", "--image", image_id)
    assert code == 0
    shown = run("volume", "show", out.strip())[1]
    assert image_id in shown
    wait_for(lambda: "available" in run("volume", "show", out.strip())[1])
    assert run("volume", "delete", out.strip())[0] == 0


@pytest.mark.parametrize(("arguments", "says"), [
    ((), "--size or --image is needed"),
    (("--image", "00000000-0000-4000-8000-000000000000"), "could not be found"),
])
def test_invalid_volume_create_is_refused_without_a_traceback(run, arguments, says):
    code, out, err = run("volume", "create", "--project", "p1", *arguments)
    assert (code, out) == (127, "")
    assert says in err
    assert "Traceback" not in err


def test_delete_attached_volume_is_refused(run, admin, flavor, image_id):
    volume = run("volume", "create", "--project", admin.project, "--size", "1")[1].strip()
    wait_for(lambda: "available" in run("volume", "show", volume)[1])
    server = admin.boot(flavor, image_id)
    admin.wait(server, "ACTIVE")
    admin.post(f"/servers/{server}/os-volume_attachments", {"volumeAttachment": {"volumeId": volume}})
    wait_for(lambda: "in-use" in run("volume", "show", volume)[1])
    code, _out, err = run("volume", "delete", volume)
    assert code == 127
    assert volume in err
    admin.delete(f"/servers/{server}")
    admin.wait_gone(server)
    wait_for(lambda: "available" in run("volume", "show", volume)[1])
    assert run("volume", "delete", volume)[0] == 0


def test_share_command_creates_lists_shows_and_deletes(run):
    code, out, _err = run("share", "create", "--project", "p-shares", "--name", "docs")
    assert code == 0
    uuid = out.strip()
    assert uuid in run("share", "list")[1]
    assert uuid not in run("share", "list", "--project", "somebody-else")[1]
    shown = run("share", "show", uuid)[1]
    assert "docs" in shown
    assert "p-shares" in shown
    code, out, _err = run("share", "delete", uuid)
    assert code == 0
    assert f"The directory {uuid} stays" in out
    assert run("share", "show", uuid)[0] == 127
