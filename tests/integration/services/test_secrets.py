"""Secrets of users and operators do not appear in the logs of a run with many kinds of faults."""

from __future__ import annotations

import base64
import hashlib
import urllib.parse
import uuid
from collections.abc import Iterator, Mapping

import pytest
import sqlalchemy as sa

from tests.integration.cluster import PREPARATIONS, Cluster
from tests.integration.databases import Server, start_postgresql
from tests.integration.processes import eventually
from tests.integration.rabbit import Rabbit
from tests.integration.services.keystone_server import KeystoneServer
from tests.integration.services.test_image_glance import Glance

# Each secret is sent to Nova or by Nova, and appears nowhere else by chance.
SECRETS = {what: "/qZ+".join(hashlib.sha256(what.encode()).hexdigest()[start:start + 12] for start in (0, 12))
           for what in ("created", "failed", "evacuated", "refused", "script", "file", "database", "users-token",
                        "bad-token", "beside-token", "novas-token", "novas-password")}
LONG = SECRETS["refused"] + "x" * 250
ADMIN = "admin,member,reader"


def encoded(secret: str) -> str:
    return base64.b64encode(secret.encode()).decode()


def spellings(secret: str) -> set[str]:
    """Return the spellings of a secret: plain, in a URL (SQLAlchemy keeps the +), and within text that was encoded once
    or twice (messages)."""
    return {secret, *(urllib.parse.quote(secret, safe=safe) for safe in ("", "+", "/")), *_within(secret),
            *(twice for once in _within(secret) for twice in _within(once))}


def _within(text: str) -> set[str]:
    """Return what base64 of any data with this text contains, wherever the text begins."""
    return {encoded(" " * skipped + text)[4 if skipped else 0:-4] for skipped in range(3)}


def leaks(logs: Mapping[str, str]) -> list[tuple[str, str]]:
    """Return pairs of a log and the name of a secret in that log."""
    return [(name, what) for what, secret in SECRETS.items() for name, text in logs.items()
            if any(spelled in text for spelled in spellings(secret))]


@pytest.fixture(scope="module")
def database() -> Iterator[Server]:
    with start_postgresql() as server:  # accepts any password
        yield server


@pytest.fixture(scope="module")
def keystone() -> Iterator[KeystoneServer]:
    server = KeystoneServer({SECRETS["users-token"]: ADMIN, "tester:" + "p" * 32: ADMIN,
                             SECRETS["beside-token"]: "service"}, {SECRETS["novas-password"]: SECRETS["novas-token"]})
    yield server
    server.stop()


@pytest.fixture(scope="module")
def glance() -> Iterator[Glance]:
    made = Glance()
    yield made
    made.server.shutdown()
    made.server.server_close()


class WithGlance(Cluster):
    """A cloud with its images in Glance."""

    glance: Glance

    def _prepare(self) -> None:
        self.manage_all(*PREPARATIONS)
        self.api.image_id = str(uuid.uuid4())
        self.glance.add(self.api.image_id, disk_format="raw")


@pytest.fixture(scope="module")
def nova(rabbitmq: Rabbit, database: Server, keystone: KeystoneServer, glance: Glance) -> Iterator[Cluster]:
    url = sa.make_url(database.new_database()).set(password=SECRETS["database"])
    own = keystone.options(SECRETS["novas-password"])
    WithGlance.glance = glance
    with WithGlance(rabbitmq.new_vhost(), url.render_as_string(hide_password=False), computes=2, options={
            "DEFAULT": {"debug": True}, "api": {"auth_strategy": "keystone"},
            "keystone_authtoken": {**own, "service_token_roles_required": True},
            "image": {"driver": "glance"}, "glance": {**own, "endpoint_override": glance.url}}) as cluster:
        cluster.api.sign_in(SECRETS["users-token"])
        yield cluster


def boot(nova: Cluster, password: str, host: str) -> str:
    return nova.api.boot("secretive", adminPass=password, user_data=encoded(SECRETS["script"]), config_drive=True,
                         availability_zone=f"nova:{host}")


