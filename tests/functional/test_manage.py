"""nova-manage and nova-status against the running suite."""

import concurrent.futures
import json
import os
import time

import pytest
import sqlalchemy as sa

from nova.cmd import manage, status
from nova.db import audit, models


def eventually(condition):
    end = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.2)


@pytest.fixture
def run(suite, capsys):
    """Runs nova-manage and returns its exit code and what it printed."""
    def manage_nova(*arguments):
        capsys.readouterr()
        code = manage.main(list(arguments))
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return manage_nova


def test_services_are_listed_with_their_state(run):
    code, out, _err = run("service", "list")
    assert code == 0
    assert all(binary in out for binary in ("nova-conductor", "nova-scheduler", "nova-compute"))
    assert out.count(" up ") == 3


def test_services_are_listed_with_their_load(run):
    def loads():
        code, out, _err = run("service", "list", "--json")
        assert code == 0
        return [load for service in json.loads(out) for load in service.get("load") or []]

    eventually(lambda: len(loads()) == 3)
    assert {load["pid"] for load in loads()} == {os.getpid()}
    assert all(load["rss_mb"] > 10 for load in loads())
    assert " RSS MB " in run("service", "list")[1]


def test_a_network_is_made_listed_and_deleted(run):
    code, out, _err = run("network", "create", "--name", "made", "--cidr", "10.77.0.0/24")
    assert code == 0
    assert run("network", "create", "--name", "made", "--cidr", "10.77.0.0/24", "--if-missing")[0] == 0
    assert out.strip() in run("network", "list")[1]
    assert run("network", "delete", "made")[0] == 0
    assert out.strip() not in run("network", "list")[1]


def test_a_network_with_ipv6_in_tunnels_is_made(run):
    code, out, err = run("network", "create", "--name", "six", "--cidr", "10.78.0.0/24", "--cidr-v6", "fd00:78::/64",
                         "--ipv6-mode", "dhcpv6-stateful", "--vni", "0")
    assert code == 0, err
    listed = run("network", "list")[1]
    assert "fd00:78::/64" in next(line for line in listed.splitlines() if out.strip() in line)
    assert run("network", "delete", "six")[0] == 0


@pytest.mark.parametrize(("cidr", "text"), [("10.77.0.0/33", "10.77.0.0/33"), ("banana", "banana")])
def test_a_bad_network_is_refused_by_name(run, cidr, text):
    code, _out, err = run("network", "create", "--name", "bad", "--cidr", cidr)
    assert code == 127
    assert text in err


def test_explain_tells_per_host_why(run, admin, flavor):
    code, out, _err = run("schedule", "explain", "--flavor", flavor)
    assert (code, "passes" in out) == (0, True)
    huge = admin.flavor(ram=10_000_000)
    code, out, _err = run("schedule", "explain", "--flavor", huge)
    assert code == 1
    assert "MEMORY_MB" in out


def test_the_audit_is_silent_when_all_is_well(run, admin, flavor, image_id):
    admin.wait(admin.boot(flavor, image_id), "ACTIVE")
    assert run("audit", "--settle", "0.1") == (0, "", "")


def test_the_audit_finds_and_repairs(run, suite, admin, flavor, image_id):
    uuid = admin.boot(flavor, image_id)
    admin.wait(uuid, "ACTIVE")
    db = suite.conductor.core.db
    db.write(lambda connection: connection.execute(sa.update(models.inventories).where(
        models.inventories.c.resource_class == "VCPU").values(used=7)))
    db.write(lambda connection: connection.execute(sa.update(models.quota_usages).where(
        models.quota_usages.c.project_id == "p").values(ram=1)))
    suite.compute.machine.driver.adopt("0f5c5b0e-1111-4000-8000-000000000000", 1)
    code, out, _err = run("audit", "--repair", "--settle", "0.1")
    assert code == 1
    assert "VCPU: 7 used, but the claims sum up to 1 (repaired)" in out
    assert "ram is 1, counted 128" in out
    assert "0f5c5b0e-1111-4000-8000-000000000000" in out
    # reaping is a message to the host
    suite.compute.reconciler.compare()
    assert run("audit", "--settle", "0.1") == (0, "", "")


def test_a_busy_suite_is_audited_without_findings(suite, admin, flavor, image_id):
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


def test_a_server_without_a_guest_is_found(run, suite, admin, flavor, image_id):
    uuid = admin.boot(flavor, image_id)
    admin.wait(uuid, "ACTIVE")
    suite.compute.machine.driver.remove_orphan(uuid)
    code, out, _err = run("audit", "--settle", "0.1")
    assert (code, uuid in out) == (1, True)


def test_the_upgrade_check_passes_on_a_running_suite(suite, capsys):
    assert status.main(["upgrade", "check"]) == 0
    assert capsys.readouterr().out.count("Success") == 3


def test_the_schema_is_at_its_newest_version(run):
    from nova.db import migrate

    assert run("db", "version")[1].strip() == migrate.newest()
