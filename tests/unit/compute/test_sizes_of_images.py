"""A host downloads no image that exceeds the disk or kernel size limit of its server."""

from __future__ import annotations

import pathlib
import types
from collections.abc import Iterator
from typing import Any

import pytest

from nova import conf, context, exception
from nova.compute.host import Machine, StepHost
from nova.conf import CONF
from nova.image.base import CheckSize
from nova.network.base import NoNetwork
from nova.objects.accounts.flavor import Flavor
from nova.objects.base import new_uuid, utcnow
from nova.objects.images.image import Image
from nova.objects.networks.network import RuleSet
from nova.objects.servers.instance import Instance
from nova.virt.fake.driver import FakeDriver
from nova.virt.images.imagecache import ImageCache

MIB = 1 << 20


class Store:
    """An image store with empty images, which take no space."""

    def __init__(self, sizes: dict[str, int]) -> None:
        self._sizes = sizes

    def download(self, _ctx: object, image_id: str, path: str, check_size: CheckSize) -> None:
        check_size(self._sizes[image_id])
        with open(path, "wb") as file:
            file.truncate(self._sizes[image_id])


@pytest.fixture
def place(tmp_path: pathlib.Path) -> Iterator[pathlib.Path]:
    conf.register()
    CONF.set_override("state_path", str(tmp_path))
    CONF.set_override("size_limit_mb", 0, "image_cache")
    CONF.set_override("kernel_size_limit_mb", 1, "compute")
    yield tmp_path
    CONF.clear_override("state_path")
    CONF.clear_override("size_limit_mb", "image_cache")
    CONF.clear_override("kernel_size_limit_mb", "compute")


def server(image: Image, **fields: Any) -> Instance:
    return Instance(uuid=new_uuid(), project_id="p", user_id="u", display_name="n", hostname="n",
                    flavor=Flavor(flavorid="f", name="f", memory_mb=1, vcpus=1, root_gb=1), created_at=utcnow(),
                    image=image, image_ref=image.id, **fields)


def host_of(instance: Instance, sizes: dict[str, int]) -> StepHost:
    driver = FakeDriver("h1")
    driver.needs_images = True  # type: ignore[misc]
    machine = Machine(name="h1", driver=driver, network=NoNetwork(), images=lambda: Store(sizes),  # type: ignore[arg-type]
                      cache=ImageCache())
    job: Any = types.SimpleNamespace(ctx=context.admin(), cancelled=None,
                                     order=types.SimpleNamespace(instance=instance, rules=RuleSet()))
    return StepHost(machine, job, lambda changes, values: None)


@pytest.mark.parametrize(("disk", "kernel", "fits"), [
    (1024 * MIB, MIB, True), (1024 * MIB + 512, MIB, False), (MIB, MIB + 512, False)])
def test_image_larger_than_its_disk_or_kernel_limit_is_refused(place: pathlib.Path, disk: int, kernel: int,
                                                               fits: bool) -> None:
    instance = server(Image(id="disk", disk_format="raw"), kernel_id="kernel")
    host = host_of(instance, {"disk": disk, "kernel": kernel})
    if fits:
        assert host.boot_files().root
        return
    with pytest.raises(exception.NovaException, match=r"disk is too small|at most"):
        host.boot_files()


def test_preallocated_vmdk_is_raw_data(place: pathlib.Path) -> None:
    image = Image(id="disk", disk_format="vmdk", properties={"vmware_disktype": "preallocated"})
    root = host_of(server(image), {"disk": MIB}).boot_files().root
    assert root is not None
    assert root.endswith("disk.raw")
    other = Image(id="other", disk_format="vmdk", properties={"vmware_disktype": "sparse"})
    with pytest.raises(exception.ImageUnacceptable, match="vmdk"):
        host_of(server(other), {"other": MIB}).boot_files()
