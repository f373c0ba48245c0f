"""Server migrations: lists, abort and force-complete requests, and automatic confirmation of resizes."""

from __future__ import annotations

import datetime
from typing import Any

import pytest

from nova import context, exception
from nova.conductor.background import migrations
from nova.conductor.endpoints.servers import Migrations
from nova.conductor.saga.engine import Engine
from nova.db import tables
from nova.db.hosts import services
from nova.db.servers import actions, server_migrations, servers
from nova.objects.base import new_uuid, utcnow
from nova.objects.servers import migration as migration_states
from nova.objects.servers import states
from nova.objects.servers.action import Action
from nova.objects.servers.instance import Instance
from nova.objects.servers.migration import Migration, MigrationQuery
from tests.unit.conductor.books import Books, ctx, flavor, server, set_columns
from tests.unit.conductor.hosts.test_lost_hosts import Later

EARLY = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
ADMIN = context.admin()


def moved(core: Books, instance: Instance | None = None, **changes: Any) -> Migration:
    """Insert a migration and return it."""
    values: dict[str, Any] = {
        "uuid": new_uuid(), "instance_uuid": instance.uuid if instance else new_uuid(), "project_id": "p1",
        "migration_type": migration_states.LIVE_MIGRATION, "status": migration_states.RUNNING,
        "source_compute": "h1", "dest_compute": "h2",
        "user_id": "u1", "old_flavor": flavor(), "new_flavor": flavor(), "created_at": EARLY, "updated_at": EARLY}
    made = Migration(**{**values, **changes})
    core.db.write(lambda connection: server_migrations.insert(connection, made))
    return made


def stored(core: Books, migration: Migration) -> Migration:
    return core.db.read(lambda connection: server_migrations.get(connection, migration.uuid))


# --- lists -----------------------------------------------------------------------------------------
def listed(core: Books, **query: Any) -> list[int]:
    return [found.id for found in Migrations(core).index(ctx(), MigrationQuery(**query))]


def test_migrations_are_listed_newest_first_and_paged(core: Books) -> None:
    later = EARLY + datetime.timedelta(seconds=1)
    made = [moved(core), moved(core, created_at=later), moved(core), moved(core, created_at=later)]
    wanted = [made[3].id, made[1].id, made[2].id, made[0].id]
    assert listed(core) == wanted
    assert listed(core, limit=2) == wanted[:2]
    assert listed(core, limit=2, marker=made[1].uuid) == wanted[2:]
    assert listed(core, limit=0) == []
    with pytest.raises(exception.MarkerNotFound):
        listed(core, marker=new_uuid())
    assert listed(core, project_id="p1", limit=2, marker=made[1].uuid) == wanted[2:]
    with pytest.raises(exception.MarkerNotFound):
        listed(core, project_id="p2", marker=made[1].uuid)


@pytest.mark.parametrize("query", [
    {"project_id": "p2"}, {"user_id": "u2"}, {"source_compute": "h3"}, {"status": "done"},
    {"migration_type": migration_states.EVACUATION}, {"instance_uuid": "i2"}])
def test_migration_list_is_filtered_by_equality(core: Books, query: dict[str, str]) -> None:
    moved(core)
    this = moved(core, **query)
    assert listed(core, **query) == [this.id]


def test_migration_host_filter_matches_source_or_destination(core: Books) -> None:
    there, back = moved(core), moved(core, source_compute="h2", dest_compute="h3")
    assert listed(core, host="h1") == [there.id]
    assert listed(core, host="h2") == [back.id, there.id]
    assert listed(core, source_compute="h2") == [back.id]


def test_migration_list_is_filtered_by_time_of_change(core: Books) -> None:
    made = [moved(core, updated_at=EARLY + datetime.timedelta(days=day)) for day in range(3)]
    day = EARLY + datetime.timedelta(days=1)
    assert listed(core, changes_since=day) == [made[2].id, made[1].id]
    assert listed(core, changes_before=day) == [made[1].id, made[0].id]


def test_in_progress_live_migrations_of_a_server_are_listed(core: Books) -> None:
    instance = server(core, "h1")
    made = {status: moved(core, instance, status=status) for status in (
        "accepted", "queued", "preparing", "running", "running (post-copy)", "post-migrating", "completed")}
    moved(core, instance, migration_type=migration_states.RESIZE)
    shown = Migrations(core).in_progress(ctx(), instance.uuid, "p1")
    assert [found.status for found in shown] == ["post-migrating", "running", "preparing", "queued"]
    with pytest.raises(exception.InstanceNotFound):
        Migrations(core).in_progress(ctx(), instance.uuid, "p2")
    assert Migrations(core).get(ctx(), instance.uuid, made["running"].id, "p1").status == "running"
    for migration_id in (made["completed"].id, moved(core).id, 10**6):
        with pytest.raises(exception.MigrationNotFoundForInstance):
            Migrations(core).get(ctx(), instance.uuid, migration_id, "p1")


