"""Duration of scheduling decisions in this process, without a bus or a database.

Each decision updates the fleet for the next one, as in the service. The hosts have several sizes, are partly used and
are in three zones.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable

from nova import conf
from nova.objects.accounts.flavor import Flavor
from nova.objects.hosts.node import Inventory
from nova.objects.hosts.scheduling import HostState, NodeUsage, RequestSpec
from nova.objects.images.image import Image
from nova.scheduler.hosts import Fleet
from nova.scheduler.manager import load_filters, load_weighers
from nova.scheduler.options import SchedulerOptions
from nova.scheduler.request import Request
from nova.scheduler.select import Planner
from tools.bench.amounts import Amounts

# Minimum size of a fleet with capacity for a thousand servers.
_LARGE = 1000

FLAVOR = Flavor(flavorid="1", name="m1.small", memory_mb=2048, vcpus=1, root_gb=20)
IMAGE = Image(id="image", disk_format="qcow2", properties={"hw_architecture": "x86_64", "hw_vm_mode": "hvm"})


def host(number: int, chance: random.Random) -> HostState:
    """A host of one of several sizes, partly used, in one of three zones."""
    size = chance.choice((16, 32, 64, 128))
    used = chance.randrange(size * 2)
    return HostState(
        node_uuid=f"00000000-0000-4000-8000-{number:012d}", host=f"host-{number}", node=f"host-{number}",
        up=chance.random() > 0.01, disabled=chance.random() < 0.01,
        inventories={
            "VCPU": Inventory(total=size, ratio=4.0, max_unit=size, used=used),
            "MEMORY_MB": Inventory(total=size * 4096, reserved=512, max_unit=size * 4096, used=used * 2048),
            "DISK_GB": Inventory(total=size * 100, max_unit=size * 100, used=used * 20)},
        traits=["COMPUTE_NODE", "OWNER_NOVA", "HW_CPU_X86_AVX2", f"CUSTOM_RACK_{number % 200}"],
        availability_zone=f"az{number % 3}", aggregates=[{"availability_zone": f"az{number % 3}"}],
        aggregate_ids=[number % 3], num_instances=used, num_io_ops=chance.randrange(4),
        failed_builds=int(chance.random() < 0.02), hypervisor_type="QEMU", hypervisor_version=chance.choice((
            7002000, 8002000, 9001000)), host_ip=f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}",
        cpu_info={"arch": "x86_64", "model": chance.choice(("Skylake", "EPYC")), "features": ["aes", "avx2"]},
        supported_instances=[("x86_64", "qemu", "hvm"), ("i686", "qemu", "hvm")], generation=1)


def request(count: int) -> RequestSpec:
    return RequestSpec(
        instance_uuids=[f"instance-{number}" for number in range(count)], project_id="project", flavor=FLAVOR,
        image=IMAGE, resources={"VCPU": 1, "MEMORY_MB": 2048, "DISK_GB": 20}, required_traits=["HW_CPU_X86_AVX2"],
        availability_zone=None)


def measure(amounts: Amounts) -> dict[str, float]:
    """Return the median times in ms for fleets of all sizes, with the default filters and weighers."""
    conf.register()
    conf.CONF([], project="nova", default_config_files=[])
    planner, settings = Planner(load_filters(), load_weighers()), SchedulerOptions.from_conf(conf.CONF)
    results: dict[str, float] = {}
    for hosts in amounts.sizes:
        results |= _fleet(hosts, planner, settings, amounts.selects)
    return results


def _fleet(hosts: int, planner: Planner, settings: SchedulerOptions, repeat: int) -> dict[str, float]:
    chance = random.Random(hosts)  # noqa: S311
    fleet = Fleet()
    states = [host(number, chance) for number in range(hosts)]
    results: dict[str, float] = {}

    def show(name: str, times: int, function: Callable[[], object]) -> None:
        results[name], worst = _milliseconds(times, function)
        print(f"  {name:26} {results[name]:10.2f} ms  (worst {worst:.2f})", flush=True)

    def select(count: int) -> None:
        with fleet.view() as view:
            wanted = Request(request(count), settings)
            choices = planner.plan(view, wanted)
            fleet.commit(view.planned, sorted({choice.row for choice in choices}))

    def explain() -> None:
        with fleet.view() as view:
            planner.explain(view, Request(request(1), settings))

    show(f"read_{hosts}_ms", 1, lambda: fleet.upsert_all(states))
    show(f"reread_{hosts}_ms", 3, lambda: fleet.upsert_all(states))
    show(f"select_1_of_{hosts}_ms", 10 * repeat, lambda: select(1))
    if hosts >= _LARGE:
        show(f"select_1000_on_{hosts}_ms", repeat, lambda: select(1000))
    show(f"explain_{hosts}_ms", 3, explain)
    usages = [NodeUsage(node_uuid=state.node_uuid, used={"VCPU": 1, "MEMORY_MB": 1, "DISK_GB": 1}, generation=2)
              for state in states]
    show(f"usage_of_{hosts}_ms", 1, lambda: [fleet.apply(usage) for usage in usages])
    return results


def _milliseconds(repeat: int, function: Callable[[], object]) -> tuple[float, float]:
    """Return (median, worst) in ms of ``repeat`` runs."""
    times = []
    for _ in range(repeat):
        started = time.perf_counter()
        function()
        times.append((time.perf_counter() - started) * 1000)
    return round(statistics.median(times), 3), max(times)
