"""What operators may want of RabbitMQ: TLS, quorum queues, clusters. Each with a private broker that has it."""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
import datetime
import ipaddress
import pathlib
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from typing import Any

import amqp
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from tests.integration.cluster import Cluster
from tests.integration.processes import eventually, free_port
from tests.integration.rabbit import Rabbit, start_rabbitmq
from tests.integration.test_kill_services import in_the_middle, try_boot

_SETTLE = 120.0
_FAKE = {"latency": "spawn:0.5,destroy:0.05"}
_QUORUM = {"rabbit_quorum_queue": True, "rabbit_transient_quorum_queue": True}


def small(transport_url: str, **rabbit: Any) -> Cluster:
    return Cluster(transport_url, computes=2, conductors=2, schedulers=1,
                   options={"fake": _FAKE, "oslo_messaging_rabbit": rabbit})


def kinds_of_queues(rabbit: Rabbit, url: str, name: str) -> str:
    """What the broker says a queue is: declaring it otherwise is refused with the difference."""
    with amqp.Connection(f"127.0.0.1:{rabbit.port}", userid="nova", password="nova",
                         virtual_host=url.rpartition("/")[2]) as connection:
        try:
            connection.channel().queue_declare(name, durable=True, auto_delete=False,
                                               arguments={"x-queue-type": "stream"})
        except amqp.AMQPError as error:
            return str(error)
    return ""


# --- TLS ---------------------------------------------------------------------------------------------
@dataclasses.dataclass
class Authority:
    """A certificate authority made here, and a server certificate for 127.0.0.1."""

    directory: pathlib.Path

    def __post_init__(self) -> None:
        key, name = ec.generate_private_key(ec.SECP256R1()), _name("test authority")
        self._write("ca.pem", _certificate(name, key.public_key(), name, key, authority=True))
        own = ec.generate_private_key(ec.SECP256R1())
        self._write("server.pem", _certificate(_name("broker"), own.public_key(), name, key, authority=False))
        self._write("key.pem", own.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8,
                                                 serialization.NoEncryption()))

    def _write(self, name: str, content: bytes) -> None:
        (self.directory / name).write_bytes(content)
        (self.directory / name).chmod(0o644)  # the broker runs as another user


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _certificate(subject: x509.Name, key: Any, issuer: x509.Name, signer: Any, authority: bool) -> bytes:
    now = datetime.datetime.now(datetime.UTC)
    builder = (x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).public_key(key)
               .serial_number(x509.random_serial_number()).not_valid_before(now - datetime.timedelta(hours=1))
               .not_valid_after(now + datetime.timedelta(hours=1))
               .add_extension(x509.BasicConstraints(ca=authority, path_length=None), critical=True)
               .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]),
                              critical=False))
    return builder.sign(signer, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


@pytest.fixture(scope="module")
def authorities() -> Iterator[tuple[Authority, Authority]]:
    """The one that signed for the broker, and another one."""
    with contextlib.ExitStack() as stack:
        made = []
        for _number in range(2):
            directory = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="nova-ca-", dir="/tmp")))
            directory.chmod(0o755)
            made.append(Authority(directory))
        yield made[0], made[1]


@pytest.fixture(scope="module")
def secure(authorities: tuple[Authority, Authority]) -> Iterator[tuple[Rabbit, int]]:
    """A broker with a port for TLS."""
    port, directory = free_port(), authorities[0].directory
    settings = (f"listeners.ssl.1 = 127.0.0.1:{port}\nssl_options.cacertfile = {directory}/ca.pem\n"
                f"ssl_options.certfile = {directory}/server.pem\nssl_options.keyfile = {directory}/key.pem\n"
                "ssl_options.verify = verify_none\n")
    with start_rabbitmq(settings=settings) as rabbit:
        yield rabbit, port


def test_servers_boot_over_tls_and_a_broker_that_nobody_vouches_for_is_refused(
        secure: tuple[Rabbit, int], authorities: tuple[Authority, Authority]) -> None:
    rabbit, port = secure
    url = rabbit.new_vhost().replace(f":{rabbit.port}/", f":{port}/")
    with small(url, ssl=True, ssl_ca_file=authorities[0].directory / "ca.pem") as nova:
        nova.all_active(nova.boot_many(8), _SETTLE)
        nova.delete_all(_SETTLE)
        nova.audit()
        text = nova.config.read_text()
        nova.config.write_text(text.replace(str(authorities[0].directory), str(authorities[1].directory)))
        said = nova.status("upgrade", "check")
        assert "no conductor answers" in said
        nova.config.write_text(text)
        assert "no conductor answers" not in nova.status("upgrade", "check")


# --- quorum queues --------------------------------------------------------------------------------------
def test_quorum_queues_keep_what_is_in_them_when_the_broker_is_killed(rabbitmq: Rabbit) -> None:
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
    """Three brokers that are one."""
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
    # One directory of names for all of them: the first one's.
    rabbit._epmd = all_of_them[0]._epmd
    rabbit._server._env["ERL_EPMD_PORT"] = all_of_them[0]._server._env["ERL_EPMD_PORT"]


def url_of(rabbits: list[Rabbit], vhost: str) -> str:
    hosts = ",".join(f"nova:nova@127.0.0.1:{rabbit.port}" for rabbit in rabbits)
    return f"rabbit://{hosts}/{vhost}"


def running_nodes(rabbit: Rabbit) -> int:
    """How many brokers this one is one with (itself included)."""
    environment = {**rabbit._server._env, "RABBITMQ_NODENAME": f"nova-test-{rabbit.port}@localhost"}
    owner = pathlib.Path(rabbit._server._env["HOME"]).stat()
    done = subprocess.run(
        ["/usr/lib/rabbitmq/bin/rabbitmqctl", "eval", "length(rabbit_mnesia:cluster_nodes(running))."],
        env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", **environment}, user=owner.st_uid, group=owner.st_gid,
        extra_groups=[], capture_output=True, text=True, timeout=120, check=False, cwd="/")
    return int(done.stdout.strip()) if done.returncode == 0 and done.stdout.strip().isdecimal() else 0


@pytest.mark.parametrize(("victim", "options"), [(0, _QUORUM), (1, {})], ids=["quorum-queues", "classic-queues"])
def test_servers_boot_on_when_a_broker_of_a_cluster_dies(brokers: list[Rabbit], victim: int,
                                                         options: dict[str, Any]) -> None:
    """Quorum queues need a majority (two of three); classic ones of the dead broker are made anew on another."""
    eventually(lambda: running_nodes(brokers[2]) == 3, 120, "the three brokers are one", interval=1)
    url = url_of(brokers[:2] if not options else brokers, f"t{victim}")
    with small(url, **options) as nova:
        accepted = nova.boot_many(12)
        in_the_middle(nova)
        brokers[victim].kill()
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            accepted += filter(None, pool.map(lambda number: try_boot(nova, f"during-{number}"), range(8)))
        nova.api_returns(60)
        # A server whose answer was lost may exist, too.
        nova.all_active(sorted(set(accepted) | set(nova.api.servers())), _SETTLE)
        nova.delete_all(_SETTLE)
        nova.audit()
    brokers[victim].start()
