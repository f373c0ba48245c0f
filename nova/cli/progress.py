"""Progress output of --poll while a command waits for a server or an image."""

import sys
import time
from collections.abc import Callable, Collection, Mapping
from typing import Any

from nova.cli import find
from nova.cli.client import Nova
from nova.cli.errors import CommandError, NotFound

# Seconds between two polls: short at first, since most operations are short.
_PAUSES = (0.2, 0.2, 0.5, 0.5, 1.0)


def polls(poll: Callable[[], Any]) -> Any:
    """Call ``poll`` repeatedly and yield its results, with the pauses of _PAUSES, of which the longest repeats."""
    number = 0
    while True:
        yield poll()
        time.sleep(_PAUSES[min(number, len(_PAUSES) - 1)])
        number += 1


class Line:
    """A progress line on stderr, rewritten on a terminal; if stderr is not a terminal, a line per change."""

    def __init__(self) -> None:
        self._last = ""
        self._terminal = sys.stderr.isatty()

    def say(self, text: str) -> None:
        if text == self._last:
            return
        end = "\r" + " " * max(0, len(self._last) - len(text)) + "\r" if self._terminal else ""
        print(f"{end}{text}", end="" if self._terminal else "\n", file=sys.stderr, flush=True)
        self._last = text

    def end(self, text: str) -> None:
        """Print the final line."""
        print(f"\n{text}" if self._terminal and self._last else text, file=sys.stderr, flush=True)


def wait(nova: Nova, server_id: str, doing: str, done: Collection[str]) -> Mapping[str, Any]:
    """Wait until the server has a status in ``done`` and no task; ``doing`` is the verb of the progress line. Raises
    CommandError with the fault if the server is in status ERROR, NotFound if the server was deleted."""
    line = Line()
    for server in polls(lambda: _get_server(nova, server_id)):
        task = server.get("OS-EXT-STS:task_state")
        if task is None and server["status"] in done:
            line.say(f"Server {doing}... 100% complete")
            line.end("Finished")
            return server  # type: ignore[no-any-return]
        line.say(f"Server {doing}... {server.get('progress', 0)}% complete" + (f" ({task})" if task else ""))
        if task is None and server["status"] == "ERROR":
            line.end(f"Error {doing} server")
            fault = server.get("fault", {}).get("message", "no fault recorded")
            raise CommandError(f"Server {server['name']} is in status ERROR: {fault}\n"
                               f"nova explain {server_id} shows details.")
    raise AssertionError


def _get_server(nova: Nova, server_id: str) -> Any:
    server = find.existing_server(nova, server_id)
    if server is None:
        raise NotFound(f"Server {server_id} was deleted.")
    return server


def wait_for_image(nova: Nova, server_id: str, image_id: str) -> None:
    """Wait until the image of a snapshot is active. Raises CommandError if the snapshot failed."""
    line = Line()
    for image in polls(lambda: find.existing_image(nova, image_id)):
        task = _get_server(nova, server_id).get("OS-EXT-STS:task_state")
        status = (image or {}).get("status", "killed").lower()
        line.say(f"Server snapshotting... {status}" + (f" ({task})" if task else ""))
        if status == "active" and task is None:
            line.end("Finished")
            return
        if status in ("killed", "deleted", "error"):
            line.end("Error snapshotting server")
            raise CommandError(f"Image {image_id} was not created; "
                               f"nova instance-action-list {server_id} shows the reason.")
