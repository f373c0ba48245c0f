"""Nova deployed from containers: built by tools/images, run by novad, used to boot servers, upgraded and rolled
back."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import re
import shutil
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.integration.novad import novad_node
from tests.integration.novad.novad_node import free_port
from tests.integration.novad.novad_suite import IMAGES, LONG, OUTPUT, START, Images, Suite, build, left
from tests.paths import ROOT

# Runs before the conductor of a derived image, with Nova's database account.
_SQL = """\
python - <<'PYTHON'
import configparser, sqlalchemy
conf = configparser.ConfigParser(interpolation=None)
conf.read("/etc/nova/own.conf")
with sqlalchemy.create_engine(conf["database"]["connection"]).begin() as connection:
    for statement in {statements!r}:
        connection.execute(sqlalchemy.text(statement))
PYTHON
"""

pytestmark = [pytest.mark.root, pytest.mark.slow, pytest.mark.timeout(3600),
              pytest.mark.skipif(bool(novad_node.missing()), reason=novad_node.missing())]


def conductor(*statements: str, end: str = "") -> str:
    """Return the start script of a conductor that changes the database first. ``end`` runs instead of the conductor."""
    before, _line, after = START.partition("shift\n")
    return f"{before}shift\n{_SQL.format(statements=list(statements))}{end}{after}"


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Images]:
    build()
    made = Images(tmp_path_factory.mktemp("registry"))
    try:
        made.derive("nova-conductor", "broken", conductor(
            "DELETE FROM key_pairs", "UPDATE instances SET display_name = 'spoilt'", "CREATE TABLE half_done (id INT)",
            end="exit 3\n"))
        for number in (2, 3):
            made.derive("nova-conductor", f"r{number}", conductor(f"CREATE TABLE release_{number} (id INT)"))
        yield made
    finally:
        made.stop()


@pytest.fixture(scope="module")
def suite(images: Images, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Suite]:
    name, ports = f"s{os.getpid()}", {}
    text = (ROOT / "etc/novad/nova.yaml").read_text().replace("127.0.0.1:5050", images.host).replace(
        "name: nova\n", f"name: {name}\n", 1)
    for port in sorted(set(re.findall(r"node: (\d+)", text))):
        ports[port] = str(free_port())
        text = text.replace(f"node: {port}", f"node: {ports[port]}").replace(f"127.0.0.1:{port}",
                                                                             f"127.0.0.1:{ports[port]}")
    with novad_node.node(tmp_path_factory.mktemp("node"), text, "yaml") as node:
        begun = time.monotonic()
        out = node.nova("deploy", timeout=LONG).stdout
        print(f"deployed in {time.monotonic() - begun:.1f} s\n{out}")
        yield Suite(node, name, f"http://127.0.0.1:{ports['5000']}/v3")


@pytest.fixture(scope="module")
def server(suite: Suite) -> Any:
    """Boot a server as a user does."""
    with contextlib.closing(suite.cloud()) as cloud:
        image = cloud.image.create_image(name="blank", disk_format="raw", container_format="bare", data=bytes(1 << 20))
        flavor = cloud.compute.create_flavor(name="tiny", ram=64, vcpus=1, disk=1)
        made = cloud.compute.create_server(name="first", image_id=image.id, flavor_id=flavor.id, networks="none")
        cloud.compute.create_keypair(name="mine")
        return cloud.compute.wait_for_server(made, wait=300)


def test_server_boots_and_components_report_their_versions(suite: Suite, server: Any, images: Images) -> None:
    assert (server.status, server.name) == ("ACTIVE", "first")
    found = suite.versions()
    assert set(found) == set(IMAGES)
    assert {state for _version, state in found.values()} == {"running"}
    assert all(re.search(r"\d+\.\d+", version) for version, _state in found.values())
    assert {version for name, (version, _state) in found.items() if name.startswith("nova-")} == {
        f"nova {images.version}"}


def test_images_logs_and_responses_contain_no_secrets(suite: Suite, images: Images) -> None:
    values = [file.read_text() for file in (suite.node.data / "secrets").iterdir()]
    assert len(values) == 8
    told = "".join(suite.node.nova(*words).stdout for words in (
        ("service-info", "keystone"), ("service-logs", "keystone", "--no-follow"),
        ("service-logs", "nova-conductor", "--no-follow"), ("history",)))
    told += suite.node.podman("inspect", *(f"{suite.name}-{name}" for name in IMAGES))
    assert not [value for value in values if value in told]


def test_broken_conductor_upgrade_is_rolled_back_with_its_database(suite: Suite, server: Any) -> None:
    failed = suite.node.nova("deploy", "nova-conductor=broken", check=False, timeout=LONG)
    assert (failed.returncode, "The previous state was restored" in failed.stderr) == (1, True)
    assert suite.tables() == set()
    assert suite.sql("SELECT display_name FROM instances") == ["first"]
    with contextlib.closing(suite.cloud()) as cloud:
        assert cloud.compute.get_server(server.id).name == "first"
        assert [key.name for key in cloud.compute.keypairs()] == ["mine"]
        assert [one.status for one in cloud.compute.servers()] == ["ACTIVE"]


def test_rollback_restores_image_and_data_of_two_versions_ago(suite: Suite, server: Any) -> None:
    for number in (2, 3):
        suite.node.nova("deploy", f"nova-conductor=r{number}", timeout=LONG)
    assert suite.tables() == {"release_2", "release_3"}
    with contextlib.closing(suite.cloud()) as cloud:
        cloud.compute.create_keypair(name="later")
    suite.node.nova("rollback", "nova-conductor", "--to", "1", timeout=LONG)
    assert suite.tables() == set()
    with contextlib.closing(suite.cloud()) as cloud:
        assert [key.name for key in cloud.compute.keypairs()] == ["mine"]
        assert cloud.compute.get_server(server.id).status == "ACTIVE"
        extra = cloud.compute.create_server(name="second", image_id=server.image.id, networks="none",
                                            flavor_id=next(iter(cloud.compute.flavors())).id)
        assert cloud.compute.wait_for_server(extra, wait=300).status == "ACTIVE"


def test_removed_deployment_leaves_nothing_on_the_node(suite: Suite) -> None:
    suite.node.nova("remove", "--yes", "--remove-volumes", "--remove-secrets", timeout=LONG)
    assert left(suite.node, suite.name) == []
    assert suite.versions() == {}


def test_image_build_is_reproducible(images: Images, tmp_path: pathlib.Path) -> None:
    """Covers Nova's own layer; build.sh with CHECK=True covers all layers."""
    for name in ("layers", "oci"):
        shutil.copytree(OUTPUT / name, tmp_path / name)
    (tmp_path / "layers/nova.stamp").unlink()
    (tmp_path / "oci/index.json").unlink()
    build(tmp_path, IMAGES="nova-api nova-compute")
    first, second = (json.loads((place / "oci/index.json").read_text())["manifests"] for place in (OUTPUT, tmp_path))
    assert len(second) == 2
    assert [one for one in second if one not in first] == []
