"""Tokens of consoles, by their digests (:func:`nova.objects.console.digest`)."""

from __future__ import annotations

from nova.bus import Interface, call
from nova.context import RequestContext
from nova.objects.console import Console, ConsoleSession
from nova.rpcapi import CONDUCTOR


class Consoles(Interface):
    topic = CONDUCTOR
    namespace = "consoles"

    @call
    def create(self, ctx: RequestContext, digest: str, console: Console) -> Console:
        """Have a token lead to this console for [consoleauth]token_ttl; returns it with that end.

        A user has a few tokens of each server: the oldest ends then. Raises InstanceNotFound, and InstanceNotReady if
        the server has left the host meanwhile.
        """

    @call
    def get(self, ctx: RequestContext, digest: str) -> Console:
        """Raises ConsoleTokenNotFound, also for one whose time is over or whose server was stopped or has moved."""

    @call
    def over(self, ctx: RequestContext, sessions: list[ConsoleSession]) -> list[str]:
        """Which of these connections (``ident``) have to end: their servers are not as they were, or deleted."""