# --- interrupts --------------------------------------------------------------------------------------
def running(core: Books, owner: str | None = "compute@h1", **changes: Any) -> tuple[Instance, Migration]:
    """Return a server and its running live migration, whose action is leased by ``owner``."""
    instance = server(core, "h1", vm_state=states.ACTIVE, task_state=states.MIGRATING, launched_at=utcnow())
    action = Action(uuid=new_uuid(), instance_uuid=instance.uuid, action="live-migration", operation="live_migrate",
                    owner=owner, request_id="req-1", start_time=utcnow(), lease_until=utcnow())
    core.db.write(lambda connection: actions.insert(connection, [action]))
    return instance, moved(core, instance, action_uuid=action.uuid, **changes)


def interrupt(core: Books, instance: Instance, migration: Migration, what: str = migration_states.CANCEL,
              asker: context.RequestContext | None = None) -> None:
    Migrations(core).interrupt(asker or ctx(), instance.uuid, migration.id, what,
                               [migration_states.RUNNING, migration_states.QUEUED], "p1")


def test_abort_is_sent_to_the_host_and_recorded_as_an_action(core: Books) -> None:
    instance, migration = running(core)
    interrupt(core, instance, migration)
    assert core.sent.interrupts == [("h1", migration.action_uuid, "cancel")]
    [told, _move] = core.db.read(lambda connection: actions.index(connection, instance.uuid, None, None, None, None))
    assert (told.action, told.outcome, told.user_id) == ("live_migration_cancel", "success", "u1")
    assert [(event.event, event.result, event.host) for event in told.events] == [
        ("compute_live_migration_abort", "Success", "h1")]


@pytest.mark.parametrize(("what", "action", "event"), [
    (migration_states.CANCEL, "live_migration_cancel", "compute_live_migration_abort"),
    (migration_states.FORCE_COMPLETE, "live_migration_force_complete", "compute_live_migration_force_complete")])
def test_abort_request_is_repeated_until_the_migration_ends(core: Books, what: str, action: str, event: str) -> None:
    instance, migration = running(core)
    core.sent.broken = True
    interrupt(core, instance, migration, what)
    assert (core.sent.interrupts, stored(core, migration).wanted) == ([], what)
    core.sent.broken = False
    engine = Engine(core, Later())  # type: ignore[arg-type]
    for _ in range(2):
        migrations.run_periodic(core, engine)
    assert core.sent.interrupts == [("h1", migration.action_uuid, what)] * 2
    core.db.write(lambda connection: server_migrations.update(
        connection, migration.uuid, {"open": False, "status": "cancelled"}))
    migrations.run_periodic(core, engine)
    assert len(core.sent.interrupts) == 2


@pytest.mark.parametrize("owner", ["conductor@c1", None])
def test_abort_request_is_only_stored_while_a_conductor_owns_the_action(core: Books, owner: str | None) -> None:
    instance, migration = running(core, owner)
    interrupt(core, instance, migration)
    assert (core.sent.interrupts, stored(core, migration).wanted) == ([], "cancel")


@pytest.mark.parametrize("changes", [{"status": "accepted"}, {"status": "completed"}, {"open": False}])
def test_abort_of_a_migration_in_another_state_is_refused(core: Books, changes: dict[str, Any]) -> None:
    instance, migration = running(core, **changes)
    with pytest.raises(exception.InvalidMigrationState):
        interrupt(core, instance, migration)
    assert stored(core, migration).wanted == ""


def test_abort_of_a_resize_or_of_another_server_is_not_found(core: Books) -> None:
    instance, _migration = running(core)
    for other in (moved(core, instance, migration_type=migration_states.RESIZE), moved(core)):
        with pytest.raises(exception.MigrationNotFoundForInstance):
            interrupt(core, instance, other)


@pytest.mark.parametrize(("changes", "what", "error"), [
    ({"task_state": None}, migration_states.CANCEL, exception.InstanceStateUnknown),
    ({"task_state": "deleting"}, migration_states.CANCEL, exception.InstanceInvalidState),
    ({"vm_state": "paused"}, migration_states.FORCE_COMPLETE, exception.InstanceInvalidState),
    ({"locked_by": "admin"}, migration_states.CANCEL, exception.InstanceIsLocked)])
def test_abort_for_a_server_in_another_state_is_refused(
        core: Books, changes: dict[str, Any], what: str, error: type[Exception]) -> None:
    instance, migration = running(core)
    core.db.write(lambda connection: servers.update(connection, instance.uuid, changes))
    with pytest.raises(error):
        interrupt(core, instance, migration, what)
    assert core.sent.interrupts == []


