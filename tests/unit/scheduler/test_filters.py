"""Filters pass suitable nodes and refuse unsuitable nodes."""

from __future__ import annotations

import json

import pytest

from nova import exception
from nova.objects.hosts.scheduling import GroupSpec
from nova.scheduler import plugin
from nova.scheduler.filters import Filter, HostFilter
from nova.scheduler.filters.affinity import (
    DifferentHostFilter,
    SameHostFilter,
    ServerGroupAffinityFilter,
    ServerGroupAntiAffinityFilter,
    SimpleCIDRAffinityFilter,
)
from nova.scheduler.filters.aggregates import (
    AggregateImagePropertiesIsolation,
    AggregateInstanceExtraSpecsFilter,
    AggregateMultiTenancyIsolation,
    AggregateTypeAffinityFilter,
    IsolatedHostsFilter,
)
from nova.scheduler.filters.capabilities import ComputeCapabilitiesFilter, JsonFilter
from nova.scheduler.filters.image import ImagePropertiesFilter
from nova.scheduler.filters.service import (
    AggregateIoOpsFilter,
    AggregateNumInstancesFilter,
    AllHostsFilter,
    AvailabilityZoneFilter,
    ComputeFilter,
    IoOpsFilter,
    MetricsFilter,
    NumInstancesFilter,
)
from nova.scheduler.view import FleetView
from tests.unit.scheduler.builders import fleet, node, passing, request, spec


def test_all_hosts_filter_passes_every_host():
    assert passing(AllHostsFilter(), [node("a", up=False), node("b")], spec()) == ["a", "b"]


def test_compute_filter_requires_a_service_that_is_up_and_enabled():
    states = [node("up"), node("down", up=False), node("disabled", disabled=True)]
    assert passing(ComputeFilter(), states, spec()) == ["up"]


def test_availability_zone_filter_passes_hosts_of_the_requested_zone():
    states = [node("a", availability_zone="one"), node("b", availability_zone="two"), node("c")]
    assert passing(AvailabilityZoneFilter(), states, spec(availability_zone="one")) == ["a"]
    assert passing(AvailabilityZoneFilter(), states, spec(availability_zone="nova")) == ["c"]
    assert passing(AvailabilityZoneFilter(), states, spec()) == ["a", "b", "c"]


def test_io_ops_filter_refuses_hosts_at_the_limit(settings):
    states = [node("a", num_io_ops=7), node("b", num_io_ops=8)]
    assert passing(IoOpsFilter(), states, spec()) == ["a"]
    settings("filter_scheduler", max_io_ops_per_host=9)
    assert passing(IoOpsFilter(), states, spec()) == ["a", "b"]


def test_aggregate_io_ops_filter_uses_the_smallest_limit():
    limits = [{"max_io_ops_per_host": "5"}, {"max_io_ops_per_host": "3"}, {"max_io_ops_per_host": "many"}]
    states = [node("a", num_io_ops=2, aggregates=limits), node("b", num_io_ops=3, aggregates=limits),
              node("c", num_io_ops=7), node("d", num_io_ops=8)]
    assert passing(AggregateIoOpsFilter(), states, spec()) == ["a", "c"]


def test_num_instances_filter_refuses_hosts_at_the_limit(settings):
    states = [node("a", num_instances=49), node("b", num_instances=50)]
    assert passing(NumInstancesFilter(), states, spec()) == ["a"]
    settings("filter_scheduler", max_instances_per_host=51)
    assert passing(NumInstancesFilter(), states, spec()) == ["a", "b"]


def test_aggregate_num_instances_filter_uses_aggregate_limits():
    states = [node("a", num_instances=1, aggregates=[{"max_instances_per_host": "2"}]),
              node("b", num_instances=2, aggregates=[{"max_instances_per_host": "2"}]),
              node("c", num_instances=60, aggregates=[{"max_instances_per_host": "70"}])]
    assert passing(AggregateNumInstancesFilter(), states, spec()) == ["a", "c"]


def test_metrics_filter_requires_the_weighed_metrics(settings):
    states = [node("a", metrics={"load": 1.0, "heat": 2.0}), node("b", metrics={"load": 1.0}), node("c")]
    assert passing(MetricsFilter(), states, spec()) == ["a", "b", "c"]
    settings("metrics", weight_setting=["load=1.0", "heat=-1", "nonsense"])
    assert passing(MetricsFilter(), states, spec()) == ["a"]


