"""RabbitMQ options that operators may set: quorum queues and clusters. Each test uses a private broker."""

from __future__ import annotations

import concurrent.futures
import contextlib
import pathlib
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from typing import Any

import amqp
import pytest

from tests.integration.cluster import Cluster
from tests.integration.processes import eventually
from tests.integration.rabbit import Rabbit
from tests.integration.services.test_kill_services import in_the_middle, try_boot

_SETTLE = 120.0
_FAKE = {"latency": "spawn:0.5,destroy:0.05"}
_QUORUM = {"rabbit_quorum_queue": True, "rabbit_transient_quorum_queue": True}


def small(transport_url: str, **rabbit: Any) -> Cluster:
    return Cluster(transport_url, computes=2, conductors=2, schedulers=1,
                   options={"fake": _FAKE, "oslo_messaging_rabbit": rabbit})


def kinds_of_queues(rabbit: Rabbit, url: str, name: str) -> str:
    """Return the types of queues from the broker, which refuses a declaration with another type and names the
    difference."""
    with amqp.Connection(f"127.0.0.1:{rabbit.port}", userid="nova", password="nova",
                         virtual_host=url.rpartition("/")[2]) as connection:
        try:
            connection.channel().queue_declare(name, durable=True, auto_delete=False,
                                               arguments={"x-queue-type": "stream"})
        except amqp.AMQPError as error:
            return str(error)
    return ""


# --- quorum queues --------------------------------------------------------------------------------------
@pytest.mark.slow
def test_quorum_queues_keep_messages_when_the_broker_is_killed(rabbitmq: Rabbit) -> None:
    url = rabbitmq.new_vhost()
    with small(url, **_QUORUM) as nova:
        said = kinds_of_queues(rabbitmq, url, "conductor")
        assert "current is 'quorum'" in said, said
        accepted = nova.boot_many(12)
        in_the_middle(nova)
        rabbitmq.kill()
        rabbitmq.start()
        nova.api_returns(60)
        nova.all_active(accepted, _SETTLE)
        nova.delete_all(_SETTLE)
        nova.audit()


# --- clusters -------------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def brokers() -> Iterator[list[Rabbit]]:
    """Start three brokers as one cluster."""
    with contextlib.ExitStack() as stack:
        made: list[Rabbit] = []
        directories = []
        for _number in range(3):
            directory = pathlib.Path(tempfile.mkdtemp(prefix="nova-rabbitmq-", dir="/tmp"))
            stack.callback(shutil.rmtree, directory, ignore_errors=True)
            directory.chmod(0o755)
            directories.append(directory)
            made.append(Rabbit(directory))
        for rabbit, directory in zip(made, directories, strict=True):
            _join(rabbit, directory, made)
            stack.callback(rabbit.stop)
        made[0].start()
        with concurrent.futures.ThreadPoolExecutor() as pool:
            list(pool.map(Rabbit.start, made[1:]))
        yield made


def _join(rabbit: Rabbit, directory: pathlib.Path, all_of_them: list[Rabbit]) -> None:
    with (directory / "rabbitmq.conf").open("a") as file:
        file.write("cluster_formation.peer_discovery_backend = classic_config\n")
        for number, other in enumerate(all_of_them, 1):
            file.write(f"cluster_formation.classic_config.nodes.{number} = nova-test-{other.port}@localhost\n")
    cookie = directory / ".erlang.cookie"
    cookie.write_text("NOVATESTCOOKIE")
    cookie.chmod(0o400)
    owner = directory.stat()
    shutil.chown(cookie, owner.st_uid, owner.st_gid)
    # All nodes use the epmd of the first node.
    rabbit._epmd = all_of_them[0]._epmd
    rabbit._server._env["ERL_EPMD_PORT"] = all_of_them[0]._server._env["ERL_EPMD_PORT"]


def url_of(rabbits: list[Rabbit], vhost: str) -> str:
    hosts = ",".join(f"nova:nova@127.0.0.1:{rabbit.port}" for rabbit in rabbits)
    return f"rabbit://{hosts}/{vhost}"


def running_nodes(rabbit: Rabbit) -> int:
    """Return the number of brokers of the cluster, including this one."""
    environment = {**rabbit._server._env, "RABBITMQ_NODENAME": f"nova-test-{rabbit.port}@localhost"}
    owner = pathlib.Path(rabbit._server._env["HOME"]).stat()
    done = subprocess.run(
        ["/usr/lib/rabbitmq/bin/rabbitmqctl", "eval", "length(rabbit_mnesia:cluster_nodes(running))."],
        env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", **environment}, user=owner.st_uid, group=owner.st_gid,
        extra_groups=[], capture_output=True, text=True, timeout=120, check=False, cwd="/")
    return int(done.stdout.strip()) if done.returncode == 0 and done.stdout.strip().isdecimal() else 0


@pytest.mark.parametrize(("victim", "options"), [
    pytest.param(0, _QUORUM, id="quorum-queues"),
    pytest.param(1, {}, id="classic-queues", marks=pytest.mark.slow)])
def test_servers_boot_when_a_broker_of_a_cluster_dies(brokers: list[Rabbit], victim: int,
                                                      options: dict[str, Any]) -> None:
    """Quorum queues need a majority (two of three); classic queues of the dead broker are redeclared on another."""
    eventually(lambda: running_nodes(brokers[2]) == 3, 120, "the three brokers form a cluster", interval=1)
    url = url_of(brokers[:2] if not options else brokers, f"t{victim}")
    with small(url, **options) as nova:
        accepted = nova.boot_many(12)
        in_the_middle(nova)
        brokers[victim].kill()
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            accepted += filter(None, pool.map(lambda number: try_boot(nova, f"during-{number}"), range(8)))
        nova.api_returns(60)
        # A server may exist although the response to its POST was lost.
        nova.all_active(sorted(set(accepted) | set(nova.api.servers())), _SETTLE)
        nova.delete_all(_SETTLE)
        nova.audit()
    brokers[victim].start()
