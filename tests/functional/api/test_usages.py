"""Usage of servers in a period, and usage audits."""

import datetime
import urllib.parse

import pytest
import sqlalchemy as sa

from nova.conf import CONF
from nova.db.accounts import usages
from nova.db.servers import servers
from nova.objects.base import new_uuid, utcnow
from tests.functional.client import Client
from tests.functional.services.test_costs import measured
from tests.functional.several_hosts import refused

MAY = {"start": "2020-05-01T00:00:00", "end": "2020-06-01T00:00:00"}
_FAR = datetime.datetime(2019, 1, 1, tzinfo=datetime.UTC)


def at(text):
    return datetime.datetime.fromisoformat(text).replace(tzinfo=datetime.UTC)


@pytest.fixture
def size(admin):
    return admin.flavor(ram=512, vcpus=2, disk=10, **{"OS-FLV-EXT-DATA:ephemeral": 5})


@pytest.fixture
def used(suite, admin, size, image_id):
    """Return a function that creates a server running from ``begin`` to ``end`` (None: still runs)."""
    gone = []

    def used(project, begin, end=None):
        client = Client(suite.url, project=project)
        uuid = client.boot(size, image_id)
        client.wait(uuid, "ACTIVE")
        if end:
            client.delete(f"/servers/{uuid}")
            client.wait_gone(uuid)
            gone.append(uuid)
        changes = {"launched_at": at(begin), **({"terminated_at": at(end)} if end else {})}
        suite.conductor.core.db.write(lambda connection: servers.update(connection, uuid, changes))
        return uuid

    yield used
    for uuid in gone:  # outside of the periods of other tests
        suite.conductor.core.db.write(lambda connection, uuid=uuid: servers.update(
            connection, uuid, {"launched_at": _FAR, "terminated_at": _FAR}))


@pytest.fixture
def projects():
    """Return the ids of two projects in ascending order."""
    return sorted(new_uuid().replace("-", "") for _number in range(2))


def usage(client, path="", **query):
    return client.get(f"/os-simple-tenant-usage{path}", **{**MAY, **query})


def mine(client, projects, **query):
    return [shown for shown in usage(client, **query)["tenant_usages"] if shown["tenant_id"] in projects]


def test_server_hours_count_within_the_period_only(admin, used, projects, size):
    ended = used(projects[0], "2020-04-30T12:00:00", "2020-05-01T06:00:00")
    runs = used(projects[0], "2020-05-31T00:00:00.500000")
    used(projects[0], "2020-06-01T00:00:00")
    used(projects[0], "2020-04-01T00:00:00", "2020-04-30T23:59:59")
    hours = 6 + (24 - 0.5 / 3600)
    [shown] = mine(admin, projects)
    assert shown == {
        "tenant_id": projects[0], "start": "2020-05-01T00:00:00.000000", "stop": "2020-06-01T00:00:00.000000",
        "total_hours": pytest.approx(hours), "total_vcpus_usage": pytest.approx(2 * hours),
        "total_memory_mb_usage": pytest.approx(512 * hours), "total_local_gb_usage": pytest.approx(15 * hours)}
    servers = {server["instance_id"]: server for server in usage(
        admin, f"/{projects[0]}")["tenant_usage"]["server_usages"]}
    assert set(servers) == {ended, runs}
    assert servers[ended] == {
        "instance_id": ended, "name": "server", "tenant_id": projects[0], "vcpus": 2,
        "flavor": admin.get(f"/flavors/{size}")["flavor"]["name"],
        "memory_mb": 512, "local_gb": 15, "hours": 6.0, "uptime": 18 * 3600, "state": "terminated",
        "started_at": "2020-04-30T12:00:00.000000", "ended_at": "2020-05-01T06:00:00.000000"}
    assert (servers[runs]["ended_at"], servers[runs]["state"]) == (None, "active")
    since = at("2020-05-31T00:00:00.500000")
    assert servers[runs]["uptime"] == pytest.approx((utcnow() - since).total_seconds(), abs=60)


def test_usage_is_listed_per_project_and_detailed_on_request(admin, used, projects):
    for project in projects:
        used(project, "2020-05-01T00:00:00", "2020-05-01T01:00:00")
    used(projects[0], "2020-05-01T00:00:00", "2020-05-01T01:00:00")
    assert [(shown["tenant_id"], shown["total_hours"]) for shown in mine(admin, projects)] == [
        (projects[0], 2.0), (projects[1], 1.0)]
    assert [len(shown["server_usages"]) for shown in mine(admin, projects, detailed=1)] == [2, 1]
    assert all("server_usages" not in shown for shown in mine(admin, projects, detailed=0))


def test_usage_is_paginated_by_servers_from_2_40(admin, used, projects):
    made = sorted(used(projects[0], "2020-05-01T00:00:00", "2020-05-01T01:00:00") for _number in range(3))
    path = f"/{projects[0]}"
    first = usage(admin, path, limit=2)
    assert [server["instance_id"] for server in first["tenant_usage"]["server_usages"]] == made[:2]
    assert first["tenant_usage"]["total_hours"] == 2.0
    [link] = first["tenant_usage_links"]
    query = dict(urllib.parse.parse_qsl(urllib.parse.urlsplit(link["href"]).query))
    assert (link["rel"], query) == ("next", {**MAY, "limit": "2", "marker": made[1]})
    last = usage(admin, path, **query)
    assert [server["instance_id"] for server in last["tenant_usage"]["server_usages"]] == made[2:]
    assert "tenant_usage_links" not in last
    assert mine(admin, projects, limit=1, marker=made[0])[0]["total_hours"] == 1.0
    assert usage(admin, limit=0) == {"tenant_usages": []}
    unknown = new_uuid()
    assert refused(lambda: usage(admin, path, marker=unknown)) == (400, f"marker [{unknown}] not found")
    others = usage(admin, f"/{projects[1]}")
    assert others == {"tenant_usage": {}}
    assert refused(lambda: usage(admin, f"/{projects[1]}", marker=made[0]))[0] == 400


