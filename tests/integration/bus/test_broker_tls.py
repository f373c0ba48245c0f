"""A broker that accepts only TLS connections with client certificates, configured as in doc/operations.md."""

from __future__ import annotations

import configparser
import contextlib
import dataclasses
import os
import pathlib
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest
from oslo_config import cfg
from oslo_messaging._metrics.client import oslo_messaging_metrics
from oslo_messaging._tracing.client import oslo_messaging_tracing

from nova import bus, context, exception
from tests.certificates import Authority, authority
from tests.integration.bus.bus_desk import Desk, configure
from tests.integration.cluster import Cluster, Place, command_of, environment
from tests.integration.processes import free_port
from tests.integration.rabbit import Rabbit, start_rabbitmq

CTX = context.RequestContext(user_id="u", project_id="p", overwrite=False)
HOST = "left.example"


@dataclasses.dataclass
class Secured:
    """A broker with TLS on ``port``. The certificate is valid for 127.0.0.1 but not for 127.0.0.2, which the broker
    also listens on."""

    rabbit: Rabbit
    authority: Authority
    other: Authority
    port: int
    management: int

    def url(self, host: str = "127.0.0.1") -> str:
        """Return the URL of a new vhost."""
        return self.rabbit.new_vhost().replace(f"127.0.0.1:{self.rabbit.port}/", f"{host}:{self.port}/")

    def options(self, name: str, **others: Any) -> dict[str, Any]:
        """Return options of [oslo_messaging_rabbit] with a certificate for a client of this name."""
        pair = self.authority.issue(name)
        return {"ssl": True, "ssl_ca_file": self.authority.file, "ssl_cert_file": pair.certificate,
                "ssl_key_file": pair.key, **others}


@pytest.fixture(scope="module")
def secured() -> Iterator[Secured]:
    with authority() as ours, authority() as other:
        port, management = free_port(), free_port()
        server = ours.issue("broker")
        files = "".join(f"{{0}}.{name} = {value}\n" for name, value in (
            ("cacertfile", ours.file), ("certfile", server.certificate), ("keyfile", server.key)))
        settings = (f"listeners.ssl.1 = 127.0.0.1:{port}\nlisteners.ssl.2 = 127.0.0.2:{port}\n"
                    + files.format("ssl_options") + "ssl_options.verify = verify_peer\n"
                    "ssl_options.fail_if_no_peer_cert = true\n"
                    f"management.ssl.ip = 127.0.0.1\nmanagement.ssl.port = {management}\n"
                    + files.format("management.ssl"))
        with start_rabbitmq(("rabbitmq_management",), settings) as rabbit:
            yield Secured(rabbit, ours, other, port, management)


@contextlib.contextmanager
def desk(directory: pathlib.Path, url: str, **options: Any) -> Iterator[Desk]:
    conf = cfg.ConfigOpts()
    conf(["--config-file", str(configure(directory, url, **options))])
    conf.register_opts(oslo_messaging_metrics, "oslo_messaging_metrics")
    conf.register_opts(oslo_messaging_tracing, "oslo_messaging_tracing")
    transport = bus.connect(conf)
    yield bus.client(transport, Desk)
    transport.cleanup()


def says(directory: pathlib.Path, url: str, **options: Any) -> bool:
    """Return True if a service connects with these options."""
    with desk(directory, url, **options) as there:
        try:
            there.shout(CTX, "hello")
        except exception.ServiceUnavailable:
            return False
        return True


def test_tls_broker_and_client_verify_each_others_certificate(secured: Secured, tmp_path: pathlib.Path,
                                                              caplog: pytest.LogCaptureFixture) -> None:
    good = secured.options("service")
    assert says(tmp_path, secured.url(), **good)
    assert not says(tmp_path, secured.url(), **{**good, "ssl_ca_file": secured.other.file})
    assert "certificate verify failed: self-signed certificate in certificate chain" in caplog.text
    assert not says(tmp_path, secured.url("127.0.0.2"), **good)
    assert "IP address mismatch, certificate is not valid for '127.0.0.2'" in caplog.text
    stranger = secured.other.issue("service")
    for files in ({"ssl_cert_file": stranger.certificate, "ssl_key_file": stranger.key},
                  {"ssl_cert_file": "", "ssl_key_file": ""}, {"ssl": False}):
        assert not says(tmp_path, secured.url(), **{**good, **files})
    assert says(tmp_path, secured.url(), **good)


