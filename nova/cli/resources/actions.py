"""Commands for the actions of servers: history, live progress (watch) and failures (explain)."""

import argparse
import datetime
from collections.abc import Iterator, Mapping
from typing import Any

from nova.cli import find, progress
from nova.cli.client import Nova
from nova.cli.declare import SERVER, arg, doing, flag, listing, showing, table
from nova.cli.errors import CommandError, NotFound

Action = Mapping[str, Any]


def _server_id(nova: Nova, wanted: str) -> str:
    """Return the id of a server; an id of a deleted server is accepted as well. Raises NotFound."""
    try:
        return str(find.server(nova, wanted)["id"])
    except NotFound:
        if find.is_id(wanted):
            return wanted
        raise


def _actions(nova: Nova, server_id: str, **query: Any) -> Any:
    return nova.get(f"/servers/{server_id}/os-instance-actions", **query)["instanceActions"]


@listing(SERVER, arg("--marker", metavar="REQUEST", since=58, help="last action of the previous page"),
         arg("--limit", metavar="N", type=int, since=58, help="maximum number of actions"),
         arg("--changes-since", metavar="TIME", since=58, help="only actions changed at or after TIME (ISO 8601)"),
         arg("--changes-before", metavar="TIME", since=66, help="only actions changed at or before TIME (ISO 8601)"))
def instance_action_list(nova: Nova, args: argparse.Namespace) -> Any:
    """List the actions of a server."""
    query = {"limit": args.limit, "marker": args.marker, "changes-since": args.changes_since,
             "changes-before": args.changes_before}
    actions = _actions(nova, _server_id(nova, args.server), **query)
    actions.sort(key=lambda action: str(action["start_time"]))
    columns = {"Action": "action", "Request_ID": "request_id", "Message": "message", "Start_Time": "start_time"}
    if nova.version >= 58:
        columns["Updated_At"] = "updated_at"
    return table(columns, actions)


@showing(SERVER, arg("request_id", metavar="REQUEST", help="request id of the action (see nova instance-action-list)"))
def instance_action(nova: Nova, args: argparse.Namespace) -> Any:
    """Show an action of a server with its steps."""
    return dict(sorted(_action(nova, _server_id(nova, args.server), args.request_id).items()))


def _action(nova: Nova, server_id: str, request_id: str) -> Action:
    path = f"/servers/{server_id}/os-instance-actions/{find.quoted(request_id)}"
    return nova.get(path)["instanceAction"]  # type: ignore[no-any-return]


def _events(action: Action) -> list[Mapping[str, Any]]:
    """Return the events of an action, oldest first."""
    return sorted(action.get("events") or (), key=lambda event: str(event["start_time"]))


@doing(SERVER, flag("--follow", help="continue with later actions, until the server is deleted or Ctrl-C"))
def watch(nova: Nova, args: argparse.Namespace) -> int:
    """Show the steps of the running action of a server as they happen.

    Exits when the action completes: with 0, or with 1 if it failed. If no action runs, the newest action is shown.
    """
    watched = _Watched(nova, _server_id(nova, args.server))
    for server in progress.polls(watched.poll):
        if watched.busy(server):
            continue
        if server is None:
            print("The server is deleted.")
        elif not args.follow:
            print(f"The server is {server['status']}.")
        if server is None or not args.follow:
            return 1 if watched.failed else 0
    raise AssertionError


# Number of polls (about two seconds) after which an action without steps counts as complete.
_MAX_QUIET_POLLS = 5


