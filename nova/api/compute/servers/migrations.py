"""os-migrations and servers/{server_id}/migrations: migrations of servers between hosts."""

from typing import Any, NamedTuple

from nova import exception
from nova.api.compute.servers.servers import authorize, server_id
from nova.api.request import Request, is_true, iso_precise
from nova.api.router import accepts
from nova.api.validation.fields import ABSENT, Array, Field, Object, Out, Plain, Query, View, listed, only, single
from nova.api.validation.types import INTEGER, INTEGER_OR_NULL, LIMIT, LINKS, STRING, STRING_OR_NULL, TIME
from nova.objects.servers import migration as migration_states
from nova.objects.servers.migration import Migration, MigrationQuery

POLICY = "os_compute_api:os-migrations:"
OF_SERVER = "os_compute_api:servers:migrations:"

INDEX_QUERY = Query({
    **dict.fromkeys(("hidden", "host", "instance_uuid", "source_compute", "status", "migration_type"), STRING),
    "limit": Field(LIMIT, since=59, single=59), "marker": Field(STRING, since=59, single=59),
    "changes-since": Field(TIME, since=59, single=59), "changes-before": Field(TIME, since=66, single=66),
    "user_id": Field(STRING, since=80, single=80), "project_id": Field(STRING, since=80, single=80),
}, strict=59)


class Shown(NamedTuple):
    """A migration to show. ``hosts``: True if the caller may see the names of hosts."""

    item: Migration
    hosts: bool


def _host(name: str) -> Out:
    """Return a field with a host, which is null if there is no host or the caller may not see hosts."""
    return Out(name, STRING_OR_NULL, lambda shown, _req: (getattr(shown.item, name) or None) if shown.hosts else None)


def _time(name: str) -> Out:
    return Out(name, STRING_OR_NULL, lambda shown, _req: iso_precise(getattr(shown.item, name)))


def _flavor(name: str, flavor: str) -> Out:
    return Out(name, INTEGER_OR_NULL, lambda shown, _req: getattr(getattr(shown.item, flavor), "id", None))


def _links(shown: Shown, req: Request) -> Any:
    """Return the links of a live migration in progress; other migrations have no URL of their own."""
    item = shown.item
    if item.migration_type != migration_states.LIVE_MIGRATION or item.status not in migration_states.IN_PROGRESS:
        return ABSENT
    return req.links(f"servers/{item.instance_uuid}/migrations", str(item.id))


_COMMON = [
    _time("created_at"), _host("dest_compute"), _host("dest_host"), _host("dest_node"), Out("id", INTEGER, "item.id"),
    _host("source_compute"), _host("source_node"), Out("status", STRING, "item.status"), _time("updated_at"),
    Out("uuid", STRING, "item.uuid", since=59),
    *(Out(name, STRING_OR_NULL, f"item.{name}", since=80) for name in ("user_id", "project_id"))]
MIGRATION = View([
    *_COMMON, Out("instance_uuid", STRING, "item.instance_uuid"), Out("links", LINKS, _links, since=23),
    Out("migration_type", STRING, "item.migration_type", since=23),
    _flavor("new_instance_type_id", "new_flavor"), _flavor("old_instance_type_id", "old_flavor")])
SERVER_MIGRATION = View([
    *_COMMON,
    Out("server_uuid", STRING, "item.instance_uuid"),
    *(Out(f"{what}_{part}_bytes", INTEGER_OR_NULL, f"item.{what}_{part}") for what in ("memory", "disk")
      for part in ("total", "processed", "remaining"))])


# -- all migrations -----------------------------------------------------------------------------------
@accepts(query=INDEX_QUERY, answer=Object({"migrations": Array(MIGRATION), "migrations_links": Field(LINKS, since=59)}))
def index(req: Request) -> dict[str, Any]:
    """List migrations."""
    since, before = req.changes()
    limit, marker = req.page()
    # Callers without access to host names must not find them by filtering.
    hosts = req.allowed(POLICY + "index:host")
    query = MigrationQuery(
        project_id=_project(req), user_id=req.arg("user_id"), instance_uuid=req.arg("instance_uuid"),
        host=req.arg("host") if hosts else None, source_compute=req.arg("source_compute") if hosts else None,
        status=req.arg("status"), migration_type=req.arg("migration_type"), changes_since=since,
        changes_before=before, limit=limit, marker=marker)
    # Nova has no hidden migrations.
    migrations = [] if is_true(req.arg("hidden")) else req.clients.migrations.index(req.ctx, query)
    answer = {"migrations": [MIGRATION.render(Shown(item, hosts), req) for item in migrations]}
    return req.with_next(answer, "migrations_links", "os-migrations", migrations, limit, "uuid", since=59)


def _project(req: Request) -> str | None:
    """Return the project whose migrations are listed. Raises PolicyNotAuthorized for other projects."""
    project = req.arg("project_id")
    if project == req.ctx.project_id or (project is None and not req.allowed(POLICY + "index:all_projects")):
        return req.ctx.project_id
    req.authorize(POLICY + "index:all_projects")
    return project


# -- migrations of a server ---------------------------------------------------------------------------
@accepts(answer=listed("migrations", SERVER_MIGRATION))
def of_server(req: Request) -> list[Shown]:
    """List the live migrations of a server that are in progress."""
    authorize(req, OF_SERVER + "index")
    migrations = req.clients.migrations.in_progress(req.ctx, server_id(req), project_id=req.scope)
    hosts = req.allowed(OF_SERVER + "index:host")
    return [Shown(item, hosts) for item in migrations]


@accepts(answer=single("migration", SERVER_MIGRATION))
def show(req: Request) -> Shown:
    """Show a live migration that is in progress."""
    authorize(req, OF_SERVER + "show")
    return Shown(req.clients.migrations.get(req.ctx, server_id(req), _number(req), project_id=req.scope), hosts=True)


@accepts(errors=(409,))
def abort(req: Request) -> None:
    """Abort a live migration; the server stays on its host."""
    authorize(req, OF_SERVER + "delete")
    early = [migration_states.QUEUED, migration_states.PREPARING] if req.version >= 65 else []
    _interrupt(req, migration_states.CANCEL, [migration_states.RUNNING, *early])


@accepts(body=only("force_complete", Plain(type="null")), errors=(409,))
def force_complete(req: Request) -> None:
    """Force a live migration to complete; the guest may be paused for it."""
    authorize(req, OF_SERVER + "force_complete")
    _interrupt(req, migration_states.FORCE_COMPLETE, [migration_states.RUNNING])


def _interrupt(req: Request, what: str, statuses: list[str]) -> None:
    req.clients.migrations.interrupt(req.ctx, server_id(req), _number(req), what, statuses, project_id=req.scope)


def _number(req: Request) -> int:
    """Return the number of the migration in the URL. Raises MigrationNotFoundForInstance for any other id."""
    ident = req.params["id"]
    if not ident.isdecimal() or len(ident) > 18:
        raise exception.MigrationNotFoundForInstance(migration_id=ident, instance_id=server_id(req))
    return int(ident)
