"""Key pairs of users."""

from __future__ import annotations

from typing import Any

from nova.conductor.core import Core
from nova.context import RequestContext
from nova.db import keypairs as db
from nova.db import quotas
from nova.objects.keypair import Keypair


class Keypairs:
    """Implements :class:`nova.rpcapi.keypairs.Keypairs`."""

    def __init__(self, core: Core) -> None:
        self.core = core

    def index(self, ctx: RequestContext, user_id: str, limit: int | None = None,
              marker: str | None = None) -> list[Keypair]:
        return self.core.db.read(lambda connection: db.index(connection, user_id, limit, marker))

    def get(self, ctx: RequestContext, user_id: str, name: str) -> Keypair:
        return self.core.db.read(lambda connection: db.get(connection, user_id, name))

    def create(self, ctx: RequestContext, keypair: Keypair) -> Keypair:
        def transaction(connection: Any) -> Keypair:
            # Key pairs belong to users, whatever the project; the limit is that of the caller's project.
            most = quotas.limits(connection, ctx.project_id or "", keypair.user_id)["key_pairs"]
            return db.create(connection, keypair, most)

        return self.core.db.write(transaction)

    def delete(self, ctx: RequestContext, user_id: str, name: str) -> None:
        self.core.db.write(lambda connection: db.delete(connection, user_id, name))
