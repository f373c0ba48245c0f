"""os-migrations and servers/{id}/migrations: fields per microversion and role, abort and force-complete."""

import datetime

import pytest

from nova import exception
from nova.objects.accounts.flavor import Flavor
from nova.objects.servers.instance import Instance
from nova.objects.servers.migration import Migration, MigrationQuery
from nova.rpcapi.servers import Migrations, Servers
from tests.unit.api.canned import stub

WHEN = datetime.datetime(2026, 1, 2, 3, 4, 5, tzinfo=datetime.UTC)
SERVER, UUID, OTHER = (f"{digit * 8}-0000-4000-8000-000000000000" for digit in "678")
PATH = f"/v2.1/servers/{SERVER}/migrations"


def migration(**changes):
    values = {
        "id": 7, "uuid": UUID, "instance_uuid": SERVER, "migration_type": "live-migration", "status": "running",
        "source_compute": "h1", "source_node": "n1", "dest_compute": "h2", "dest_node": "n2", "dest_host": "192.0.2.2",
        "old_flavor": Flavor(id=1, flavorid="a", name="a", memory_mb=1, vcpus=1),
        "new_flavor": Flavor(id=2, flavorid="b", name="b", memory_mb=1, vcpus=1), "user_id": "u", "project_id": "p",
        "memory_total": 30, "memory_processed": 10, "memory_remaining": 20, "created_at": WHEN}
    return Migration(**{**values, **changes})


@pytest.fixture
def found(api):
    api.headers = {"X-Project-Id": "p"}
    stub(api, "servers", Servers, get=Instance(
        uuid=SERVER, project_id="p", user_id="u", display_name="s", hostname="s", created_at=WHEN,
        flavor=Flavor(flavorid="1", name="f", memory_mb=1, vcpus=1)))
    return stub(api, "migrations", Migrations, index=[migration()], in_progress=[migration()], get=migration())


def listed(api, version="2.80", query="", roles="admin"):
    return api.get(f"/v2.1/os-migrations{query}", version=version, roles=roles).json["migrations"][0]


# -- all ----------------------------------------------------------------------------------------------
def test_migration_fields_per_microversion(api, found):
    links = [{"rel": "self", "href": f"http://api:8774{PATH}/7"},
             {"rel": "bookmark", "href": f"http://api:8774/servers/{SERVER}/migrations/7"}]
    first = {
        "id": 7, "instance_uuid": SERVER, "status": "running", "source_compute": "h1", "source_node": "n1",
        "dest_compute": "h2", "dest_node": "n2", "dest_host": "192.0.2.2", "old_instance_type_id": 1,
        "new_instance_type_id": 2, "created_at": "2026-01-02T03:04:05.000000", "updated_at": None}
    typed = {**first, "migration_type": "live-migration", "links": links}
    assert listed(api, "2.22") == first
    assert listed(api, "2.23") == listed(api, "2.58") == typed
    assert listed(api, "2.59") == listed(api, "2.79") == {**typed, "uuid": UUID}
    assert listed(api, "2.80") == {**typed, "uuid": UUID, "user_id": "u", "project_id": "p"}


@pytest.mark.parametrize("changes", [
    {"migration_type": "resize"}, {"status": "accepted"}, {"status": "completed"}, {"status": "running (post-copy)"}])
def test_only_running_live_migrations_have_links(api, found, changes):
    found.answers["index"] = [migration(**changes)]
    assert "links" not in listed(api)


def test_migration_without_a_destination_shows_null(api, found):
    found.answers["index"] = [migration(dest_compute="", dest_node="", dest_host="", new_flavor=None)]
    shown = listed(api)
    assert {name for name, value in shown.items() if value is None} == {
        "dest_compute", "dest_node", "dest_host", "new_instance_type_id", "updated_at"}


