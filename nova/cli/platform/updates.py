"""The command that updates novad to its latest release."""

from __future__ import annotations

import argparse
import time
from typing import Any

from nova.cli.declare import doing, flag
from nova.cli.errors import CommandError, LoginFailed
from nova.cli.platform.client import Novad
from nova.novad.api import novad_pb2 as pb

_RETURN = 300.0  # seconds within which the updated novad must answer again
_PAUSE = 0.5


@doing(flag("--check", help="only report whether a newer release is available"))
def update(novad: Novad, args: argparse.Namespace) -> None:
    """Update novad to its latest release; novad rolls back if the new release does not become healthy."""
    before = novad.ask(novad.client.updates.Show, pb.UpdatesRequest(ask=args.check))
    if args.check:
        print(f"novad {before.version} runs, {before.latest or 'none'} is the latest release")
        return
    restarts = False
    for event in novad.stream(novad.client.updates.Update, pb.Empty()):
        print(event.message, flush=True)
        restarts = event.message.startswith("starting ")
    if not restarts:
        return
    now = _wait_for_update(novad, before.version)
    if now.version == before.version:
        raise CommandError(f"novad {now.failed} does not become healthy: {now.why}. novad {now.version} runs again.")
    print(f"novad {now.version} runs, and is healthy")


def _wait_for_update(novad: Novad, before: str) -> Any:
    """Return the status of novad after the trial of the new release. Raises CommandError after _RETURN seconds."""
    end, status = time.monotonic() + _RETURN, None
    time.sleep(_PAUSE)
    while time.monotonic() < end:
        try:
            status = novad.ask(novad.client.updates.Show, pb.UpdatesRequest())
        except (LoginFailed, CommandError):
            status = None
        # The old release, and a failed one, still answer for a moment after the switch: wait for the final one.
        if status is not None and not status.trial and status.version != status.failed:
            return status
        time.sleep(_PAUSE)
    raise CommandError(f"novad {before} did not respond again within {_RETURN:.0f} seconds.")
