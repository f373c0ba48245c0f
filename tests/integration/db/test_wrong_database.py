"""nova-compute with a database other than the one it registered with: real processes on a real broker."""

from __future__ import annotations

import pathlib
import sqlite3
from collections.abc import Iterator

import pytest

from tests.integration.cluster import Cluster
from tests.integration.processes import eventually
from tests.integration.rabbit import Rabbit


@pytest.fixture
def nova(rabbitmq: Rabbit) -> Iterator[Cluster]:
    with Cluster(rabbitmq.new_vhost(), computes=1, conductors=1, schedulers=1) as made:
        yield made


def copied(source: pathlib.Path, target: pathlib.Path) -> None:
    """Copy the database as a backup does."""
    with sqlite3.connect(source) as connection, sqlite3.connect(target) as other:
        connection.backup(other)


def restart_on(nova: Cluster, database: pathlib.Path) -> None:
    """Restart all services except nova-compute with another database."""
    nova.stop(*nova.processes)
    text = nova.config.read_text()
    url = next(line for line in text.splitlines() if line.startswith("connection"))
    nova.config.write_text(text.replace(url, f"connection = sqlite:///{database}"))
    nova.manage("db", "sync")
    nova.start("conductor-1")
    nova.start("scheduler-1", "api")
    nova.api_returns()


def guests(nova: Cluster) -> list[str]:
    return sorted(uuid for file in (nova.directory / "guests").iterdir() for uuid in [file.read_text()] if uuid)


def refusal(nova: Cluster) -> str:
    """Start nova-compute, wait until it exits, and return its CRITICAL log line."""
    compute = nova.processes["compute-1"]
    told = compute.log.stat().st_size
    compute.start()
    eventually(lambda: not compute.running(), 30, "nova-compute has ended", interval=0.2)
    said = compute.log.read_text()[told:]
    assert "Traceback" not in said
    [line] = [line for line in said.splitlines() if "CRITICAL" in line]
    return line


def test_compute_refuses_a_database_of_another_deployment(nova: Cluster) -> None:
    uuid = nova.api.boot("kept")
    nova.api.wait(uuid, "ACTIVE")
    before = guests(nova)
    restart_on(nova, nova.directory / "wrong.sqlite")
    said = refusal(nova)
    assert said.count("The service of host compute-1 must not start: it belongs to deployment") == 1
    assert said.endswith('remove the file "deployment" in its state_path.')
    assert "nova-compute" not in {service["binary"] for service in nova.api.get("/os-services")["services"]}
    assert guests(nova) == before
    restart_on(nova, nova.directory / "nova.sqlite")
    nova.start("compute-1")
    nova.wait_ready()
    assert nova.api.show(uuid)["status"] == "ACTIVE"
    nova.api.action(uuid, "reboot", {"type": "HARD"})
    nova.api.wait(uuid, "ACTIVE")
    nova.audit()


def test_compute_keeps_unknown_guests_with_a_restored_older_database(nova: Cluster) -> None:
    copied(nova.directory / "nova.sqlite", nova.directory / "older.sqlite")
    uuid = nova.api.boot("unknown")
    nova.api.wait(uuid, "ACTIVE")
    before = guests(nova)
    restart_on(nova, nova.directory / "older.sqlite")
    nova.start("compute-1")
    nova.wait_ready()
    assert list(nova.api.servers()) == []
    eventually(lambda: f"{uuid}] Guest on host compute-1 is unknown" in nova.processes["compute-1"].tail(), 30,
               "the guest is reported")
    assert guests(nova) == before


def test_compute_exits_when_its_deployment_file_is_invalid(nova: Cluster) -> None:
    nova.stop("compute-1")
    (nova.directory / "deployment").write_text("ours\n")
    assert "deployment does not contain a deployment id" in refusal(nova)
