"""A fake Manila server with the API used by conductors: shares, export locations and access rules."""

from __future__ import annotations

import json
import threading
import uuid
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

VERSION = "X-OpenStack-Manila-API-Version"


class ManilaServer:
    """A fake Manila server.

    ``applies`` is the number of queries until a new rule is active, ``broken`` the status code of all responses.
    """

    def __init__(self) -> None:
        self.shares: dict[str, dict[str, Any]] = {}
        self.rules: dict[str, dict[str, Any]] = {}
        self.applies = 0
        self.broken = 0
        self.requests: list[tuple[str, str, str | None, str | None]] = []
        handler = type("Handler", (_Handler,), {"manila": self})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def new(self, **values: Any) -> str:
        share = str(uuid.uuid4())
        self.shares[share] = {"id": share, "status": "available", "share_proto": "NFS", "project_id": "p1",
                              "name": "docs", **values}
        return share

    # --- requests -----------------------------------------------------------------------------
    def get(self, path: str) -> tuple[int, Any]:
        path, _, query = path.partition("?")
        if path == "/share-access-rules":
            share = query.removeprefix("share_id=")
            if share not in self.shares:
                return 404, {"itemNotFound": {"message": "no such share"}}
            for rule in self.rules.values():
                rule["looks"] -= 1
                if rule["state"] == "applying" and rule["looks"] < 0:
                    rule["state"] = "active"
            return 200, {"access_list": [rule for rule in self.rules.values() if rule["share_id"] == share]}
        share, _, rest = path.removeprefix("/shares/").partition("/")
        share = share.lower()  # the database of Manila is case-insensitive
        if share not in self.shares:
            return 404, {"itemNotFound": {"message": "no such share"}}
        if rest == "export_locations":
            return 200, {"export_locations": self.shares[share].get("locations", [
                {"id": "1", "path": "10.0.0.50:/second", "preferred": False},
                {"id": "2", "path": "10.0.0.50:/first", "preferred": True}])}
        return 200, {"share": self.shares[share]}

    def post(self, path: str, body: Any) -> tuple[int, Any]:
        share = path.removeprefix("/shares/").partition("/")[0]
        if share not in self.shares:
            return 404, {"itemNotFound": {"message": "no such share"}}
        if wanted := body.get("allow_access"):
            if any(rule["access_to"] == wanted["access_to"] and rule["share_id"] == share
                   for rule in self.rules.values()):
                return 400, {"badRequest": {"message": "Share access exists."}}
            rule = {**wanted, "id": str(uuid.uuid4()), "share_id": share, "state": "applying", "looks": self.applies}
            self.rules[rule["id"]] = rule
            return 200, {"access": rule}
        denied = body["deny_access"]
        if not denied.get("unrestrict"):
            return 403, {"forbidden": {"message": "it is locked"}}
        self.rules.pop(denied["access_id"], None)
        return 202, None


class _Handler(BaseHTTPRequestHandler):
    manila: ManilaServer

    def do_GET(self) -> None:
        self._answer(lambda: self.manila.get(self.path))

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self._answer(lambda: self.manila.post(self.path, body))

    def _answer(self, ask: Any) -> None:
        self.manila.requests.append(
            (self.command, self.path, self.headers.get(VERSION), self.headers.get("X-Auth-Token")))
        status, body = (self.manila.broken, None) if self.manila.broken else ask()
        data = b"" if body is None else json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_args: Any) -> None:
        """Log nothing."""
