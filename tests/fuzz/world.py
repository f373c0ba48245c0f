"""The suite in a single process, the resources of its projects, and the clients that send requests."""

from __future__ import annotations

import contextlib
import dataclasses
import pathlib
import uuid
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import psutil

from nova import conf
from nova.db import audit
from nova.db.sql.engine import Database
from tests.functional.refusals import KEY
from tests.http_session import Session
from tests.integration.allinone import start_allinone
from tests.integration.client import Client
from tests.integration.processes import Process


@dataclasses.dataclass(frozen=True)
class Persona:
    """A client with roles in a project. ``victim``: the client targets the resources of the project "owner"."""

    name: str
    project: str
    roles: str
    victim: bool = False

    @property
    def headers(self) -> dict[str, str]:
        return {"X-User-Id": self.project, "X-Project-Id": self.project, "X-Roles": self.roles}


PERSONAS = (
    Persona("admin", "fuzz", "admin"), Persona("member", "fuzz", "member"), Persona("reader", "fuzz", "reader"),
    Persona("stranger", "strangers", "member", victim=True), Persona("nobody", "strangers", "none", victim=True),
)


class World:
    """A running suite. ``things``: ids by project; ``secrets``: must not be logged; ``mark``: in the owner's names."""

    def __init__(self, url: str, process: Process, database: str, image_id: str) -> None:
        self.url, self.process, self.image_id, self._database = url, process, image_id, database
        self.mark = f"owned-{uuid.uuid4().hex[:12]}"
        self.secrets = [f"{kind}-{uuid.uuid4().hex}" for kind in ("pass", "token")]
        self.user_data = uuid.uuid4().hex * 2  # valid base64
        self.secrets.append(self.user_data)
        self.things: dict[str, dict[str, str]] = {}
        self.session = Session()

    def client(self, project: str) -> Client:
        made = Client(f"{self.url}/v2.1", user=project, project=project)
        made.image_id = self.image_id
        return made

    # --- resources --------------------------------------------------------------------------------
    def furnish(self, project: str, word: str) -> None:
        """Create every kind of resource of a project, with this name."""
        admin, client = self.client("admin"), self.client(project)
        admin.post("/flavors", {"flavor": {"name": word, "id": word, "vcpus": 1, "ram": 128, "disk": 1,
                                           "os-flavor-access:is_public": False}})
        admin.post(f"/flavors/{word}/action", {"addTenantAccess": {"tenant": project}})
        group = client.post("/os-server-groups", {"server_group": {"name": word, "policy": "soft-affinity"}})
        wall = client.post("/os-security-groups", {"security_group": {"name": word, "description": word}}, "2.1")
        client.post("/os-keypairs", {"keypair": {"name": word, "public_key": KEY, "type": "ssh"}})
        server = client.boot(word, flavorRef=word, networks="none", metadata={"key": word}, key_name=word)
        client.wait(server, "ACTIVE", 60)
        self.things[project] = {
            "servers": server, "flavors": word, "os-keypairs": word, "images": self.image_id, "os-quota-sets": project,
            "os-server-groups": group["server_group"]["id"], "os-security-groups": wall["security_group"]["id"]}

    def renew(self) -> None:
        """Remove the results of requests and create all resources of the project "fuzz" again."""
        for project in ("fuzz", "strangers"):
            client = self.client(project)
            servers = list(client.servers())
            for server in servers:
                client.request("POST", f"/servers/{server}/action", {"unlock": None})
                client.request("DELETE", f"/servers/{server}")
            client.wait_gone(servers, 60)
            for key in client.get("/os-keypairs")["keypairs"]:
                client.request("DELETE", f"/os-keypairs/{quote(key['keypair']['name'], safe='')}")
            for kind in ("server", "security"):
                for group in client.get(f"/os-{kind}-groups", "2.1")[f"{kind}_groups"]:
                    client.request("DELETE", f"/os-{kind}-groups/{group['id']}", version="2.1")
            client.request("DELETE", f"/os-quota-sets/{project}")
        self.furnish("fuzz", f"fuzz-{uuid.uuid4().hex[:8]}")

    def owned(self) -> Any:
        """Return all resources of the owner, as the owner sees them."""
        client = self.client("owner")
        server = self.things["owner"]["servers"]
        return [client.get(f"/servers/{server}"), client.get("/servers/detail"),
                client.get(f"/servers/{server}/os-instance-actions"), client.get("/os-server-groups"),
                client.get("/os-security-groups", "2.1"), client.get("/os-keypairs"),
                client.get(f"/flavors/{self.mark}"), client.get("/os-quota-sets/owner")]

    # --- the process -------------------------------------------------------------------------------
    def memory(self) -> float:
        """Return the resident memory in MB."""
        return float(psutil.Process(self.process.pid).memory_info().rss / 2**20)

    def findings(self) -> list[str]:
        """Return the findings of the audit of an idle suite."""
        conf.load([], default_files=[])
        database = Database(self._database)
        try:
            return [str(finding) for finding in audit.audit(database)]
        finally:
            database.engine.dispose()


@contextlib.contextmanager
def start_world(base: pathlib.Path, database: str, debug: bool) -> Iterator[World]:
    """Start the suite and create the owner's resources; ``database`` is a URL, or "" for SQLite."""
    database = database or f"sqlite:///{base}/nova.sqlite"
    options = f"[DEFAULT]\ndebug = {debug}\n[database]\nconnection = {database}\n"
    with start_allinone(base, options) as (process, url, image_id):
        world = World(url, process, database, image_id)
        world.furnish("owner", world.mark)
        yield world