def test_abort_is_allowed_for_paused_servers_and_for_admins_despite_locks(core: Books) -> None:
    instance, migration = running(core)
    core.db.write(lambda connection: servers.update(
        connection, instance.uuid, {"vm_state": "paused", "locked_by": "owner"}))
    interrupt(core, instance, migration, asker=ADMIN)
    assert len(core.sent.interrupts) == 1


# --- automatic confirmations -------------------------------------------------------------------------
@pytest.fixture
def engine(core: Books) -> Engine:
    for host in ("h1", "h2"):
        core.db.write(lambda connection, host=host: services.register(connection, host, "nova-compute", "compute", 1))
    return Engine(core, Later())  # type: ignore[arg-type]


def resized(core: Books, waited: int = 100, **changes: Any) -> tuple[Instance, Migration]:
    """Return a server in VERIFY_RESIZE for ``waited`` seconds, and its migration."""
    values = {"vm_state": states.RESIZED, "launched_at": utcnow(), **changes}
    instance = server(core, "h2", **values)
    return instance, moved(core, instance, migration_type=migration_states.RESIZE, status=migration_states.FINISHED,
                           updated_at=utcnow() - datetime.timedelta(seconds=waited))


def begun(core: Books) -> list[tuple[str, str, str | None]]:
    """Return the confirmations as tuples of server, action and requesting user."""
    with core.db.engine.connect() as connection:
        return [(row.instance_uuid, row.action, row.user_id) for row in connection.execute(
            tables.actions.select().order_by(tables.actions.c.id))]


def test_resize_is_confirmed_after_resize_confirm_window(core: Books, engine: Engine, settings: Any) -> None:
    settings("resize_confirm_window", 60)
    instance, migration = resized(core)
    resized(core, waited=30)
    migrations.run_periodic(core, engine)
    assert begun(core) == [(instance.uuid, "confirmResize", None)]
    assert stored(core, migration).status == migration_states.CONFIRMING
    migrations.run_periodic(core, engine)
    assert len(begun(core)) == 1


def test_locked_resize_is_confirmed_after_resize_confirm_window(core: Books, engine: Engine, settings: Any) -> None:
    settings("resize_confirm_window", 60)
    instance, _migration = resized(core, locked_by="owner")
    migrations.run_periodic(core, engine)
    assert [found[0] for found in begun(core)] == [instance.uuid]


@pytest.mark.parametrize("changes", [
    {"vm_state": "error"}, {"action_uuid": "busy"}, {"deleted": True}])
def test_resize_of_a_busy_failed_or_deleted_server_is_not_confirmed(
        core: Books, engine: Engine, settings: Any, changes: dict[str, Any]) -> None:
    settings("resize_confirm_window", 60)
    resized(core, **changes)
    migrations.run_periodic(core, engine)
    assert begun(core) == []


def test_resize_is_never_confirmed_automatically_by_default(core: Books, engine: Engine) -> None:
    resized(core, waited=10**8)
    migrations.run_periodic(core, engine)
    assert begun(core) == []


def test_automatic_confirmation_waits_for_the_source_host(core: Books, engine: Engine, settings: Any) -> None:
    settings("resize_confirm_window", 60)
    core.statements()
    migrations.run_periodic(core, engine)
    idle = len(core.statements())
    instance, _migration = resized(core)
    services_of_h1 = tables.services.c.host == "h1"
    for changes in ({"last_seen": utcnow() - datetime.timedelta(hours=1)},
                    {"last_seen": utcnow(), "forced_down": True}):
        set_columns(core, tables.services, services_of_h1, **changes)
        core.statements()
        migrations.run_periodic(core, engine)
        assert len(core.statements()) == idle
        assert begun(core) == []
    set_columns(core, tables.services, services_of_h1, forced_down=False)
    migrations.run_periodic(core, engine)
    assert [found[0] for found in begun(core)] == [instance.uuid]


def test_automatic_confirmations_are_started_in_batches(
        core: Books, engine: Engine, settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    settings("resize_confirm_window", 60)
    monkeypatch.setattr(migrations, "_AT_ONCE", 2)
    due = [resized(core)[0].uuid for _ in range(5)]
    for look in (2, 4, 5):
        migrations.run_periodic(core, engine)
        assert [found[0] for found in begun(core)] == due[:look]


def test_blocked_automatic_confirmation_does_not_delay_other_servers(
        core: Books, engine: Engine, settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    settings("resize_confirm_window", 60)
    monkeypatch.setattr(migrations, "_PAGE", 2)
    set_columns(core, tables.services, tables.services.c.host == "h1",
                last_seen=utcnow() - datetime.timedelta(hours=1))
    for _ in range(4):
        resized(core)
    instance, migration = resized(core)
    core.db.write(lambda connection: server_migrations.update(
        connection, migration.uuid, {"source_compute": "h2", "updated_at": EARLY}))
    migrations.run_periodic(core, engine)
    assert [found[0] for found in begun(core)] == [instance.uuid]
