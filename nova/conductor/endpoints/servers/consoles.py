"""Console tokens."""

from __future__ import annotations

import msgspec

from nova.conductor.endpoints.derived import Endpoint
from nova.conf import CONF
from nova.context import RequestContext
from nova.db.servers import consoles
from nova.db.sql import clock
from nova.objects.servers.console import Console, ConsoleSession
from nova.operations import REGISTRY

# Operations that end console sessions: they replace, move or stop the guest, so its tokens become invalid.
ENDINGS = frozenset(name for name, operation in REGISTRY.items() if operation.ends_consoles)


class Consoles(Endpoint):
    """Implements :class:`nova.rpcapi.servers.Consoles`."""

    def create(self, ctx: RequestContext, digest: str, console: Console) -> Console:
        until = clock.after(CONF.consoleauth.token_ttl)
        return self.core.db.write(
            lambda connection: consoles.create(connection, digest, msgspec.structs.replace(console), until))

    def get(self, ctx: RequestContext, digest: str) -> Console:
        return self.core.db.read(lambda connection: consoles.get(connection, digest, ENDINGS))

    def over(self, ctx: RequestContext, sessions: list[ConsoleSession]) -> list[str]:
        return self.core.db.read(lambda connection: consoles.over(connection, sessions, ENDINGS))
