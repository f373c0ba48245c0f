"""The life cycle of a server over HTTP with all services as processes, on RabbitMQ and each database."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.integration.cluster import Cluster
from tests.integration.rabbit import Rabbit
from tools.bench import cpu


@pytest.fixture(scope="module", params=["sqlite", "postgresql", "mariadb"])
def nova(request: pytest.FixtureRequest, rabbitmq: Rabbit) -> Iterator[Cluster]:
    database = None
    if request.param != "sqlite":
        database = request.getfixturevalue(request.param).new_database()
    with Cluster(rabbitmq.new_vhost(), database, computes=2, forked=False) as cluster:
        yield cluster


def test_server_goes_through_all_power_states(nova: Cluster) -> None:
    uuid = nova.api.boot("life", metadata={"key": "välue"})
    server = nova.api.wait(uuid, "ACTIVE")
    assert server["OS-EXT-SRV-ATTR:host"] in ("compute-1", "compute-2")
    assert server["metadata"] == {"key": "välue"}
    address = server["addresses"]["net"][0]["addr"]
    assert address.startswith("10.77.")
    for name, argument, status in [
        ("os-stop", None, "SHUTOFF"), ("os-start", None, "ACTIVE"), ("pause", None, "PAUSED"),
        ("unpause", None, "ACTIVE"), ("suspend", None, "SUSPENDED"), ("resume", None, "ACTIVE"),
        ("reboot", {"type": "SOFT"}, "ACTIVE"), ("reboot", {"type": "HARD"}, "ACTIVE"),
    ]:
        nova.api.action(uuid, name, argument)
        nova.api.wait(uuid, status)
    output = nova.api.action(uuid, "os-getConsoleOutput", {})["output"]
    assert "life login:" in output
    nova.audit()
    nova.api.delete(f"/servers/{uuid}")
    nova.api.wait_gone([uuid])
    actions = [action["action"] for action in nova.api.get(f"/servers/{uuid}/os-instance-actions")["instanceActions"]]
    assert actions == ["delete", "reboot", "reboot", "resume", "suspend", "unpause", "pause", "start", "stop", "create"]
    nova.audit()


def test_servers_of_a_multi_create_request_are_spread_over_hosts(nova: Cluster) -> None:
    nova.api.boot("several", min_count=6, max_count=6)
    ids = list(nova.api.servers())
    assert len(ids) == 6
    nova.all_active(ids, 30)
    assert {server["OS-EXT-SRV-ATTR:host"] for server in nova.api.servers().values()} == {"compute-1", "compute-2"}
    nova.audit()
    nova.delete_all()
    nova.audit()


def test_every_service_logs_the_request_id(nova: Cluster) -> None:
    response = nova.api.request("POST", "/servers", {"server": {"name": "traced", "flavorRef": "tiny",
                                                                "imageRef": nova.api.image_id, "networks": "auto"}})
    request_id, uuid = response.headers["X-Openstack-Request-Id"], response.json()["server"]["id"]
    host = nova.api.wait(uuid, "ACTIVE")["OS-EXT-SRV-ATTR:host"]
    logs = {name: process.log.read_text() for name, process in nova.processes.items()}
    tellers = {name.partition("-")[0] for name, text in logs.items() if request_id in text}
    assert {"api", "conductor", "compute"} <= tellers
    assert request_id in logs[host]
    nova.delete_all()


def test_upgrade_check_succeeds(nova: Cluster) -> None:
    assert "services are up" in nova.status("upgrade", "check")


def test_no_service_has_more_than_80_megabytes_after_boots_and_lists(nova: Cluster) -> None:
    """Measure the resident memory of the largest worker, like the benchmark, after requests of every kind."""
    for _round in range(3):
        nova.all_active(nova.boot_many(10), 60)
        assert len(nova.api.servers()) == 10
        nova.delete_all()
    sizes = {name: cpu.memory(process.pid)["worker_rss"] for name, process in nova.processes.items()}
    print(f"{nova.database_url.partition(':')[0]}: resident memory in MB: {sizes}")
    assert all(20 < size <= 80 for size in sizes.values()), sizes
