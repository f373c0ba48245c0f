"""Compute hosts with their own keys and broker accounts, created by nova-manage, on a real RabbitMQ."""

from __future__ import annotations

import configparser
import pathlib
from collections.abc import Iterator
from typing import Any

import amqp
import pytest

from nova.cmd.manage.hosts import account
from tests.integration import forkserver
from tests.integration.cluster import Cluster, Place, command_of, environment
from tests.integration.processes import eventually, free_port
from tests.integration.rabbit import Rabbit, start_rabbitmq

_HOSTS = ("left.example", "right.example")
_EXCHANGE = "openstack"


@pytest.fixture(scope="module")
def rabbit() -> Iterator[tuple[Rabbit, int]]:
    """Start a broker with the management plugin and return it with the plugin's port."""
    port = free_port()
    settings = f"management.tcp.ip = 127.0.0.1\nmanagement.tcp.port = {port}\n"
    with start_rabbitmq(("rabbitmq_management",), settings) as it:
        yield it, port


class Enrolled:
    """A vhost, a master key, and hosts that nova-manage has enrolled."""

    def __init__(self, directory: pathlib.Path, rabbit: Rabbit, management: int) -> None:
        self.directory, self.rabbit = directory, rabbit
        self.url = rabbit.new_vhost()
        self.vhost = self.url.rpartition("/")[2]
        self.config = directory / "manage.conf"
        self.master = directory / "master.key"
        self.config.write_text(f"[DEFAULT]\ntransport_url = {self.url}\n[rpc]\nkey_file = {self.master}\n"
                               f"broker_api = http://nova:nova@127.0.0.1:{management}\n")
        self.manage("make_master_key", str(self.master))
        for host in _HOSTS:
            self.manage("enrol", host, "--output", str(directory))

    def manage(self, *arguments: str) -> str:
        done = forkserver.run([*command_of("manage"), "--config-file", str(self.config), "host", *arguments],
                              environment(), 60)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def options(self, host: str) -> dict[str, dict[str, Any]]:
        """Return the configuration that the enrolment wrote for the host's services."""
        parser = configparser.ConfigParser(interpolation=None, default_section="")
        parser.read(self.directory / f"{host}.conf")
        found = {section: dict(parser[section]) for section in parser.sections()}
        found["rpc"]["key_file"] = self.directory / f"{host}.key"
        found["metadata"] = {"port": free_port(), "namespaces": False}
        return found

    def connect(self, host: str) -> amqp.Connection:
        password = self.options(host)["DEFAULT"]["transport_url"].partition(f"{account(host)}:")[2].partition("@")[0]
        return amqp.Connection(f"127.0.0.1:{self.rabbit.port}", userid=account(host), password=password,
                               virtual_host=self.vhost, connect_timeout=5)


@pytest.fixture(scope="module")
def enrolled(rabbit: tuple[Rabbit, int], tmp_path_factory: pytest.TempPathFactory) -> Enrolled:
    return Enrolled(tmp_path_factory.mktemp("keys"), *rabbit)


@pytest.fixture(scope="module")
def nova(enrolled: Enrolled) -> Iterator[Cluster]:
    control = {"rpc": {"key_file": enrolled.master, "require_seals": True}}
    places = [Place(host, (), enrolled.options(host)) for host in _HOSTS]
    with Cluster(enrolled.url, computes=0, conductors=1, schedulers=1, options=control, places=places) as cluster:
        yield cluster


def test_host_key_and_configuration_files_have_mode_0600(enrolled: Enrolled) -> None:
    files = [path for path in enrolled.directory.iterdir() if path != enrolled.config]
    assert sorted(path.name for path in files) == sorted(
        ["master.key", *(f"{host}.{kind}" for host in _HOSTS for kind in ("key", "conf"))])
    assert {path.stat().st_mode & 0o777 for path in files} == {0o600}


