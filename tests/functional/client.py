"""A small HTTP client for the tests: sends the requests of a stock client, without its start-up time."""

import uuid

from tests.http_session import Session
from tests.polling import poll

NO_IMAGE = None


class Failed(Exception):
    """A response with an error status; ``code``, ``key`` and ``message`` come from its body."""

    def __init__(self, response):
        self.code = response.status_code
        self.response = response
        try:
            body = response.json()
            self.key, fault = next(iter(body.items()))
            self.message = fault["message"]
        except (ValueError, AttributeError, KeyError, TypeError):
            self.key, self.message = None, response.text
        super().__init__(f"{response.request.method} {response.url}: {self.code} {self.message}")


def wait_for(condition, seconds=15, reason=""):
    """Poll ``condition`` until its result is true; return the result. Fail after ``seconds``.

    ``reason``: the awaited state, for the failure message, or a function that returns it.
    """
    value = poll(condition, seconds, 0.02)
    assert value, f"not within {seconds} s: {reason() if callable(reason) else reason or condition}"
    return value


class Client:
    """A client for a user of a project; ``version``: the default microversion of requests."""

    def __init__(self, url, project="p", user="u", roles="admin", version="2.96"):
        self.url = url
        self.project = project
        self.version = version
        self.session = Session()
        self.request_id = None
        self.answered = None
        self.session.headers.update({
            "X-Auth-Token": f"{user}:{project}", "X-User-Id": user, "X-Project-Id": project, "X-Roles": roles})

    def call(self, method, path, body=None, version=None, expect=None, **query):
        headers = {"OpenStack-API-Version": f"compute {version or self.version}"}
        response = self.session.request(
            method, f"{self.url}/v2.1{path}", json=body, headers=headers, params=query or None, timeout=60)
        self.answered, self.request_id = response, response.headers.get("x-openstack-request-id")
        if expect is not None:
            assert response.status_code == expect, f"{response.status_code} {response.text}"
        elif response.status_code >= 400:
            raise Failed(response)
        return response.json() if response.content and "json" in response.headers.get("Content-Type", "") else None

    def get(self, path, **options):
        return self.call("GET", path, **options)

    def post(self, path, body, **options):
        return self.call("POST", path, body, **options)

    def put(self, path, body, **options):
        return self.call("PUT", path, body, **options)

    def delete(self, path, **options):
        return self.call("DELETE", path, **options)

    # --- servers -----------------------------------------------------------------------------------
    def flavor(self, **values):
        flavor = {"name": f"f-{uuid.uuid4().hex[:8]}", "ram": 128, "vcpus": 1, "disk": 1, **values}
        return self.post("/flavors", {"flavor": flavor})["flavor"]["id"]

    def boot(self, flavor, image, name="server", networks="none", top=None, **values):
        """Request a server; return its id (of several servers: the id of the first)."""
        server = {"name": name, "flavorRef": flavor, "imageRef": image, "networks": networks, **values}
        return self.post("/servers", {"server": server, **(top or {})})["server"]["id"]

    def server(self, uuid, **options):
        return self.get(f"/servers/{uuid}", **options)["server"]

    def action(self, uuid, name, value=None, **options):
        return self.post(f"/servers/{uuid}/action", {name: value}, **options)

    def wait(self, uuid, *statuses, seconds=20):
        """Wait until the server has one of these statuses and no task; return the server. Fails after ``seconds``."""
        server = {}

        def reached():
            server.clear()
            server.update(self.server(uuid))
            return server["status"] in statuses and server.get("OS-EXT-STS:task_state") is None

        wait_for(reached, seconds, lambda: (
            f"still {server['status']} {server.get('OS-EXT-STS:task_state')} {server.get('fault', '')}"))
        return server

    def wait_idle(self, uuid, seconds=20):
        """Wait until the server has no task; return the server."""
        return wait_for(lambda: (server := self.server(uuid))["OS-EXT-STS:task_state"] is None and server, seconds)

    def wait_gone(self, uuid, seconds=20):
        wait_for(lambda: self.session.get(f"{self.url}/v2.1/servers/{uuid}", timeout=60).status_code == 404, seconds,
                 f"server {uuid} is deleted")