def test_migration_hosts_are_null_for_managers(api, found):
    places = ("source_compute", "source_node", "dest_compute", "dest_node", "dest_host")
    assert {listed(api, roles="manager")[name] for name in places} == {None}
    answer = api.get(PATH, version="2.80", roles="manager").json["migrations"][0]
    assert {answer[name] for name in places} == {None}


def test_migration_host_filters_of_managers_are_ignored(api, found):
    listed(api, query="?host=h1&source_compute=h2&status=error", roles="manager")
    assert found.last("index")["query"] == MigrationQuery(status="error", project_id="p")


@pytest.mark.parametrize(("query", "version", "expected"), [
    ("?host=h1&status=error&instance_uuid=i&source_compute=h2&migration_type=resize", "2.1",
     {"host": "h1", "status": "error", "instance_uuid": "i", "source_compute": "h2", "migration_type": "resize"}),
    ("?limit=5&user_id=u&nonsense=1", "2.58", {}),
    (f"?limit=5&marker={UUID}", "2.59", {"limit": 5, "marker": UUID}),
    ("?limit=5000", "2.59", {}),
    ("?changes-since=2026-01-02T03:04:05Z", "2.59", {"changes_since": WHEN}),
    ("?changes-before=2026-01-02T03:04:05Z", "2.66", {"changes_before": WHEN}),
    ("?user_id=u&project_id=x", "2.80", {"user_id": "u", "project_id": "x"})])
def test_migration_filters_per_microversion(api, found, query, version, expected):
    listed(api, version, query)
    assert found.last("index")["query"] == MigrationQuery(**expected)


@pytest.mark.parametrize(("query", "version"), [
    ("?nonsense=1", "2.59"), ("?limit=-1", "2.59"), ("?limit=1&limit=2", "2.59"), ("?changes-since=now", "2.59"),
    ("?changes-before=2026-01-01T00:00:00", "2.65"), ("?user_id=u", "2.79"),
    ("?changes-since=2026-01-02T00:00:00&changes-before=2026-01-01T00:00:00", "2.66")])
def test_invalid_migration_queries_are_refused(api, found, query, version):
    assert api.get(f"/v2.1/os-migrations{query}", version=version).error[1] == 400
    assert not found.calls


def test_full_page_of_migrations_has_a_next_link_from_2_59(api, found):
    assert api.get("/v2.1/os-migrations?host=h1&limit=1", version="2.59").json["migrations_links"] == [
        {"rel": "next", "href": f"http://api:8774/v2.1/os-migrations?host=h1&limit=1&marker={UUID}"}]
    assert "migrations_links" not in api.get("/v2.1/os-migrations?limit=2", version="2.59").json
    assert "migrations_links" not in api.get("/v2.1/os-migrations?limit=1", version="2.58").json


def test_hidden_filter_of_migrations_matches_no_migration(api, found):
    assert api.get("/v2.1/os-migrations?hidden=true").json == {"migrations": []}
    assert listed(api, query="?hidden=0")["id"] == 7


def test_managers_list_migrations_of_their_own_project_only(api, found):
    for query in ("", "?project_id=p"):
        listed(api, query=query, roles="manager")
        assert found.last("index")["query"].project_id == "p"
    assert api.get("/v2.1/os-migrations?project_id=x", version="2.80", roles="manager").error[1] == 403
    assert api.get("/v2.1/os-migrations", roles="member").error[1] == 403


# -- of a server --------------------------------------------------------------------------------------
def test_server_migration_fields_per_microversion(api, found):
    first = {
        "id": 7, "server_uuid": SERVER, "status": "running", "source_compute": "h1", "source_node": "n1",
        "dest_compute": "h2", "dest_node": "n2", "dest_host": "192.0.2.2", "memory_total_bytes": 30,
        "memory_processed_bytes": 10, "memory_remaining_bytes": 20, "disk_total_bytes": None,
        "disk_processed_bytes": None, "disk_remaining_bytes": None, "created_at": "2026-01-02T03:04:05.000000",
        "updated_at": None}
    for version, more in (("2.23", {}), ("2.59", {"uuid": UUID}),
                          ("2.80", {"uuid": UUID, "user_id": "u", "project_id": "p"})):
        assert api.get(PATH, version=version).json == {"migrations": [{**first, **more}]}
        assert api.get(f"{PATH}/7", version=version).json == {"migration": {**first, **more}}
    assert found.last("get") == {"instance_uuid": SERVER, "migration_id": 7, "project_id": None}
    assert found.last("in_progress") == {"instance_uuid": SERVER, "project_id": None}


