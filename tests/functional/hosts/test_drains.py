"""nova-manage host drain and evacuate: conductors move all servers off a host, with or without a client."""

import json
import threading

import pytest

from nova import context
from nova.cmd import manage
from nova.compute.service import ComputeService
from nova.conductor.acceptance import start
from nova.db.hosts import drains
from nova.objects.base import new_uuid, utcnow
from nova.objects.hosts.drain import Drain, DrainedServer
from tests.functional.client import wait_for
from tests.functional.several_hosts import SECOND, newest_action, refused, service_of, set_service, wait_scheduler


@pytest.fixture
def run(suite, capsys):
    """Return a function that runs nova-manage host and returns its exit code and output."""
    def manage_nova(*arguments):
        capsys.readouterr()
        code = manage.main(["host", *arguments])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return manage_nova


@pytest.fixture
def emptied(suite, pair, admin):
    """Return the host to drain; it accepts servers again after the test."""
    host = pair.first.host
    yield host
    db_ = suite.conductor.core.db
    db_.write(lambda connection: drains.forget_host(connection, host))
    set_service(admin, host, forced_down=False, status="enabled")
    wait_for(lambda: service_of(admin, host)["state"] == "up", reason="the host is up")
    wait_scheduler(suite, host, True)


def report(run, *arguments):
    code, out, err = run(*arguments, "--json")
    assert out, err
    told = json.loads(out)
    return code, {line["instance_uuid"]: line for line in told["servers"]}, told["drain"]


def stopped(pair, admin):
    uuid = pair.boot()
    admin.action(uuid, "os-stop", expect=202)
    admin.wait(uuid, "SHUTOFF")
    return uuid


def test_drain_live_migrates_running_and_cold_migrates_stopped_servers(run, pair, admin, emptied):
    running, off = pair.boot(), stopped(pair, admin)
    code, lines, told = report(run, "drain", emptied, "--reason", "a fan is loud")
    assert (code, told["state"]) == (0, "ended")
    assert {uuid: (line["state"], line["how"], line["destination"]) for uuid, line in lines.items()} == {
        running: ("moved", "live", SECOND), off: ("moved", "cold", SECOND)}
    assert [admin.server(uuid)["status"] for uuid in (running, off)] == ["ACTIVE", "SHUTOFF"]
    assert pair.only_on(running, pair.second)
    assert pair.only_on(off, pair.second)
    service = service_of(admin, emptied)
    assert (service["status"], service["disabled_reason"]) == ("disabled", "a fan is loud")


def test_drain_report_has_a_line_per_server_and_a_summary(run, pair, admin, emptied):
    moved, kept = pair.boot(name="goes"), pair.boot(name="stays")
    admin.action(kept, "suspend", expect=202)
    admin.wait(kept, "SUSPENDED")
    code, out, _err = run("drain", emptied)
    assert code == 1
    told = {line.split("|")[1].strip(): line for line in out.splitlines() if line.startswith("|")}
    assert all(word in told[moved] for word in ("goes", "moved", "live", SECOND))
    assert "resume it first" in told[kept]
    assert out.splitlines()[-1] == f"drain of {emptied}: ended; 1 moved, 1 left"
    assert admin.server(kept)["OS-EXT-SRV-ATTR:host"] == emptied


def test_drain_dry_run_shows_methods_and_changes_nothing(run, pair, admin, emptied):
    running, off = pair.boot(), stopped(pair, admin)
    code, out, _err = run("drain", emptied, "--dry-run")
    assert code == 0
    assert "live" in next(line for line in out.splitlines() if running in line)
    assert "cold" in next(line for line in out.splitlines() if off in line)
    assert service_of(admin, emptied)["status"] == "enabled"
    assert run("drain", emptied, "--status")[0] == 127


def test_drain_cold_migrates_a_running_server_only_with_cold(run, pair, admin, emptied):
    uuid = pair.boot()
    pair.first.machine.driver.behaviour.failure["live_migrate"] = 1.0
    code, lines, _told = report(run, "drain", emptied)
    assert (code, lines[uuid]["state"]) == (1, "left")
    assert "--cold" in lines[uuid]["reason"]
    code, lines, _told = report(run, "drain", emptied, "--cold")
    assert (code, lines[uuid]["how"], lines[uuid]["destination"]) == (0, "cold", SECOND)
    assert admin.server(uuid)["status"] == "ACTIVE"