def urls(secured: Secured, *hosts: str) -> str:
    """Return URLs of several brokers; no broker listens at 127.0.0.3 and later addresses."""
    first = secured.url()
    _scheme, _slashes, rest = first.partition("://")
    account, _at, place = rest.partition("@")
    vhost = place.partition("/")[2]
    return f"rabbit://{','.join(f'{account}@{host}:{secured.port}' for host in hosts)}/{vhost}"


def test_tls_verifies_the_name_of_the_broker_that_is_connected(secured: Secured, tmp_path: pathlib.Path) -> None:
    url = urls(secured, "127.0.0.1", "127.0.0.3")
    assert all(says(tmp_path, url, **secured.options("service")) for _time in range(6))  # the order is random


def test_tls_refuses_a_broker_whose_certificate_has_another_name(secured: Secured, tmp_path: pathlib.Path) -> None:
    url = urls(secured, "127.0.0.2", "127.0.0.3")
    assert not any(says(tmp_path, url, **secured.options("service")) for _time in range(3))


@pytest.fixture(scope="module")
def enrolled(secured: Secured, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, pathlib.Path, str]:
    """Return the control plane's URL, the directory with keys and host files, and the output of the enrolment."""
    directory, url = tmp_path_factory.mktemp("keys"), secured.url()
    rabbit = "".join(f"{name} = {value}\n" for name, value in secured.options("control").items())
    config = directory / "manage.conf"
    config.write_text(f"[DEFAULT]\ntransport_url = {url}\n[oslo_messaging_rabbit]\n{rabbit}[rpc]\n"
                      f"key_file = {directory}/master.key\n"
                      f"broker_api = https://nova:nova@127.0.0.1:{secured.management}\n")
    said = ""
    for arguments in (("make_master_key", f"{directory}/master.key"), ("enrol", HOST, "--output", str(directory))):
        done = subprocess.run([*command_of("manage"), "--config-file", str(config), "host", *arguments],
                              capture_output=True, text=True, timeout=60, check=False, cwd="/",
                              env={**os.environ, **environment()})
        assert done.returncode == 0, done.stderr
        said += done.stdout
    return url, directory, said


def host_options(directory: pathlib.Path) -> dict[str, dict[str, Any]]:
    parser = configparser.ConfigParser(interpolation=None, default_section="")
    parser.read(directory / f"{HOST}.conf")
    return {section: dict(parser[section]) for section in parser.sections()}


def test_host_enrolment_writes_the_tls_options_of_the_host(secured: Secured,
                                                           enrolled: tuple[str, pathlib.Path, str]) -> None:
    _url, directory, said = enrolled
    assert host_options(directory)["oslo_messaging_rabbit"] == {
        "ssl": "true", "ssl_ca_file": secured.authority.file, "ssl_cert_file": f"/etc/nova/{HOST}.pem",
        "ssl_key_file": f"/etc/nova/{HOST}-tls.key"}
    assert f"/etc/nova/{HOST}.pem" in said


def test_servers_boot_over_tls_after_a_broker_restart(secured: Secured,
                                                      enrolled: tuple[str, pathlib.Path, str]) -> None:
    """The host has its own account, key and certificate. Heartbeats and connection pools also work after the
    restart."""
    url, directory, _said = enrolled
    own = host_options(directory)
    own["rpc"]["key_file"] = str(directory / f"{HOST}.key")
    own["oslo_messaging_rabbit"] = secured.options(HOST, heartbeat_timeout_threshold=4)
    own["metadata"] = {"port": free_port(), "namespaces": False}
    control = {"rpc": {"key_file": directory / "master.key", "require_seals": True},
               "oslo_messaging_rabbit": secured.options("control", heartbeat_timeout_threshold=4)}
    with Cluster(url, computes=0, conductors=1, schedulers=1, options=control, places=[Place(HOST, (), own)]) as nova:
        nova.all_active([nova.api.boot(f"before-{number}", networks="none") for number in range(4)], 60)
        secured.rabbit.kill()
        secured.rabbit.start()
        nova.wait_ready()
        nova.all_active([nova.api.boot(f"after-{number}", networks="none") for number in range(4)], 90)
        nova.delete_all()
        nova.audit()
