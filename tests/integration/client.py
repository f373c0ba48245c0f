"""A small client of the Compute API for tests."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import requests

from tests.http_session import Session
from tests.integration.processes import eventually

NEWEST = "2.104"


class Client:
    """A client of ``user`` in ``project`` without Keystone. Unexpected statuses fail the test with the response
    body."""

    def __init__(self, url: str, user: str = "tester", project: str = "p" * 32, roles: str = "admin") -> None:
        self.url = url
        self.image_id = ""
        self._session = Session()
        self._session.headers.update({"X-Auth-Token": f"{user}:{project}", "X-Roles": roles})

    def sign_in(self, token: str) -> None:
        """Use this Keystone token for all further requests."""
        self._session.headers.update({"X-Auth-Token": token})

    def request(self, method: str, path: str, body: Any = None, version: str = NEWEST,
                timeout: float = 30.0, headers: Mapping[str, str] | None = None) -> requests.Response:
        """Send a request and return any response. Raises requests.RequestException without one."""
        return self._session.request(method, f"{self.url}{path}", json=body, timeout=timeout,
                                     headers={"OpenStack-API-Version": f"compute {version}", **(headers or {})})

    def get(self, path: str, version: str = NEWEST) -> Any:
        return self._expect((200,), "GET", path, None, version)

    def post(self, path: str, body: Any, version: str = NEWEST) -> Any:
        return self._expect((200, 201, 202, 204), "POST", path, body, version)

    def delete(self, path: str) -> None:
        self._expect((202, 204), "DELETE", path, None, NEWEST)

    def _expect(self, expected: Iterable[int], method: str, path: str, body: Any, version: str) -> Any:
        response = self.request(method, path, body, version)
        assert response.status_code in expected, f"{method} {path}: {response.status_code} {response.text[:2000]}"
        return response.json() if response.content else None

    # --- servers -----------------------------------------------------------------------------------
    def boot(self, name: str, **fields: Any) -> str:
        """Create a server of the smallest flavor and return its id without waiting."""
        server = {"name": name, "flavorRef": "tiny", "imageRef": self.image_id, "networks": "auto", **fields}
        return str(self.post("/servers", {"server": server})["server"]["id"])

    def action(self, server_id: str, name: str, argument: Any = None, version: str = NEWEST) -> Any:
        return self.post(f"/servers/{server_id}/action", {name: argument}, version)

    def show(self, server_id: str) -> Any:
        return self.get(f"/servers/{server_id}")["server"]

    def servers(self) -> dict[str, Any]:
        """Return all servers of the project in detail by id, also soft-deleted ones."""
        found: dict[str, Any] = {}
        path = "/servers/detail?limit=200&soft_deleted=1"
        while True:
            page = self.get(path)["servers"]
            found.update({server["id"]: server for server in page})
            if len(page) < 200:
                return found
            path = f"/servers/detail?limit=200&soft_deleted=1&marker={page[-1]['id']}"

    def wait(self, server_id: str, status: str, timeout: float = 30.0) -> Any:
        """Wait until the server has ``status`` and no task, and return it. Fail at once if the server goes to ERROR
        instead."""
        def look() -> Any:
            server = self.show(server_id)
            assert status == "ERROR" or server["status"] != "ERROR", f"{server_id}: {server.get('fault')}"
            return server if server["status"] == status and server["OS-EXT-STS:task_state"] is None else None

        return eventually(look, timeout, f"{server_id} is {status}")

    def wait_gone(self, ids: Iterable[str], timeout: float = 30.0) -> None:
        wanted = set(ids)
        eventually(lambda: not wanted & self.servers().keys(), timeout, "the deleted servers are no longer listed",
                   interval=0.3)