def test_drain_limits_parallel_moves(run, pair, admin, emptied):
    uuids = [pair.boot() for _number in range(4)]
    driver, lock, now, most = pair.first.machine.driver, threading.Lock(), [], []
    real = driver.live_source.migrate

    def counted(instance, *arguments):
        with lock:
            now.append(instance.uuid)
            most.append(len(now))
        real(instance, *arguments)
        with lock:
            now.remove(instance.uuid)

    driver.live_source.migrate = counted
    try:
        assert report(run, "drain", emptied, "--parallel", "2")[0] == 0
    finally:
        del driver.live_source.migrate
    assert len(most) == len(uuids)
    assert max(most) <= 2


def test_drain_continues_without_its_client_and_can_be_stopped(run, pair, admin, emptied, hold):
    uuids = {pair.boot() for _number in range(3)}
    held = hold("live_source.migrate")
    code, lines, told = report(run, "drain", emptied, "--parallel", "1", "--timeout", "0")
    assert (code, told["state"]) == (3, "running")
    held.wait_until_begun()
    code, lines, told = report(run, "drain", emptied, "--stop", "--timeout", "0")
    assert (code, told["state"], [line["state"] for line in lines.values()]) == (3, "stopping", ["moving"])
    held.let_go()
    wait_for(lambda: report(run, "drain", emptied, "--status")[0] != 3, reason="the drain has ended")
    code, lines, told = report(run, "drain", emptied, "--status")
    assert (code, [line["state"] for line in lines.values()]) == (0, ["moved"])
    code, lines, told = report(run, "drain", emptied)
    assert (code, len(lines)) == (0, 2)
    assert {admin.server(uuid)["OS-EXT-SRV-ATTR:host"] for uuid in uuids} == {SECOND}


def test_enabling_a_host_stops_its_drain(run, suite, pair, admin, emptied, hold):
    for _number in range(2):
        pair.boot()
    held = hold("live_source.migrate")
    report(run, "drain", emptied, "--parallel", "1", "--timeout", "0")
    held.wait_until_begun()
    set_service(admin, emptied, status="enabled")
    wait_for(lambda: report(run, "drain", emptied, "--status")[2]["state"] == "stopping",
             reason="the drain is stopping")
    held.let_go()
    wait_for(lambda: report(run, "drain", emptied, "--status")[2]["state"] == "ended", reason="the drain has ended")
    assert held.calls == 1


def test_drain_waits_for_a_server_with_a_running_action(run, pair, admin, emptied, hold):
    uuid = pair.boot()
    held = hold("power.reboot")
    admin.action(uuid, "reboot", {"type": "HARD"}, expect=202)
    held.wait_until_begun()
    code, lines, _told = report(run, "drain", emptied, "--patience", "0")
    assert (code, lines[uuid]["state"]) == (1, "left")
    assert "rebooting_hard" in lines[uuid]["reason"]
    report(run, "drain", emptied, "--timeout", "0")
    wait_for(lambda: report(run, "drain", emptied, "--status")[1].get(uuid, {}).get("state") == "waiting",
             reason="the drain waits for the server")
    held.let_go()
    wait_for(lambda: report(run, "drain", emptied, "--status")[0] == 0, reason="the server has left the host")
    assert admin.server(uuid)["OS-EXT-SRV-ATTR:host"] == SECOND


def test_drain_of_a_failed_conductor_is_taken_over(run, suite, pair, admin, emptied):
    """Check both cases: the conductor failed before or after it requested the move; the row has the request id."""
    core, engine = suite.conductor.core, suite.conductor.engine
    asked, not_asked = stopped(pair, admin), stopped(pair, admin)
    wanted = Drain(uuid=new_uuid(), host=emptied, parallel=2, patience=60, created_at=utcnow())

    def as_it_left_it(connection):
        begun = drains.begin(connection, wanted)
        drains.take(connection, begun.uuid, "dead", utcnow())
        drains.note(connection, begun.uuid, "dead", utcnow(), [
            DrainedServer(drain_uuid=begun.uuid, instance_uuid=uuid, state="moving", how="cold",
                          request_id=f"req-{uuid}", since=utcnow(), started_at=utcnow())
            for uuid in (asked, not_asked)])

    set_service(admin, emptied, status="disabled")
    wait_scheduler(suite, emptied, False)
    ctx = context.RequestContext(overwrite=False, is_admin=True, roles=["admin"], request_id=f"req-{asked}")
    start(engine, ctx, asked, "migrate", {})
    core.db.write(as_it_left_it)
    wait_for(lambda: report(run, "drain", emptied, "--status")[0] == 0, reason="all servers have left the host")
    _code, lines, _told = report(run, "drain", emptied, "--status")
    assert lines[asked]["request_id"] == f"req-{asked}"
    assert lines[not_asked]["request_id"] != f"req-{not_asked}"
    for uuid in (asked, not_asked):
        shown = admin.server(uuid)
        assert (shown["OS-EXT-SRV-ATTR:host"], shown["status"]) == (SECOND, "SHUTOFF")


