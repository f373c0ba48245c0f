"""novad replaced by its latest release."""

from __future__ import annotations

import argparse
import time
from typing import Any

from nova.cli.declare import doing, flag
from nova.cli.errors import CommandError, LoginFailed
from nova.cli.platform.client import Novad
from nova.novad.api import novad_pb2 as pb

_RETURN = 300.0  # seconds in which novad has to be there again
_PAUSE = 0.5


@doing(flag("--check", help="only say whether there is a newer one"))
def update(novad: Novad, args: argparse.Namespace) -> None:
    """Replace novad by its latest release; it goes back by itself if that does not become healthy."""
    before = novad.ask(novad.client.updates.Show, pb.UpdatesRequest(ask=args.check))
    if args.check:
        print(f"novad {before.version} runs, {before.latest or 'none'} is the latest release")
        return
    restarts = False
    for one in novad.stream(novad.client.updates.Update, pb.Empty()):
        print(one.message, flush=True)
        restarts = one.message.startswith("starting ")
    if not restarts:
        return
    now = _returned(novad, before.version)
    if now.version == before.version:
        raise CommandError(f"novad {now.failed} does not become healthy: {now.why}. novad {now.version} runs again.")
    print(f"novad {now.version} runs, and is healthy")


def _returned(novad: Novad, before: str) -> Any:
    """What runs when it is decided."""
    end, there = time.monotonic() + _RETURN, None
    time.sleep(_PAUSE)
    while time.monotonic() < end:
        try:
            there = novad.ask(novad.client.updates.Show, pb.UpdatesRequest())
        except (LoginFailed, CommandError):
            there = None
        # The one before serves a moment longer, while the new one is on trial already; and one that has failed, too.
        if there is not None and not there.trial and there.version != there.failed:
            return there
        time.sleep(_PAUSE)
    raise CommandError(f"novad {before} did not come back within {_RETURN:.0f} seconds.")