def test_usage_before_2_40_is_limited_to_max_limit(admin, used, projects):
    for _number in range(2):
        used(projects[0], "2020-05-01T00:00:00", "2020-05-01T01:00:00")
    CONF.set_override("max_limit", 1, group="api")
    try:
        shown = usage(admin, f"/{projects[0]}", version="2.39", limit=5, marker="ignored")
        assert len(shown["tenant_usage"]["server_usages"]) == 1
        assert set(shown) == {"tenant_usage"}
        assert "tenant_usage_links" in usage(admin, f"/{projects[0]}", version="2.40")
    finally:
        CONF.clear_override("max_limit", group="api")


@pytest.mark.parametrize("text", ["2020-05-01T00:00:00", "2020-05-01T00:00:00.000001", "2020-05-01 00:00:00.5"])
def test_usage_accepts_three_time_formats(admin, text):
    assert usage(admin, start=text)


@pytest.mark.parametrize(("query", "message"), [
    ({"start": "yesterday"}, "Invalid datetime string: Datetime is in invalid format"),
    ({"start": "2020-05-01"}, "Invalid datetime string: Datetime is in invalid format"),
    ({"end": "2020-05-01T00:00:00"}, "Invalid start time. The start time cannot occur after the end time."),
    ({"start": "2020-05-02T00:00:00", "end": "2020-05-02T00:00:00"},
     "Invalid start time. The start time cannot occur after the end time."),
])
def test_usage_refuses_invalid_times(admin, query, message):
    assert refused(lambda: admin.get("/os-simple-tenant-usage", **query)) == (400, message)


def test_usage_without_a_project_id_is_not_found(admin):
    assert refused(lambda: usage(admin, "/"))[0] == 404


def test_usage_without_times_succeeds(admin):
    assert set(admin.get("/os-simple-tenant-usage", version="2.1")) == {"tenant_usages"}


def test_reader_role_sees_usage_of_its_own_project_only(suite, projects):
    reader = Client(suite.url, project=projects[0], roles="reader")
    assert usage(reader, f"/{projects[0]}") == {"tenant_usage": {}}
    assert refused(lambda: usage(reader, f"/{projects[1]}"))[0] == 403
    assert refused(lambda: usage(reader)) == (
        403, "Policy doesn't allow os_compute_api:os-simple-tenant-usage:list to be performed.")


def test_usage_list_takes_a_constant_number_of_statements(suite, admin, used, projects):
    def asked():
        _answer, messages, statements = measured(suite, admin, lambda: usage(admin, detailed=1))
        assert messages == {"usages.index": 2}
        return len(statements)

    used(projects[0], "2020-05-01T00:00:00", "2020-05-02T00:00:00")
    few = asked()
    for project in projects:
        used(project, "2020-05-01T00:00:00", "2020-05-02T00:00:00")
    assert asked() == few <= 2


def test_usage_query_uses_an_index_without_sorting(suite):
    asked = []

    def look(connection):
        sa.event.listen(connection, "before_cursor_execute", lambda *call: asked.append(call[2:4]))
        usages.index(connection, at("2020-05-01T00:00:00"), at("2020-06-01T00:00:00"), 10, "p")
        statement, parameters = asked[0]
        return connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", parameters).all()

    plan = str(suite.conductor.core.db.read(look))
    assert "ix_instances_usage" in plan
    assert "TEMP B-TREE" not in plan.partition("SCAN anon_1")[0], "more than the servers of the page are sorted"


# --- audits ------------------------------------------------------------------------------------------
def test_usage_audit_log_reports_no_hosts(admin, member):
    shown = admin.get("/os-instance_usage_audit_log/2012-07-05 10:00:00")["instance_usage_audit_log"]
    assert shown == {
        "period_beginning": "2012-06-01 00:00:00", "period_ending": "2012-07-01 00:00:00", "num_hosts": 0,
        "num_hosts_done": 0, "num_hosts_running": 0, "num_hosts_not_run": 0, "hosts_not_run": [],
        "total_instances": 0, "total_errors": 0, "log": {}, "overall_status": "ALL hosts done. 0 errors."}
    latest = admin.get("/os-instance_usage_audit_log")["instance_usage_audit_logs"]
    assert latest["period_ending"] == f"{utcnow():%Y-%m}-01 00:00:00"
    assert refused(lambda: member.get("/os-instance_usage_audit_log"))[0] == 403


@pytest.mark.parametrize("text", ["yesterday", "2012-07-05", "2012-07-05T10:00:00", "0001-01-01 00:00:00"])
def test_usage_audit_log_refuses_invalid_times(admin, text):
    assert refused(lambda: admin.get(f"/os-instance_usage_audit_log/{text}")) == (
        400, f"Invalid timestamp for date {text}")
