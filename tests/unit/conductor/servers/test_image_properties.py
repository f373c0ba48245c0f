"""Counts of servers with equal image properties per host, only for weighed properties."""

from __future__ import annotations

from collections.abc import Callable

from nova.conductor.saga.control import ConductorControl
from nova.objects.hosts.scheduling import RequestSpec
from nova.objects.images.image import Image
from tests.unit.conductor.books import Books, ctx, flavor, server


def image(**properties: str) -> Image:
    return Image(id="i", properties=properties)


def counted(core: Books, wanted: Image) -> dict[str, dict[str, int]]:
    spec = RequestSpec(instance_uuids=["x"], project_id="p1", flavor=flavor(), image=wanted)
    ConductorControl(core, ctx(), server(core)).group_hosts(spec)
    return spec.image_hosts


def test_servers_are_counted_per_host_and_weighed_image_property(core: Books, settings: Callable[..., None]) -> None:
    for host, properties in (
            ("a", {"os_distro": "ubuntu", "os_version": "24"}), ("a", {"os_distro": "ubuntu"}),
            ("b", {"os_version": "24", "trap": '"os_distro":"ubuntu"'}), ("b", {"os_distro": "ubuntux"}),
            ("c", {"os_distro": "50%_off"})):
        server(core, host, image=image(**properties))
    server(core, "d", image=image(os_distro="ubuntu"), deleted=True)
    server(core, "e")
    wanted = image(os_distro="ubuntu", os_version="24", hw_disk_bus="ide")
    core.statements()
    assert counted(core, wanted) == {}
    assert not any(statement.startswith("SELECT") for statement in core.statements())
    settings("image_props_weight_multiplier", 1.0, "filter_scheduler")
    assert counted(core, wanted) == {"os_distro": {"a": 2}, "os_version": {"a": 1, "b": 1}}
    assert counted(core, image(os_distro="50%_off")) == {"os_distro": {"c": 1}}
    assert counted(core, image()) == {}
    settings("image_props_weight_setting", ["os_version=2"], "filter_scheduler")
    assert counted(core, wanted) == {"os_version": {"a": 1, "b": 1}}