class TestServerGroups:
    states = (node("a"), node("b"), node("b2", host="b"), node("c"))

    def group(self, policy: str, hosts: dict[str, int], most: int = 1) -> GroupSpec:
        return GroupSpec(uuid="group", policy=policy, hosts=hosts, max_server_per_host=most)

    def test_server_group_affinity_filter_passes_hosts_of_members(self):
        each = ServerGroupAffinityFilter()
        assert passing(each, self.states, spec(group=self.group("affinity", {"b": 1}))) == ["b", "b2"]
        assert passing(each, self.states, spec(group=self.group("affinity", {"gone": 1}))) == []
        for anywhere in (None, self.group("affinity", {}), self.group("anti-affinity", {"b": 1})):
            assert passing(each, self.states, spec(group=anywhere)) == ["a", "b", "b2", "c"]

    def test_server_group_anti_affinity_filter_refuses_hosts_of_members(self):
        each = ServerGroupAntiAffinityFilter()
        assert passing(each, self.states, spec(group=self.group("anti-affinity", {"b": 1, "c": 2}))) == ["a"]
        assert passing(each, self.states, spec(group=self.group("anti-affinity", {"b": 1, "c": 2}, 2))) == [
            "a", "b", "b2"]
        assert passing(each, self.states, spec(group=self.group("affinity", {"b": 1}))) == ["a", "b", "b2", "c"]


class TestHints:
    states = (node("a", host_ip="10.0.1.1"), node("b", host_ip="10.0.2.1"), node("c", host_ip="fd00::1"))

    def asked(self, **hints):
        return spec(hints=hints, hint_hosts={"one": "a", "two": "b"})

    def test_same_host_filter_passes_hosts_of_the_hinted_servers(self):
        assert passing(SameHostFilter(), self.states, self.asked(same_host="one")) == ["a"]
        assert passing(SameHostFilter(), self.states, self.asked(same_host=["one", "two"])) == ["a", "b"]
        assert passing(SameHostFilter(), self.states, self.asked(same_host="unknown")) == []
        assert passing(SameHostFilter(), self.states, self.asked()) == ["a", "b", "c"]

    def test_different_host_filter_refuses_hosts_of_the_hinted_servers(self):
        assert passing(DifferentHostFilter(), self.states, self.asked(different_host="one")) == ["b", "c"]
        assert passing(DifferentHostFilter(), self.states, self.asked(different_host=["one", "two"])) == ["c"]
        assert passing(DifferentHostFilter(), self.states, self.asked(different_host="unknown")) == ["a", "b", "c"]

    def test_simple_cidr_affinity_filter_passes_hosts_in_the_subnet(self):
        each = SimpleCIDRAffinityFilter()
        assert passing(each, self.states, self.asked(build_near_host_ip="10.0.1.200")) == ["a"]
        assert passing(each, self.states, self.asked(build_near_host_ip="10.0.1.200", cidr="/16")) == ["a", "b"]
        assert passing(each, self.states, self.asked(build_near_host_ip="fd00::5", cidr="64")) == ["c"]
        assert passing(each, self.states, self.asked(build_near_host_ip="everywhere")) == []
        assert passing(each, self.states, self.asked(build_near_host_ip="10.0.1.1", cidr="/99")) == []


