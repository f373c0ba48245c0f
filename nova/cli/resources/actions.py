"""What was done to servers, what is done right now, and why something could not be done."""

from __future__ import annotations

import argparse
import datetime
from collections.abc import Iterator, Mapping
from typing import Any

from nova.cli import find, progress
from nova.cli.client import Nova
from nova.cli.declare import SERVER, arg, doing, flag, listing, showing
from nova.cli.errors import CommandError, NotFound, Refused

Action = Mapping[str, Any]


def _server_id(nova: Nova, wanted: str) -> str:
    """Of a deleted server, too, if it is an id."""
    try:
        return str(find.server(nova, wanted)["id"])
    except NotFound:
        if find.is_id(wanted):
            return wanted
        raise


def _actions(nova: Nova, server_id: str, **query: Any) -> Any:
    return nova.get(f"/servers/{server_id}/os-instance-actions", **query)["instanceActions"]


@listing(SERVER, arg("--marker", metavar="REQUEST", since=58, help="the last action of the page before"),
         arg("--limit", metavar="N", type=int, since=58, help="so many at most"),
         arg("--changes-since", metavar="TIME", since=58, help="that changed at this time (ISO 8601) or later"),
         arg("--changes-before", metavar="TIME", since=66, help="that changed at this time (ISO 8601) or earlier"))
def list_actions(nova: Nova, args: argparse.Namespace) -> Any:
    """List what was done to a server."""
    query = {"limit": args.limit, "marker": args.marker, "changes-since": args.changes_since,
             "changes-before": args.changes_before}
    found = sorted(_actions(nova, _server_id(nova, args.server), **query), key=lambda action: str(action["start_time"]))
    columns = {"Action": "action", "Request_ID": "request_id", "Message": "message", "Start_Time": "start_time"}
    if nova.version >= 58:
        columns["Updated_At"] = "updated_at"
    return tuple(columns), [tuple(action.get(name) for name in columns.values()) for action in found]


@showing(SERVER, arg("request_id", metavar="REQUEST", help="the action's request (nova instance-action-list)"))
def show_action(nova: Nova, args: argparse.Namespace) -> Any:
    """Show what was done to a server, step by step."""
    return dict(sorted(_action(nova, _server_id(nova, args.server), args.request_id).items()))


def _action(nova: Nova, server_id: str, request_id: str) -> Action:
    path = f"/servers/{server_id}/os-instance-actions/{find.quoted(request_id)}"
    return nova.get(path)["instanceAction"]  # type: ignore[no-any-return]


def _events(action: Action) -> list[Mapping[str, Any]]:
    """The oldest first."""
    return sorted(action.get("events") or (), key=lambda event: str(event["start_time"]))


# --- watch -------------------------------------------------------------------------------------------
@doing(SERVER, flag("--follow", help="go on with what is done next, until the server is gone or Ctrl-C"))
def watch(nova: Nova, args: argparse.Namespace) -> int:
    """Show the steps of what is done to a server, as they happen.

    Ends when it is done: 0, or 1 if it failed. If nothing is under way, the last thing that was done is shown.
    """
    watched = _Watched(nova, _server_id(nova, args.server))
    for server in progress.polls(watched.look):
        if watched.busy(server):
            continue
        if server is None:
            print("The server is deleted.")
        elif not args.follow:
            print(f"The server is {server['status']}.")
        if server is None or not args.follow:
            return 1 if watched.failed else 0
    raise AssertionError


# So many looks, about two seconds, may an action without any step take to begin.
_QUIET = 5


