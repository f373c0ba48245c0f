"""The RPC interface of key pairs of users."""

from __future__ import annotations

from nova.bus import Interface, call
from nova.context import RequestContext
from nova.objects.accounts.keypair import Keypair
from nova.rpcapi import CONDUCTOR


class Keypairs(Interface):
    topic = CONDUCTOR
    namespace = "keypairs"

    @call
    def index(self, ctx: RequestContext, user_id: str, limit: int | None = None,
              marker: str | None = None) -> list[Keypair]:
        """Return key pairs ordered by name. Raises MarkerNotFound ("Marker X could not be found.")."""

    @call
    def get(self, ctx: RequestContext, user_id: str, name: str) -> Keypair:
        """Raises KeypairNotFound."""

    @call
    def create(self, ctx: RequestContext, keypair: Keypair, imported: bool = False) -> Keypair:
        """Create a key pair; ``imported`` is True if the user supplied the public key.

        Raises KeyPairExists, QuotaLimit ("Quota exceeded, too many key pairs.").
        """

    @call
    def delete(self, ctx: RequestContext, user_id: str, name: str) -> None: ...
