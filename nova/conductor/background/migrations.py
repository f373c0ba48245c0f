"""Requests to interrupt live migrations (abort, force), repeated until they arrive; automatic confirmation of resizes.
"""

import functools
import logging
from collections.abc import Sequence

import sqlalchemy as sa

from nova import context
from nova.conductor.acceptance import start
from nova.conductor.core import Core
from nova.conductor.saga.engine import Engine
from nova.conductor.saga.run import host_of
from nova.conf import CONF
from nova.context import RequestContext
from nova.db.servers import actions, server_migrations
from nova.db.sql import clock
from nova.objects.servers.action import Action
from nova.objects.servers.migration import Migration
from nova.operations.resize import ConfirmResize
from nova.service.periodic import continuing

LOG = logging.getLogger(__name__)

_PAGE = 100  # migrations read in one query
# Maximum number of automatic confirmations started in one pass. Many may be due at once, or after their host returned;
# they must not delay the requests of users.
_AT_ONCE = 20


def send_interrupts(core: Core, ctx: RequestContext, migrations: Sequence[Migration]) -> None:
    """Send requests to interrupt live migrations to the hosts that run them. Conductor steps read them from the row."""
    def at_work(connection: sa.Connection) -> list[tuple[Migration, Action]]:
        pairs = [(migration, actions.get(connection, migration.action_uuid or "")) for migration in migrations]
        return [(migration, action) for migration, action in pairs
                if action is not None and action.outcome is None and host_of(action.owner)]

    for migration, action in core.db.read(at_work):
        host = host_of(action.owner)
        with continuing(LOG, "[instance: %s] Cannot send request %s for the live migration to host %s",
                        migration.instance_uuid, migration.wanted, host):
            core.compute_at(host).interrupt(ctx, action.uuid, migration.wanted)


def run_periodic(core: Core, engine: Engine) -> None:
    """Repeat interrupt requests whose message may be lost, and confirm resizes after resize_confirm_window."""
    left = core.db.read(server_migrations.interrupted)
    if left:
        send_interrupts(core, context.admin(), left)
    if CONF.resize_confirm_window and clock.steady(CONF.service_down_time):
        _confirm_overdue(core, engine)


def _confirm_overdue(core: Core, engine: Engine) -> None:
    before, after, begun = clock.overdue(CONF.resize_confirm_window), 0, 0
    while True:
        page = core.db.read(functools.partial(server_migrations.unconfirmed, before=before, after=after, limit=_PAGE))
        for migration in page:
            # The request is refused if another operation started first, or the source host just went down.
            with continuing(LOG, "[instance: %s] Cannot confirm the resize", migration.instance_uuid,
                            expected=logging.INFO):
                start(engine, context.admin(), migration.instance_uuid, ConfirmResize.name, {})
                begun += 1
                LOG.info("[instance: %s] Confirming the resize: it was not confirmed within %d s",
                         migration.instance_uuid, CONF.resize_confirm_window)
            if begun == _AT_ONCE:
                return
        if len(page) < _PAGE:
            return
        after = page[-1].id