def test_servers_boot_and_migrate_on_hosts_with_their_own_accounts(enrolled: Enrolled, nova: Cluster) -> None:
    """The broker also restarts without its transient objects."""
    servers = [nova.api.boot("one", networks="none", availability_zone=f"nova:{host}") for host in _HOSTS]
    nova.all_active(servers, 60)
    nova.api.action(servers[0], "os-migrateLive", {"host": _HOSTS[1], "block_migration": "auto"})
    eventually(lambda: nova.api.show(servers[0])["OS-EXT-SRV-ATTR:host"] == _HOSTS[1], 60, "the server has migrated")
    nova.all_active(servers, 60)
    nova.audit()  # the audit queries all hosts
    enrolled.rabbit.kill()
    enrolled.rabbit.start()
    nova.wait_ready()
    nova.all_active([nova.api.boot("two", networks="none", availability_zone=f"nova:{host}") for host in _HOSTS], 90)
    nova.delete_all()
    for host in _HOSTS:
        log = nova.processes[f"compute-{host}"].tail()
        assert "ACCESS_REFUSED" not in log


_QUEUE, _OWN = f"compute.{_HOSTS[1]}", f"compute.{_HOSTS[0]}"
_ATTEMPTS = {
    "takes orders of another host": lambda channel: channel.basic_consume(_QUEUE),
    "gets an order of another host": lambda channel: channel.basic_get(_QUEUE),
    "takes what conductors are asked": lambda channel: channel.basic_consume("conductor"),
    "removes another host's queue": lambda channel: channel.queue_delete(_QUEUE),
    "empties a conductor's queue": lambda channel: channel.queue_purge("conductor"),
    "makes a queue of its own": lambda channel: channel.queue_declare("loot"),
    "makes a queue for another's answers": lambda channel: channel.queue_declare(f"reply_{_HOSTS[1]}_{'0' * 32}"),
    "has a conductor's messages copied": lambda channel: channel.queue_bind(_OWN, _EXCHANGE, "conductor"),
    "has all messages copied": lambda channel: channel.queue_bind(_OWN, _EXCHANGE, "#"),
    "listens to what schedulers are told": lambda channel: channel.queue_bind(_OWN, "scheduler_fanout", ""),
    "removes the exchange": lambda channel: channel.exchange_delete(_EXCHANGE),
    "declares the exchange": lambda channel: channel.exchange_declare(_EXCHANGE, "topic", auto_delete=False),
    "gives an order to another host": lambda channel: _publish(channel, _EXCHANGE, _QUEUE),
    "tells schedulers": lambda channel: _publish(channel, _EXCHANGE, "scheduler"),
    "tells all schedulers": lambda channel: _publish(channel, "scheduler_fanout", ""),
}


def _publish(channel: amqp.Channel, exchange: str, key: str) -> None:
    channel.confirm_select()
    channel.basic_publish_confirm(amqp.Message("{}"), exchange, key)


@pytest.mark.parametrize("attempt", _ATTEMPTS)
def test_broker_account_of_a_host_has_no_further_permissions(enrolled: Enrolled, nova: Cluster, attempt: str) -> None:
    with enrolled.connect(_HOSTS[0]) as connection:
        with pytest.raises(amqp.AccessRefused):
            _ATTEMPTS[attempt](connection.channel())
        assert not connection.channel().queue_declare("conductor", passive=True).message_count


def test_no_password_in_command_lines(enrolled: Enrolled, nova: Cluster) -> None:
    secrets = [enrolled.options(host)["DEFAULT"]["transport_url"].split(":")[2].partition("@")[0] for host in _HOSTS]
    shown = [path.read_bytes() for process in nova.processes.values()
             for path in [pathlib.Path(f"/proc/{process.pid}/cmdline")]]
    assert not [line for line in shown for secret in secrets if secret.encode() in line]


def test_revoked_host_account_cannot_connect(enrolled: Enrolled, nova: Cluster) -> None:
    """Runs last: the connections of the revoked host are closed for good."""
    assert f"{_HOSTS[1]}:2 in [rpc]key_generations" in enrolled.manage("revoke", _HOSTS[1])
    with pytest.raises(amqp.AccessRefused):
        enrolled.connect(_HOSTS[1]).connect()
    eventually(lambda: {service["host"] for service in nova.api.get("/os-services")["services"]
                        if service["state"] == "down"} == {_HOSTS[1]}, 60, "the host is down")
    nova.all_active([nova.api.boot("left", networks="none", availability_zone=f"nova:{_HOSTS[0]}")], 60)
    nova.delete_all()