class _Watched:
    """A watched server with the action being printed; ``failed``: True if that action failed."""

    def __init__(self, nova: Nova, server_id: str) -> None:
        self.failed = False
        self._nova = nova
        self._server_id = server_id
        self._seen: set[tuple[str, ...]] = set()
        self._action: Action = {}
        self._newest: str | None = None
        self._quiet_polls = 0

    def poll(self) -> Any:
        """Print new steps of the current action; return the server, or None if it is deleted. A newer action becomes
        current when the current one has ended."""
        server = find.existing_server(self._nova, self._server_id)
        actions = _actions(self._nova, self._server_id, limit=1 if self._nova.version >= 58 else None)
        if not actions:
            raise CommandError(f"Server {self._server_id} has no actions.")
        self._newest = actions[0]["request_id"]
        current = self._action.get("request_id", self._newest)
        self._print_action(current)
        if current != self._newest and _all_ended(self._action):
            self._print_action(self._newest)
        return server

    def busy(self, server: Any) -> bool:
        """Return True if the current action is running, or more output is expected."""
        if not _all_ended(self._action) or self._action["request_id"] != self._newest:
            return True
        if not self._action.get("events"):  # either complete without steps (a lock), or queued behind another action
            self._quiet_polls += 1
            if self._quiet_polls < _MAX_QUIET_POLLS:
                return True
        return server is not None and server.get("OS-EXT-STS:task_state") is not None

    def _print_action(self, request_id: str) -> None:
        if request_id != self._action.get("request_id"):
            self._quiet_polls = 0
        self._action = _action(self._nova, self._server_id, request_id)
        self.failed = bool(self._action.get("message"))
        for key, when, line in _lines(self._action):
            if key not in self._seen:
                self._seen.add(key)
                print(f"{when[11:19]} {line}", flush=True)


def _all_ended(action: Action) -> bool:
    return all(event["finish_time"] for event in action.get("events") or ())


def _lines(action: Action) -> Iterator[tuple[tuple[str, ...], str, str]]:
    """Yield (key, time, line) for an action and its steps, in chronological order; the key identifies the line."""
    request, name = action["request_id"], action["action"]
    yield (request,), action["start_time"], f"{name}: {request}"
    for event in _events(action):
        key, step = (request, event["event"], event["start_time"]), event["event"]
        location = f" on {event['host']}" if event.get("host") else ""
        if not event["finish_time"]:
            yield key, event["start_time"], f"  {step}{location} ..."
            continue
        line = f"  {step}{location}: {event['result']} after {_seconds(event):.1f} s"
        if event.get("details"):
            line += f": {event['details']}"
        yield (*key, "end"), event["finish_time"], line
    if action.get("message"):
        when = action.get("updated_at") or action["start_time"]
        yield (request, "message"), when, f"{name} failed: {action['message']}"


def _seconds(event: Mapping[str, Any]) -> float:
    begin, end = (datetime.datetime.fromisoformat(event[name]) for name in ("start_time", "finish_time"))
    return (end - begin).total_seconds()


@doing(SERVER)
def explain(nova: Nova, args: argparse.Namespace) -> int:
    """Explain the newest failure of a server, for example why no host was found.

    Administrators also see which filters rejected which hosts. Exits with 0 if nothing failed, else with 1.
    """
    server_id = _server_id(nova, args.server)
    server = find.existing_server(nova, server_id)
    failed = next((action for action in _actions(nova, server_id) if action.get("message")), None)
    fault = (server or {}).get("fault")
    if not failed and not fault:
        status = "deleted" if server is None else server["status"]
        print(f"Nothing failed. The server is {status}; nova instance-action-list {server_id} shows its actions.")
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
                for detail in dict.fromkeys((event.get("details"), event.get("traceback"))):
                    if detail and detail not in str(action["message"]):
                        print(_indented(detail))
    if "valid host" in str((fault or failed or {}).get("message")).lower():
        print("What to do: request a smaller flavor (nova flavor-list), another zone (nova availability-zone-list) "
              "or server group.\nAdministrators: nova hypervisor-list, service-list; nova-manage schedule explain.")
    else:
        print("What to do: nova instance-action-list shows all actions.")
    return 1


def _indented(text: str) -> str:
    return "\n".join(f"    {line}" for line in text.rstrip().splitlines())