class TestCapabilities:
    states = (
        node("a", hypervisor_type="QEMU", hypervisor_version=9001000, ram=8192,
             cpu_info={"arch": "x86_64", "features": ["aes", "vmx"], "topology": {"cores": 4},
                       "maxphysaddr": {"bits": 46}}),
        node("b", hypervisor_type="LXC", hypervisor_version=1000, ram=2048, cpu_info={"arch": "aarch64"}),
    )

    @pytest.mark.parametrize(("extra_specs", "expected"), [
        ({"capabilities:hypervisor_type": "QEMU"}, ["a"]),
        ({"capabilities:hypervisor_type": "s== LXC"}, ["b"]),
        ({"capabilities:hypervisor_type": "s!= LXC"}, ["a"]),
        ({"capabilities:hypervisor_type": "<or> QEMU <or> LXC"}, ["a", "b"]),
        ({"capabilities:hypervisor_version": ">= 2000"}, ["a"]),
        ({"capabilities:hypervisor_version": "= 1000"}, ["a", "b"]),
        ({"capabilities:hypervisor_version": "== 1000"}, ["b"]),
        ({"capabilities:hypervisor_version": "!= 1000"}, ["a"]),
        ({"capabilities:hypervisor_version": "<= 1000"}, ["b"]),
        ({"capabilities:hypervisor_version": ">= new"}, []),
        ({"capabilities:cpu_info:arch": "x86_64"}, ["a"]),
        ({"capabilities:cpu_info:features": "<in> aes"}, ["a"]),
        ({"capabilities:cpu_info:features": "<all-in> aes vmx"}, ["a"]),
        ({"capabilities:cpu_info:features": "<all-in> aes svm"}, []),
        ({"capabilities:cpu_info:topology:cores": "4"}, ["a"]),
        ({"capabilities:cpu_info:none": "x"}, []),
        ({"capabilities:unknown": "x"}, []),
        ({"capabilities:free_ram_mb": ">= 4096"}, ["a"]),
        ({"hypervisor_type": "LXC"}, ["b"]),
        ({"unknown": "x", "hw:cpu_policy": "shared"}, ["a", "b"]),
        ({"hw:maxphysaddr_bits": "42"}, ["a"]),
        ({"hw:maxphysaddr_bits": "48"}, []),
    ])
    def test_compute_capabilities_filter_compares_extra_specs(self, extra_specs, expected):
        assert passing(ComputeCapabilitiesFilter(), self.states, spec(extra_specs=extra_specs)) == expected

    @pytest.mark.parametrize(("query", "expected"), [
        ([">=", "$free_ram_mb", 4096], ["a"]),
        (["<", "$free_ram_mb", 4096], ["b"]),
        (["=", "$hypervisor_type", "LXC"], ["b"]),
        (["in", "$hypervisor_type", "LXC", "QEMU"], ["a", "b"]),
        (["not", ["=", "$host", "a"]], ["b"]),
        (["and", [">=", "$free_ram_mb", 1], ["=", "$cpu_info.arch", "x86_64"]], ["a"]),
        (["or", ["=", "$host", "a"], ["=", "$host", "b"]], ["a", "b"]),
        (["=", "$cpu_info.features", ["aes", "vmx"]], ["a"]),
        (["<=", 1024, "$free_ram_mb"], ["a", "b"]),
        (["=", "$nothing", 1], []),
        (["<", "$hypervisor_type", 5], []),
        (["<", "$free_ram_mb", "$total_usable_ram_mb"], []),
        ([], ["a", "b"]),
    ])
    def test_json_filter_evaluates_queries(self, query, expected):
        assert passing(JsonFilter(), self.states, spec(hints={"query": json.dumps(query)})) == expected

    def test_json_filter_finds_an_attribute_once_for_all_hosts_with_the_same_value(self, monkeypatch):
        accesses = []
        monkeypatch.setattr(FleetView, "text", lambda *_args: accesses.append("text of a single host"))
        query = request(spec(hints={"query": json.dumps(["=", "$cpu_info.arch", "aarch64"])}))
        with fleet(*self.states).view() as view:
            assert JsonFilter().mask(view, query).tolist() == [False, True]
        assert accesses == []

    @pytest.mark.parametrize("query", [
        "{", '"text"', '{"a": 1}', '["eval", "x"]', '[["="]]', '["and", []]', "[" * 100000,
        json.dumps(["and", *[["=", 1, 1]] * 500]), '["not", ' * 30 + "1" + "]" * 30])
    def test_invalid_json_filter_query_is_refused(self, query):
        with pytest.raises(exception.NoValidHost, match="query"):
            passing(JsonFilter(), self.states, spec(hints={"query": query}))


class TestImageProperties:
    states = (
        node("kvm", hypervisor_version=9001002, cpu_info={"maxphysaddr": {"bits": 40}},
             supported_instances=[("x86_64", "kvm", "hvm"), ("i686", "kvm", "hvm")]),
        node("lxc", hypervisor_version=2000000, supported_instances=[("x86_64", "lxc", "exe")]),
        node("nothing"),
    )

    @pytest.mark.parametrize(("properties", "expected"), [
        ({}, ["kvm", "lxc", "nothing"]),
        ({"hw_architecture": "x86_64"}, ["kvm", "lxc"]),
        ({"architecture": "amd64"}, ["kvm", "lxc"]),
        ({"hw_architecture": "i386"}, ["kvm"]),
        ({"hw_architecture": "aarch64"}, []),
        ({"hypervisor_type": "LXC"}, ["lxc"]),
        ({"hw_vm_mode": "hvm"}, ["kvm"]),
        ({"hw_architecture": "i686", "img_hv_type": "lxc"}, []),
        ({"img_hv_requested_version": ">=9.1,<10"}, ["kvm", "nothing"]),
        ({"img_hv_requested_version": "<9.1.2"}, ["lxc", "nothing"]),
        ({"img_hv_requested_version": "new"}, ["nothing"]),
        ({"img_hv_requested_version": "<" + "9" * 5000}, ["nothing"]),
        ({"hw_maxphysaddr_bits": "9" * 5000}, ["kvm", "lxc", "nothing"]),
        ({"hw_maxphysaddr_bits": "40"}, ["kvm"]),
        ({"hw_maxphysaddr_bits": "41"}, []),
    ])
    def test_image_properties_filter_compares_supported_instances(self, properties, expected):
        assert passing(ImagePropertiesFilter(), self.states, spec(properties=properties)) == expected

    def test_image_properties_filter_applies_the_default_architecture(self, settings):
        settings("filter_scheduler", image_properties_default_architecture="i686")
        assert passing(ImagePropertiesFilter(), self.states, spec()) == ["kvm"]
        assert passing(ImagePropertiesFilter(), self.states, spec(properties={"hw_architecture": "x86_64"})) == [
            "kvm", "lxc"]