class _Watched:
    """A server, and the action that is told of at the moment; ``failed``: it did."""

    def __init__(self, nova: Nova, server_id: str) -> None:
        self.failed = False
        self._nova = nova
        self._server_id = server_id
        self._seen: set[tuple[str, ...]] = set()
        self._action: Action = {}
        self._newest: str | None = None
        self._quiet = 0

    def look(self) -> Any:
        """The server, None if it is gone; what is new of its action is printed. Another action is told of when it began
        after this one had ended."""
        server = _server(self._nova, self._server_id)
        newest = _newest(self._nova, self._server_id)
        if newest is None:
            raise CommandError(f"Nothing was ever done to the server {self._server_id}.")
        self._newest = newest["request_id"]
        current = self._action.get("request_id", self._newest)
        self._tell(current)
        if current != self._newest and _all_ended(self._action):
            self._tell(self._newest)
        return server

    def busy(self, server: Any) -> bool:
        """Whether there is more to come."""
        if not _all_ended(self._action) or self._action["request_id"] != self._newest:
            return True
        if not self._action.get("events"):  # over at once (a lock), or not yet begun: it waits behind another one
            self._quiet += 1
            if self._quiet < _QUIET:
                return True
        return server is not None and server.get("OS-EXT-STS:task_state") is not None

    def _tell(self, request_id: str) -> None:
        if request_id != self._action.get("request_id"):
            self._quiet = 0
        self._action = _action(self._nova, self._server_id, request_id)
        self.failed = bool(self._action.get("message"))
        for key, when, line in _lines(self._action):
            if key not in self._seen:
                self._seen.add(key)
                print(f"{when[11:19]} {line}", flush=True)


def _server(nova: Nova, server_id: str) -> Any:
    """None if it is gone."""
    try:
        return nova.get(f"/servers/{server_id}")["server"]
    except Refused as error:
        if error.status != 404:
            raise
        return None


def _newest(nova: Nova, server_id: str) -> Any:
    found = _actions(nova, server_id, limit=1 if nova.version >= 58 else None)
    return found[0] if found else None


def _all_ended(action: Action) -> bool:
    return all(event["finish_time"] for event in action.get("events") or ())


def _lines(action: Action) -> Iterator[tuple[tuple[str, ...], str, str]]:
    """(what it is known by, when it was, what is said) in the order in which it was."""
    request, name = action["request_id"], action["action"]
    yield (request,), action["start_time"], f"{name}: {request}"
    for event in _events(action):
        key, step = (request, event["event"], event["start_time"]), event["event"]
        where = f" on {event['host']}" if event.get("host") else ""
        if not event["finish_time"]:
            yield key, event["start_time"], f"  {step}{where} ..."
            continue
        said = f"  {step}{where}: {event['result']} after {_seconds(event):.1f} s"
        if event.get("details"):
            said += f": {event['details']}"
        yield (*key, "end"), event["finish_time"], said
    if action.get("message"):
        when = action.get("updated_at") or action["start_time"]
        yield (request, "message"), when, f"{name} failed: {action['message']}"


def _seconds(event: Mapping[str, Any]) -> float:
    begin, end = (datetime.datetime.fromisoformat(event[name]) for name in ("start_time", "finish_time"))
    return (end - begin).total_seconds()


# --- explain -----------------------------------------------------------------------------------------
@doing(SERVER)
def explain(nova: Nova, args: argparse.Namespace) -> int:
    """Say why the last request for a server found no host, or failed otherwise.

    Administrators are told which filter refused which hosts. Ends with 0 if nothing failed, with 1 if something did.
    """
    server_id = _server_id(nova, args.server)
    server = _server(nova, server_id)
    failed = next((action for action in _actions(nova, server_id) if action.get("message")), None)
    fault = (server or {}).get("fault")
    if not failed and not fault:
        status = "deleted" if server is None else server["status"]
        print(f"Nothing failed. The server is {status}; nova instance-action-list {server_id} shows what was done.")
        return 0
    if fault:
        print(f"The server is {server['status']}: {fault['message']} ({fault['created']})")
    if fault and fault.get("details"):
        print(_indented(fault["details"]))
    if failed:
        action = _action(nova, server_id, failed["request_id"])
        print(f"{action['action']} of {action['start_time']} ({action['request_id']}): {action['message']}")
        for event in _events(action):
            if event["result"] == "Error":
                print(f"  {event['event']} failed" + (f" on {event['host']}" if event.get("host") else ""))
                for more in dict.fromkeys((event.get("details"), event.get("traceback"))):
                    if more and more not in str(action["message"]):
                        print(_indented(more))
    print(_advice(str((fault or failed or {}).get("message"))))
    return 1


def _indented(text: str) -> str:
    return "\n".join(f"    {line}" for line in text.rstrip().splitlines())


def _advice(message: str) -> str:
    if "valid host" in message.lower():
        return ("What to do: ask for less (nova flavor-list), for another zone (nova availability-zone-list) or "
                "another group.\nAdministrators: nova hypervisor-list, service-list; nova-manage schedule explain.")
    return "What to do: nova instance-action-list shows all that was done."
