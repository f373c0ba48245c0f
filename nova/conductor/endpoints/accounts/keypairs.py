"""Key pairs of users."""

from __future__ import annotations

from typing import Any

from nova.conductor.endpoints import notifications
from nova.conductor.endpoints.derived import Endpoint, notifying, reads, writes
from nova.context import RequestContext
from nova.db.accounts import keypairs, quotas
from nova.objects.accounts.keypair import Keypair


class Keypairs(Endpoint):
    """Implements :class:`nova.rpcapi.accounts.Keypairs`."""

    index = reads(keypairs.index)
    get = reads(keypairs.get)
    delete = writes(keypairs.delete, notify=notifications.key_deleted)

    def create(self, ctx: RequestContext, keypair: Keypair, imported: bool = False) -> Keypair:
        def transaction(connection: Any) -> Keypair:
            # Key pairs belong to users, not to projects. The limit is that of the caller's project.
            most = quotas.limits(connection, ctx.project_id or "", keypair.user_id)["key_pairs"]
            return create(connection, keypair, most)

        notify = notifications.key_imported if imported else notifications.key_created
        create = notifying(self.core, ctx, keypairs.create, notify)
        return self.core.db.write(transaction)