@pytest.mark.parametrize(("method", "path", "last"), [
    ("GET", PATH, "2.22"), ("GET", f"{PATH}/7", "2.22"), ("DELETE", f"{PATH}/7", "2.23"),
    ("POST", f"{PATH}/7/action", "2.21")])
def test_server_migrations_are_unavailable_before_their_microversion(api, found, method, path, last):
    assert api(method, path, {"force_complete": None} if method == "POST" else None, version=last).status == 404
    assert not found.calls


@pytest.mark.parametrize(("version", "statuses"), [
    ("2.24", ["running"]), ("2.64", ["running"]), ("2.65", ["running", "queued", "preparing"])])
def test_abort_of_a_migration_passes_the_allowed_statuses(api, found, version, statuses):
    answer = api("DELETE", f"{PATH}/7", version=version, roles="manager")
    assert (answer.status, answer.text) == (202, "")
    assert found.last("interrupt") == {
        "instance_uuid": SERVER, "migration_id": 7, "what": "cancel", "statuses": statuses, "project_id": "p"}


def test_force_complete_interrupts_the_migration(api, found):
    answer = api.post(f"{PATH}/7/action", {"force_complete": None}, version="2.22", roles="manager")
    assert (answer.status, answer.text) == (202, "")
    assert found.last("interrupt") == {
        "instance_uuid": SERVER, "migration_id": 7, "what": "force-complete", "statuses": ["running"],
        "project_id": "p"}


@pytest.mark.parametrize("body", [{"force_complete": {}}, {"force_complete": True}, {"abort": None}, {}])
def test_invalid_migration_actions_are_refused(api, found, body):
    assert api.post(f"{PATH}/7/action", body, version="2.22").error[1] == 400
    assert not found.calls


def test_migration_errors_of_the_conductor_reach_the_client(api, found):
    found.answers["interrupt"] = exception.InvalidMigrationState(
        migration_id=7, instance_uuid=SERVER, state="completed", method="cancel")
    assert api("DELETE", f"{PATH}/7", version="2.24").error == (
        "badRequest", 400, f"Cannot cancel migration 7 of instance {SERVER} while it is completed.")
    found.answers["interrupt"] = exception.MigrationNotFoundForInstance(migration_id=7, instance_id=SERVER)
    assert api("DELETE", f"{PATH}/7", version="2.24").error == (
        "itemNotFound", 404, f"Migration 7 not found for instance {SERVER}")


@pytest.mark.parametrize("ident", ["x", "-1", "1.5", OTHER, "9" * 5000])
def test_invalid_migration_id_returns_404(api, found, ident):
    assert api.get(f"{PATH}/{ident}", version="2.23").error[1] == 404
    assert api("DELETE", f"{PATH}/{ident}", version="2.24").error[1] == 404
    assert not found.calls


@pytest.mark.parametrize(("method", "path", "body", "roles"), [
    ("GET", PATH, None, "member"), ("GET", f"{PATH}/7", None, "manager"), ("DELETE", f"{PATH}/7", None, "member"),
    ("POST", f"{PATH}/7/action", {"force_complete": None}, "member")])
def test_server_migrations_with_insufficient_roles_return_403(api, found, method, path, body, roles):
    assert api(method, path, body, version="2.80", roles=roles).error[1] == 403
    assert not found.calls
