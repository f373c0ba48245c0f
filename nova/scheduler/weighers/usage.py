"""Weighers by the usage and load of a node."""

import numpy as np

from nova.objects.hosts.node import DISK_GB, MEMORY_MB, VCPU
from nova.scheduler.columns import FloatColumn
from nova.scheduler.options import SchedulerOptions
from nova.scheduler.plugin import Scope
from nova.scheduler.request import Request
from nova.scheduler.view import FleetView
from nova.scheduler.weighers.base import Weigher


class RAMWeigher(Weigher):
    """Free memory in MiB, without overcommit."""

    option = "ram_weight_multiplier"
    floor = 0.0

    def scores(self, view: FleetView, request: Request) -> FloatColumn:
        return view.free(MEMORY_MB, overcommit=False)


class CPUWeigher(Weigher):
    """Free virtual CPUs, with overcommit."""

    option = "cpu_weight_multiplier"
    floor = 0.0

    def scores(self, view: FleetView, request: Request) -> FloatColumn:
        return view.free(VCPU)


class DiskWeigher(Weigher):
    """Free disk in MiB, without overcommit."""

    option = "disk_weight_multiplier"
    floor = 0.0

    def scores(self, view: FleetView, request: Request) -> FloatColumn:
        return view.free(DISK_GB, overcommit=False) * 1024


class IoOpsWeigher(Weigher):
    """Number of heavy operations (builds, migrations, snapshots) in progress."""

    option = "io_ops_weight_multiplier"
    column = "num_io_ops"
    floor = 0.0


class NumInstancesWeigher(Weigher):
    """Number of servers on the node."""

    option = "num_instances_weight_multiplier"
    column = "num_instances"


class BuildFailureWeigher(Weigher):
    """Number of failed builds since the last successful one; always counts against the node."""

    option = "build_failure_weight_multiplier"
    column = "failed_builds"
    direction = -1.0
    depends_on = Scope.REQUEST


class PCIWeigher(Weigher):
    """Number of free PCI devices, fewer is better, so that hosts with many are left to servers that request devices."""

    option = "pci_weight_multiplier"
    _MOST = 99

    def multipliers(self, view: FleetView, settings: SchedulerOptions) -> float | FloatColumn:
        # Most fleets have no devices; then nothing needs to be compared.
        return super().multipliers(view, settings) if view.any_dedicated_resources else 0.0

    def scores(self, view: FleetView, request: Request) -> FloatColumn:
        return self._MOST + 1 - np.minimum(view.free_devices(), self._MOST)


class HypervisorVersionWeigher(Weigher):
    """Version of the hypervisor, newer is better."""

    option = "hypervisor_version_weight_multiplier"
    column = "hypervisor_version"
    depends_on = Scope.REQUEST
