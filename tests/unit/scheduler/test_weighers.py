"""Weighers prefer the right nodes, and the weights add up."""

from __future__ import annotations

import pytest

from nova import exception
from nova.objects.hosts.scheduling import GroupSpec, HostState
from nova.scheduler.select import Planner
from nova.scheduler.weighers import HostWeigher, Weigher
from nova.scheduler.weighers.affinity import ServerGroupSoftAffinityWeigher, ServerGroupSoftAntiAffinityWeigher
from nova.scheduler.weighers.image import ImagePropertiesWeigher
from nova.scheduler.weighers.metrics import MetricsWeigher
from nova.scheduler.weighers.usage import (
    BuildFailureWeigher,
    CPUWeigher,
    DiskWeigher,
    HypervisorVersionWeigher,
    IoOpsWeigher,
    NumInstancesWeigher,
    RAMWeigher,
)
from tests.unit.scheduler.builders import choose, fleet, node, request, scores, spec


def weights(each: Weigher, *states: HostState, **values: object) -> dict[str, float | None]:
    made = fleet(*states)
    with made.view() as view:
        return {verdict.node: verdict.weight for verdict in Planner([], [each]).explain(view, request(spec(**values)))}


def test_ram_weigher_ignores_overcommit():
    assert scores(RAMWeigher(), [node("a", ram=4096, used=(0, 1024, 0))]) == {"a": 3072}
    assert weights(RAMWeigher(), node("a", ram=8192), node("b", ram=4096)) == {"a": 1.0, "b": 0.5}


def test_cpu_weigher_includes_overcommit():
    assert scores(CPUWeigher(), [node("a", vcpus=8, ratio=4.0, used=(2, 0, 0))]) == {"a": 30}
    assert weights(CPUWeigher(), node("a", vcpus=8), node("b", vcpus=2)) == {"a": 1.0, "b": 0.25}


def test_disk_weigher_uses_mib():
    assert scores(DiskWeigher(), [node("a", disk=20, used=(0, 0, 4))]) == {"a": 16 * 1024}
    assert weights(DiskWeigher(), node("a", disk=100), node("b", disk=50)) == {"a": 1.0, "b": 0.5}


def test_io_ops_weigher_prefers_idle_hosts():
    assert weights(IoOpsWeigher(), node("a", num_io_ops=4), node("b", num_io_ops=1)) == {"a": -1.0, "b": -0.25}


def test_num_instances_weigher_is_disabled_by_default(settings):
    states = node("a", num_instances=4), node("b", num_instances=2)
    assert weights(NumInstancesWeigher(), *states) == {"a": 0.0, "b": 0.0}
    settings("filter_scheduler", num_instances_weight_multiplier=-2.0)
    assert weights(NumInstancesWeigher(), *states) == {"a": -2.0, "b": 0.0}


def test_build_failure_weigher_outweighs_all_other_weighers():
    assert weights(BuildFailureWeigher(), node("a", failed_builds=2), node("b")) == {"a": -1000000.0, "b": 0.0}
    states = node("big", ram=99999, disk=9999, vcpus=999, failed_builds=1), node("small")
    assert choose(fleet(*states), spec(alternates=0)) == [["small"]]


def test_hypervisor_version_weigher_prefers_newer_versions():
    assert weights(HypervisorVersionWeigher(), node("a", hypervisor_version=9000000),
                   node("b", hypervisor_version=8000000)) == {"a": 1.0, "b": 0.0}


def test_soft_affinity_weighers_count_group_members():
    states = node("a"), node("b"), node("c")
    hosts = {"a": 2, "b": 1}
    group = GroupSpec(uuid="g", policy="soft-affinity", hosts=hosts)
    assert weights(ServerGroupSoftAffinityWeigher(), *states, group=group) == {"a": 1.0, "b": 0.5, "c": 0.0}
    group = GroupSpec(uuid="g", policy="soft-anti-affinity", hosts=hosts)
    assert weights(ServerGroupSoftAntiAffinityWeigher(), *states, group=group) == {"a": 0.0, "b": 0.5, "c": 1.0}
    group = GroupSpec(uuid="g", policy="affinity", hosts=hosts)
    for each in (ServerGroupSoftAffinityWeigher(), ServerGroupSoftAntiAffinityWeigher()):
        assert not each.applies(request(spec(group=group)))


