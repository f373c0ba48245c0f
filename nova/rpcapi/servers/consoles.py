"""The RPC interface of console tokens, identified by their digests (:func:`nova.objects.servers.console.digest`)."""

from __future__ import annotations

from nova.bus import Interface, call
from nova.context import RequestContext
from nova.objects.servers.console import Console, ConsoleSession
from nova.rpcapi import CONDUCTOR


class Consoles(Interface):
    topic = CONDUCTOR
    namespace = "consoles"

    @call
    def create(self, ctx: RequestContext, digest: str, console: Console) -> Console:
        """Store a token for this console and return the console with the end of its validity.

        A user can have a few tokens for each server; the oldest is removed first. Raises InstanceNotFound, and
        InstanceNotReady if the server has left the host meanwhile.
        """

    @call
    def get(self, ctx: RequestContext, digest: str) -> Console:
        """Return the console of a token.

        Raises ConsoleTokenNotFound, also if the token expired or the server was stopped or moved.
        """

    @call
    def over(self, ctx: RequestContext, sessions: list[ConsoleSession]) -> list[str]:
        """Return the ids (``ident``) of the sessions to close, since their servers were stopped, moved or deleted."""