def refuse(nova: Cluster) -> None:
    """Send invalid requests; the errors must name the fault but not the value."""
    server = {"name": "n", "flavorRef": "tiny", "imageRef": nova.api.image_id, "networks": "auto"}
    for wrong in ({"adminPass": LONG}, {"name": "n" * 255, "max_count": 2, "adminPass": SECRETS["refused"]},
                  {"user_data": encoded(SECRETS["refused"] * 2000)}, {"imageRef": "", "adminPass": SECRETS["refused"]}):
        assert nova.api.request("POST", "/servers", {"server": {**server, **wrong}}).status_code == 400
    old = {**server, "networks": [], "personality": [{"path": "/" + "p" * 300, "contents": encoded(SECRETS["file"])}]}
    assert nova.api.request("POST", "/servers", {"server": old}, "2.1").status_code in (400, 403)


def ask_with_tokens(nova: Cluster) -> None:
    """Send a service token beside the user's, an invalid one, and requests to Keystone and Glance with the user's
    token."""
    beside = {"X-Service-Token": SECRETS["beside-token"]}
    assert nova.api.request("GET", "/servers/detail", headers=beside).status_code == 200
    for wrong in ({"X-Auth-Token": SECRETS["bad-token"]}, {"X-Service-Token": SECRETS["bad-token"]}):
        assert nova.api.request("GET", "/servers", headers=wrong).status_code == 401
    assert nova.api.request("GET", "/os-quota-sets/other-project").status_code == 200
    assert nova.api.request("GET", "/images", version="2.1").status_code == 200


def test_secret_search_finds_all_encodings_of_a_secret() -> None:
    for what, secret in SECRETS.items():
        packed = [encoded("x" * before + part + "tail") for before in range(6) for part in (secret, encoded(secret))]
        url = sa.make_url("postgresql://nova@db/nova").set(password=secret).render_as_string(hide_password=False)
        for text in (secret, urllib.parse.quote(secret), urllib.parse.quote(secret, safe=""), url, *packed):
            assert leaks({"api.log": f"INFO {text}."}) == [("api.log", what)]


def test_logs_contain_no_secrets(nova: Cluster, database: Server, rabbitmq: Rabbit, keystone: KeystoneServer,
                                 glance: Glance) -> None:
    built = boot(nova, SECRETS["created"], "compute-1")
    nova.api.wait(built, "ACTIVE")
    nova.stop("compute-2")
    with (nova.directory / "compute-2.conf").open("a") as file:
        file.write("[fake]\nfailure = spawn:1.0\n")
    nova.start("compute-2")
    nova.wait_ready()
    nova.api.wait(boot(nova, SECRETS["failed"], "compute-2"), "ERROR")
    refuse(nova)
    ask_with_tokens(nova)
    nova.kill("compute-1")
    (service,) = [each for each in nova.api.get("/os-services")["services"] if each["host"] == "compute-1"]
    answer = nova.api.request("PUT", f"/os-services/{service['id']}", {"forced_down": True})
    assert answer.status_code == 200, answer.text
    nova.api.action(built, "evacuate", {"adminPass": SECRETS["evacuated"]})
    nova.api.wait(built, "ERROR", 60)
    database.kill()
    database.restart()
    eventually(lambda: nova.api.request("GET", "/servers/detail").status_code == 200, 90,
               "requests succeed after the restart of the database")
    nova.delete_all()
    nova.manage("--debug", "db", "version")
    rabbit = urllib.parse.urlsplit(nova.transport_url).password
    logs = {path.name: path.read_text(errors="replace") for path in nova.directory.rglob("*.log")}
    assert {name.removesuffix(".log").partition("-")[0] for name in logs} >= {"api", "conductor", "compute"}
    assert any(" DEBUG " in text and "database.connection " in text for text in logs.values())
    assert leaks(logs) == []
    assert [name for name, text in logs.items() if f":{rabbit}@" in text] == []
    sent = {each for _method, _path, *both in keystone.seen for each in both}
    sent |= {headers.get("X-Auth-Token", "") for *_rest, headers, _body in glance.requests}
    assert sent >= {secret for what, secret in SECRETS.items() if what.endswith("-token")}