def test_drain_leaves_a_server_in_verify_resize(run, pair, admin, emptied):
    uuid = pair.boot()
    admin.action(uuid, "migrate", expect=202)
    admin.wait(uuid, "VERIFY_RESIZE")
    code, lines, _told = report(run, "drain", emptied)
    assert (code, lines[uuid]["state"]) == (1, "left")
    assert "confirmed or reverted" in lines[uuid]["reason"]
    assert admin.server(uuid)["status"] == "VERIFY_RESIZE"


def test_drain_report_has_the_request_id_of_each_move(run, pair, admin, emptied):
    uuid = pair.boot()
    _code, lines, _told = report(run, "drain", emptied)
    assert newest_action(admin, uuid, "live-migration")["request_id"] == lines[uuid]["request_id"]


def test_evacuate_moves_servers_of_a_failed_host(run, suite, pair, admin, emptied):
    uuid, off = pair.boot(), stopped(pair, admin)
    assert run("evacuate", emptied)[0] == 127
    set_service(admin, emptied, forced_down=True)
    assert run("drain", emptied)[0] == 127
    code, lines, _told = report(run, "evacuate", emptied)
    assert (code, {line["how"] for line in lines.values()}) == (0, {"evacuate"})
    assert {admin.server(each)["OS-EXT-SRV-ATTR:host"] for each in (uuid, off)} == {SECOND}
    pair.first.reconciler.compare()  # The host is up again: it removes the guests of evacuated servers.
    wait_for(lambda: pair.where(uuid) == ([SECOND], [SECOND]), reason="the guest on the source host is removed")
    wait_for(lambda: pair.where(off) == ([SECOND], [SECOND]), reason="the guest on the source host is removed")


@pytest.mark.parametrize(("arguments", "code"), [
    (("drain", "no-such-host"), 127), (("drain", "no-such-host", "--dry-run"), 127),
    (("drain", "no-such-host", "--stop"), 127)])
def test_drain_of_an_unknown_host_is_refused(run, arguments, code):
    found, _out, err = run(*arguments)
    assert found == code
    assert "no-such-host" in err


def test_drain_to_an_invalid_target_is_refused(run, admin, pair, emptied):
    assert "nowhere" in run("drain", emptied, "--to", "nowhere")[2]
    assert run("drain", emptied, "--to", emptied)[0] == 127
    assert service_of(admin, emptied)["status"] == "enabled"


def test_deleted_evacuated_host_removes_its_guests_when_it_returns(
        run, suite, pair, admin, flavor, image_id):
    uuid = admin.boot(flavor, image_id, availability_zone=f"nova:{SECOND}")
    admin.wait(uuid, "ACTIVE")
    ident, machine = service_of(admin, SECOND)["id"], pair.second.machine
    assert refused(lambda: admin.delete(f"/os-services/{ident}"))[0] == 409
    pair.second.stop()
    set_service(admin, SECOND, forced_down=True)
    assert run("evacuate", SECOND)[0] == 0
    admin.delete(f"/os-services/{ident}", expect=204)
    assert SECOND not in {node["hypervisor_hostname"] for node in admin.get("/os-hypervisors")["hypervisors"]}
    assert uuid in {guest.uuid for guest in machine.driver.guests.all()}
    back = ComputeService(suite.transport, host=SECOND, machine=machine)
    back.start()
    try:
        wait_for(lambda: uuid not in {guest.uuid for guest in machine.driver.guests.all()},
                 reason="the guest is removed")
        assert admin.server(uuid)["OS-EXT-SRV-ATTR:host"] == pair.first.host
    finally:
        back.stop()
