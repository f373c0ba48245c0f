"""What users and operators keep secret is in no log of a whole run, with everything that can go wrong in it."""

from __future__ import annotations

import base64
import urllib.parse
from collections.abc import Iterator

import pytest
import sqlalchemy as sa

from tests.integration.cluster import Cluster
from tests.integration.databases import Server, start_postgresql
from tests.integration.processes import eventually
from tests.integration.rabbit import Rabbit

# Each is sent somewhere, and is nowhere else by chance.
SECRETS = {what: f"{what}-Hx7/qZ+{number}w" for number, what in enumerate((
    "created", "failed", "evacuated", "refused", "script", "file", "database"))}
LONG = SECRETS["refused"] + "x" * 250


def encoded(secret: str) -> str:
    return base64.b64encode(secret.encode()).decode()


@pytest.fixture(scope="module")
def database() -> Iterator[Server]:
    with start_postgresql() as server:  # it lets everybody in, whatever the password
        yield server


@pytest.fixture(scope="module")
def nova(rabbitmq: Rabbit, database: Server) -> Iterator[Cluster]:
    url = sa.make_url(database.new_database()).set(password=SECRETS["database"])
    with Cluster(rabbitmq.new_vhost(), url.render_as_string(hide_password=False), computes=2,
                 options={"DEFAULT": {"debug": True}}) as cluster:
        yield cluster


def boot(nova: Cluster, password: str, host: str) -> str:
    return nova.api.boot("secretive", adminPass=password, user_data=encoded(SECRETS["script"]), config_drive=True,
                         availability_zone=f"nova:{host}")


def refuse(nova: Cluster) -> None:
    """What is wrong is said, and not what it was."""
    server = {"name": "n", "flavorRef": "tiny", "imageRef": nova.api.image_id, "networks": "auto"}
    for wrong in ({"adminPass": LONG}, {"name": "n" * 255, "max_count": 2, "adminPass": SECRETS["refused"]},
                  {"user_data": encoded(SECRETS["refused"] * 4000)}, {"imageRef": "", "adminPass": SECRETS["refused"]}):
        assert nova.api.request("POST", "/servers", {"server": {**server, **wrong}}).status_code == 400
    old = {**server, "networks": [], "personality": [{"path": "/" + "p" * 300, "contents": encoded(SECRETS["file"])}]}
    assert nova.api.request("POST", "/servers", {"server": old}, "2.1").status_code in (400, 403)


def test_no_secret_is_in_any_log_of_a_whole_run(nova: Cluster, database: Server, rabbitmq: Rabbit) -> None:
    built = boot(nova, SECRETS["created"], "compute-1")
    nova.api.wait(built, "ACTIVE")
    nova.stop("compute-2")
    with (nova.directory / "compute-2.conf").open("a") as file:
        file.write("[fake]\nfailure = spawn:1.0\n")
    nova.start("compute-2")
    nova.wait_ready()
    nova.api.wait(boot(nova, SECRETS["failed"], "compute-2"), "ERROR")
    refuse(nova)
    nova.kill("compute-1")
    (service,) = [each for each in nova.api.get("/os-services")["services"] if each["host"] == "compute-1"]
    answer = nova.api.request("PUT", f"/os-services/{service['id']}", {"forced_down": True})
    assert answer.status_code == 200, answer.text
    nova.api.action(built, "evacuate", {"adminPass": SECRETS["evacuated"]})
    nova.api.wait(built, "ERROR", 60)
    database.kill()
    database.restart()
    eventually(lambda: nova.api.request("GET", "/servers/detail").status_code == 200, 90, "the database is back")
    nova.delete_all()
    nova.manage("--debug", "db", "version")
    rabbit = urllib.parse.urlsplit(nova.transport_url).password
    logs = {path.name: path.read_text(errors="replace") for path in nova.directory.rglob("*.log")}
    assert {name.removesuffix(".log").partition("-")[0] for name in logs} >= {"api", "conductor", "compute"}
    assert any(" DEBUG " in text for text in logs.values())
    found = [(name, what) for name, text in logs.items() for what, secret in SECRETS.items()
             for spelled in (secret, encoded(secret)[:-4], urllib.parse.quote(secret, safe=""))
             if spelled in text]
    assert found == []
    assert [name for name, text in logs.items() if f":{rabbit}@" in text] == []
