"""Weighers by how full or busy a node is."""

from __future__ import annotations

import numpy as np

from nova.objects.node import DISK_GB, MEMORY_MB, VCPU
from nova.scheduler.columns import FloatColumn
from nova.scheduler.plugin import Scope
from nova.scheduler.request import Request
from nova.scheduler.settings import Settings
from nova.scheduler.view import FleetView
from nova.scheduler.weighers.base import Weigher


class RAMWeigher(Weigher):
    """Free memory in MiB, without over-commit."""

    option = "ram_weight_multiplier"
    floor = 0.0

    def scores(self, view: FleetView, request: Request) -> FloatColumn:
        return view.free(MEMORY_MB, overcommit=False)


class CPUWeigher(Weigher):
    """Free virtual CPUs, with over-commit."""

    option = "cpu_weight_multiplier"
    floor = 0.0

    def scores(self, view: FleetView, request: Request) -> FloatColumn:
        return view.free(VCPU)


class DiskWeigher(Weigher):
    """Free disk in MiB, without over-commit."""

    option = "disk_weight_multiplier"
    floor = 0.0

    def scores(self, view: FleetView, request: Request) -> FloatColumn:
        return view.free(DISK_GB, overcommit=False) * 1024


class IoOpsWeigher(Weigher):
    """Heavy operations (builds, migrations, snapshots) under way."""

    option = "io_ops_weight_multiplier"
    floor = 0.0

    def scores(self, view: FleetView, request: Request) -> FloatColumn:
        return view.num_io_ops.astype(float)


class NumInstancesWeigher(Weigher):
    """Servers on the node."""

    option = "num_instances_weight_multiplier"

    def scores(self, view: FleetView, request: Request) -> FloatColumn:
        return view.num_instances.astype(float)


class BuildFailureWeigher(Weigher):
    """Builds that failed since the last good one: always against the node."""

    option = "build_failure_weight_multiplier"
    direction = -1.0

    def scope(self, request: Request) -> Scope:
        return Scope.REQUEST

    def scores(self, view: FleetView, request: Request) -> FloatColumn:
        return view.failed_builds.astype(float)


class PCIWeigher(Weigher):
    """Free PCI devices: few first, so that hosts with many are left to servers that want some."""

    option = "pci_weight_multiplier"
    _MOST = 99

    def multipliers(self, view: FleetView, settings: Settings) -> float | FloatColumn:
        # Most fleets have none, and then nothing is to be compared.
        return super().multipliers(view, settings) if view.any_dedicated_resources else 0.0

    def scores(self, view: FleetView, request: Request) -> FloatColumn:
        return self._MOST + 1 - np.minimum(view.free_devices(), self._MOST)


class HypervisorVersionWeigher(Weigher):
    """The version of the hypervisor: newer first."""

    option = "hypervisor_version_weight_multiplier"

    def scope(self, request: Request) -> Scope:
        return Scope.REQUEST

    def scores(self, view: FleetView, request: Request) -> FloatColumn:
        return view.hypervisor_version.astype(float)
