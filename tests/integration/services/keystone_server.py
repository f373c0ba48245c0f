"""A minimal Keystone: issues tokens for passwords, validates tokens and shows projects."""

from __future__ import annotations

import http.server
import json
import threading
from typing import Any

_PROJECT = "p" * 32


class KeystoneServer:
    """The server. ``tokens`` maps valid tokens to their roles, ``passwords`` maps passwords to the tokens issued for
    them."""

    def __init__(self, tokens: dict[str, str], passwords: dict[str, str]) -> None:
        self.tokens, self.passwords = tokens, passwords
        # (method, path, X-Auth-Token, X-Subject-Token) of each request
        self.seen: list[tuple[str, str, str, str]] = []
        handler = type("Handler", (_Handler,), {"keystone": self})
        self._http = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._http.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._http.server_port}/v3"
        threading.Thread(target=self._http.serve_forever, daemon=True).start()

    def stop(self) -> None:
        self._http.shutdown()
        self._http.server_close()

    def options(self, password: str) -> dict[str, str]:
        """Return the options of a section of nova.conf for the user with this password."""
        return {"auth_type": "password", "auth_url": self.url, "username": "nova", "password": password,
                "user_domain_name": "Default", "project_name": "service", "project_domain_name": "Default"}

    def describe(self, roles: str) -> dict[str, Any]:
        """Return a token document with these roles, as Keystone does."""
        domain = {"id": "default", "name": "Default"}
        endpoints = [{"id": interface, "interface": interface, "region": "R", "region_id": "R", "url": self.url}
                     for interface in ("public", "internal", "admin")]
        return {"token": {
            "methods": ["password"], "user": {"id": "tester", "name": "tester", "domain": domain},
            "project": {"id": _PROJECT, "name": "tests", "domain": domain}, "is_domain": False,
            "roles": [{"id": role, "name": role} for role in roles.split(",")],
            "issued_at": "2026-01-01T00:00:00.000000Z", "expires_at": "2099-01-01T00:00:00.000000Z",
            "catalog": [{"type": "identity", "name": "keystone", "id": "k", "endpoints": endpoints}]}}


class _Handler(http.server.BaseHTTPRequestHandler):
    keystone: KeystoneServer
    protocol_version = "HTTP/1.1"

    def log_message(self, *_args: Any) -> None:
        """Suppress request logs."""

    def _answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        about = self.headers.get("X-Subject-Token", "")
        own = self.headers.get("X-Auth-Token", "")
        keystone = self.keystone
        keystone.seen.append((self.command, self.path, own, about))
        if self.path.rstrip("/") == "/v3":
            self._send(200, {"version": {"id": "v3.14", "status": "stable",
                                         "links": [{"rel": "self", "href": keystone.url}]}})
        elif self.command == "POST" and self.path == "/v3/auth/tokens":
            given = json.loads(body)["auth"]["identity"]
            if "token" in given["methods"]:  # a new token with the same rights
                token = given["token"]["id"] if given["token"]["id"] in keystone.tokens else ""
                self._send(201 if token else 401, keystone.describe(keystone.tokens.get(token, "")), token)
                return
            token = keystone.passwords.get(given["password"]["user"]["password"], "")
            self._send(201 if token else 401, keystone.describe("service,admin"), token)
        elif own not in {*keystone.tokens, *keystone.passwords.values()}:
            self._send(401, {"error": {"code": 401, "message": "The request you have made requires authentication."}})
        elif self.path.startswith("/v3/auth/tokens"):
            roles = keystone.tokens.get(about)
            self._send(200 if roles else 404, keystone.describe(roles or ""), about)
        else:
            self._send(200, {})

    def _send(self, status: int, body: Any, token: str = "") -> None:
        said = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(said)))
        if token:
            self.send_header("X-Subject-Token", token)
        self.end_headers()
        self.wfile.write(said)

    do_GET = do_HEAD = do_POST = _answer
