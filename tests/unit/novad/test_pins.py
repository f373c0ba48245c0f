"""Digests of tags: recorded at deployment; a different digest in the registry is refused."""

import pytest

from nova.common.errors import Invalid, Refused
from nova.novad.deployment.history import former_digest
from nova.novad.deployment.journal import Journal
from nova.novad.platform import Component
from tests.unit.novad.runtimes import digest
from tests.unit.novad.test_deploy import Node

LOOPBACK = "127.0.0.1:5050"
TEXT = """
name = "suite"
[components.fixed]
image = "{host}/db"
version = "1"
health = {{command = ["ok"], interval = 0.1, timeout = 1, start = 0.5}}
[components.moving]
image = "{host}/api"
health = {{command = ["ok"], interval = 0.1, timeout = 1, start = 0.5}}
"""
FIXED, MOVING = "db:1", "api:stable"


class World:
    def __init__(self, directory, host):
        self.host, self.node = host, Node(directory)
        self.node.runtime.registry |= {f"{host}/{name}": "good" for name in (FIXED, MOVING, "db:2", "api:1")}
        self.node.start(TEXT.format(host=host))
        self.node.deploy()

    def push(self, name):
        """Push another image to this tag."""
        reference = f"{self.host}/{name}"
        self.node.runtime.pushes[reference] = self.node.runtime.pushes.get(reference, 0) + 1
        return self.node.runtime.resolve(reference)

    def runs(self, name):
        return self.node.deployer.journal.components()[name].digest


@pytest.fixture(params=[LOOPBACK, "registry.example.org"])
def world(request, tmp_path):
    return World(tmp_path, request.param)


def refused(world, tag, component):
    fresh, before = world.push(tag), world.runs(component)
    with pytest.raises(Refused, match=f"{world.host}/{tag} is not the image .*{fresh}, the recorded .* is {before}. "
                                      f".*nova deploy {component}={tag.partition(':')[2]}@{fresh}"):
        world.node.deploy()
    assert world.runs(component) == before
    return fresh


def test_changed_image_of_a_version_is_refused_until_its_digest_is_given(world):
    fresh = refused(world, FIXED, "fixed")
    world.node.deploy(fixed=f"1@{fresh}")
    assert world.runs("fixed") == fresh
    before = len(world.node.told)
    world.node.deploy()
    assert [what for name, what in world.node.told[before:] if name == "fixed"][-1] == "is up to date"


def test_channel_is_updated_automatically_only_from_a_tls_registry(world):
    if world.host == LOOPBACK:
        fresh = refused(world, MOVING, "moving")
        world.node.deploy(moving=f"stable@{fresh}")
    else:
        fresh = world.push(MOVING)
        world.node.deploy()
    assert world.runs("moving") == fresh


def test_earlier_deployed_version_keeps_its_recorded_digest(world):
    world.node.deploy(fixed="2")
    refused_digest = world.push(FIXED)
    with pytest.raises(Refused, match=refused_digest):
        world.node.deploy(fixed="1")
    world.node.rollback("fixed")
    assert world.runs("fixed") == digest(f"{world.host}/{FIXED}")


def test_restart_and_rollback_use_the_recorded_image(world):
    before = world.runs("fixed")
    world.push(FIXED)
    world.node.deploy(fixed="2")
    world.node.rollback("fixed")
    world.node.runtime.remove("suite-fixed")
    world.node.deployer.containers.begin(world.node.deployer.journal.components()["fixed"])
    world.node.deployer.containers.wait(world.node.deployer.journal.components()["fixed"])
    assert world.runs("fixed") == before
    assert world.node.runtime.made["suite-fixed"].image == world.node.deployer.journal.components()["fixed"].image


def test_missing_requested_digest_is_refused(world):
    with pytest.raises(Exception, match="cannot be fetched"):
        world.node.deploy(fixed="1@sha256:" + "0" * 64)


def test_digest_of_a_failed_deployment_is_not_recorded(world):
    world.node.runtime.registry[f"{world.host}/db:3"] = "sick"
    with pytest.raises(Exception, match="healthy"):
        world.node.deploy(fixed="3")
    world.push("db:3")
    world.node.runtime.registry[f"{world.host}/db:3"] = "good"
    world.node.deploy(fixed="3")


def test_deployment_by_an_earlier_release_counts_as_recorded(world):
    for name in world.node.deployer.journal.facts("digest "):
        world.node.deployer.journal.drop_fact(f"digest {name}")
    refused(world, FIXED, "fixed")


@pytest.mark.parametrize("version", ["1@", "1@sha256:0", "@sha256:" + "0" * 64, "1@sha1:" + "0" * 40,
                                     "1@sha256:" + "g" * 64])
def test_malformed_digest_is_refused(version):
    with pytest.raises(Invalid, match="is not a version"):
        Component(image="i", version="1").of_version(version)


@pytest.mark.parametrize(("image", "version", "moves"), [
    ("127.0.0.1:5050/nova/api", "", False), ("localhost:5050/nova/api", "", False), ("[::1]:5050/nova/api", "", False),
    ("registry.example.org/api", "", True), ("registry.example.org/api", "1", False), ("busybox", "", True)])
def test_only_channel_tags_of_remote_registries_may_move(tmp_path, image, version, moves):
    journal, component = Journal(tmp_path / "journal.sqlite"), Component(image=image, version=version)
    journal.set_fact(f"digest {image}:{component.tag}", "first")
    assert former_digest(journal, component, "second") == ("" if moves else "first")