class TestAggregates:
    states = (node("plain"), node("ssd", aggregates=[{"disk": "ssd, nvme"}, {"cores": "16"}]),
              node("hdd", aggregates=[{"disk": "hdd"}]))

    @pytest.mark.parametrize(("extra_specs", "expected"), [
        ({}, ["plain", "ssd", "hdd"]),
        ({"disk": "ssd"}, ["ssd"]),
        ({"aggregate_instance_extra_specs:disk": "nvme"}, ["ssd"]),
        ({"aggregate_instance_extra_specs:cores": ">= 8"}, ["ssd"]),
        ({"disk": "<or> hdd <or> ssd"}, ["ssd", "hdd"]),
        ({"disk": "tape"}, []),
        ({"hw:cpu_policy": "shared"}, ["plain", "ssd", "hdd"]),
    ])
    def test_aggregate_extra_specs_filter_compares_aggregate_metadata(self, extra_specs, expected):
        assert passing(AggregateInstanceExtraSpecsFilter(), self.states, spec(extra_specs=extra_specs)) == expected

    def test_aggregate_image_properties_isolation_refuses_mismatches(self, settings):
        states = [node("plain"), node("win", aggregates=[{"os_type": "windows,freedos"}])]
        each = AggregateImagePropertiesIsolation()
        assert passing(each, states, spec(properties={"os_type": "windows"})) == ["plain", "win"]
        assert passing(each, states, spec(properties={"os_type": "linux"})) == ["plain"]
        assert passing(each, states, spec(properties={"os_distro": "debian"})) == ["plain", "win"]
        settings("filter_scheduler", aggregate_image_properties_isolation_namespace="only")
        assert passing(each, states, spec(properties={"os_type": "linux"})) == ["plain", "win"]
        states = [node("win", aggregates=[{"only.os_type": "windows"}])]
        assert passing(each, states, spec(properties={"os_type": "linux"})) == []

    def test_aggregate_multi_tenancy_isolation_refuses_other_projects(self):
        states = [node("plain"), node("ours", aggregates=[{"filter_tenant_id": "other, project"}]),
                  node("theirs", aggregates=[{"filter_tenant_id2": "other"}])]
        assert passing(AggregateMultiTenancyIsolation(), states, spec()) == ["plain", "ours"]

    def test_aggregate_type_affinity_filter_refuses_other_flavors(self):
        states = [node("plain"), node("ours", aggregates=[{"instance_type": "large,small"}]),
                  node("other", aggregates=[{"instance_type": "large"}])]
        assert passing(AggregateTypeAffinityFilter(), states, spec()) == ["plain", "ours"]


def test_isolated_hosts_filter_separates_isolated_images(settings):
    states = [node("a"), node("b")]
    assert passing(IsolatedHostsFilter(), states, spec()) == ["a", "b"]
    settings("filter_scheduler", isolated_hosts=["b"], isolated_images=["other"])
    assert passing(IsolatedHostsFilter(), states, spec()) == ["a"]
    settings("filter_scheduler", restrict_isolated_hosts_to_isolated_images=False)
    assert passing(IsolatedHostsFilter(), states, spec()) == ["a", "b"]
    settings("filter_scheduler", isolated_images=["image"])
    assert passing(IsolatedHostsFilter(), states, spec()) == ["b"]


class OddMemory(HostFilter):
    def passes(self, host, request):
        return host.inventories["MEMORY_MB"].total % 2 == 1 and host.up


def test_host_filter_is_applied_to_each_node():
    assert passing(OddMemory(), [node("a", ram=7), node("b", ram=8), node("c", ram=9, up=False)], spec()) == ["a"]


def test_filters_report_a_reason_for_each_refusal():
    """The reason refers to the first node of the view and is not the default of the base class."""
    states = [node("here", up=False, num_io_ops=99, num_instances=99, availability_zone="far", aggregates=[
        {"max_io_ops_per_host": "1", "max_instances_per_host": "1", "instance_type": "x", "filter_tenant_id": "x",
         "os_type": "x"}])]
    asked = spec(
        extra_specs={"capabilities:host": "x", "size": "1"},
        properties={"os_type": "linux", "hw_architecture": "x86_64"}, availability_zone="near",
        hint_hosts={"one": "here"}, hints={"same_host": "none", "different_host": "one", "query": '["=", 1, 2]',
                                           "build_near_host_ip": "10.0.0.1"})
    made, this = fleet(*states), request(asked)
    seen = 0
    for each in plugin.load("nova.scheduler.filters", Filter, None, ""):
        with made.view() as view:
            if each.applies(this) and not each.mask(view, this)[0]:
                assert each.reason(view, this) not in ("", "refused"), each.name
                seen += 1
    assert seen >= 14