def test_metrics_weigher_multiplies_metrics_by_ratio(settings):
    settings("metrics", weight_setting=["load=-1.0", "speed=2"])
    states = [node("a", metrics={"load": 1.0, "speed": 3.0}), node("b", metrics={"load": 4.0, "speed": 3.0})]
    assert scores(MetricsWeigher(), states) == {"a": 5.0, "b": 2.0}
    assert weights(MetricsWeigher(), *states) == {"a": 1.0, "b": 0.0}


def test_metrics_weigher_prefers_hosts_with_idle_cpus(settings):
    """The monitor cpu.virt_driver measures the load."""
    settings("metrics", weight_setting=["cpu.percent=-1.0"])
    states = [node("busy", metrics={"cpu.percent": 90, "cpu.user.time": 10**15}),
              node("idle", metrics={"cpu.percent": 3, "cpu.user.time": 2 * 10**15})]
    assert scores(MetricsWeigher(), states) == {"busy": -90.0, "idle": -3.0}
    assert choose(fleet(*states), spec(alternates=0)) == [["idle"]]


def test_missing_metrics_are_refused_or_weighed_low(settings):
    settings("metrics", weight_setting=["load=1"])
    states = [node("a", metrics={"load": 1.0}), node("b")]
    with pytest.raises(exception.NoValidHost) as caught:
        scores(MetricsWeigher(), states)
    assert "weight_setting" in caught.value.inside
    settings("metrics", required=False)
    assert scores(MetricsWeigher(), states) == {"a": 1.0, "b": -10000.0}


def test_equal_scores_have_zero_weight():
    assert weights(HypervisorVersionWeigher(), node("a", hypervisor_version=5), node("b", hypervisor_version=5)) == {
        "a": 0.0, "b": 0.0}


def test_aggregate_multiplier_override_uses_the_smallest():
    both = [{"ram_weight_multiplier": "3"}, {"ram_weight_multiplier": "2"}, {"ram_weight_multiplier": "lots"}]
    assert weights(RAMWeigher(), node("a", ram=8192), node("b", ram=8192, aggregates=both),
                   node("c", ram=4096)) == {"b": 2.0, "a": 1.0, "c": 0.5}


def test_aggregate_build_failure_multiplier_lowers_the_weight():
    assert weights(BuildFailureWeigher(), node("b"), node(
        "a", failed_builds=1, aggregates=[{"build_failure_weight_multiplier": "5"}])) == {"a": -5.0, "b": 0.0}


class ShortName(HostWeigher):
    def weigh(self, host, request):
        return float("nan") if host.node == "broken" else -len(host.node)


def test_host_weigher_is_converted_to_a_column():
    assert weights(ShortName(), node("aaa"), node("bb"), node("c")) == {"c": 1.0, "bb": 0.5, "aaa": 0.0}


def test_nan_score_counts_as_zero():
    assert weights(ShortName(), node("aaa"), node("broken"), node("b")) == {"broken": 1.0, "b": 2 / 3, "aaa": 0.0}


@pytest.mark.parametrize(("setting", "expected"), [
    ([], {"a": 3, "b": 4, "c": 0}), (["os_distro=2.5", "other=9", "wrong"], {"a": 5, "b": 0, "c": 0})])
def test_image_properties_weigher_counts_similar_images(settings, setting, expected):
    settings("filter_scheduler", image_props_weight_setting=setting)
    asked = spec(image_hosts={"os_distro": {"a": 2}, "hw_machine_type": {"a": 1, "b": 4}})
    states = [node(name) for name in "abc"]
    assert scores(ImagePropertiesWeigher(), states, asked) == expected
    assert not ImagePropertiesWeigher().applies(request(spec()))
