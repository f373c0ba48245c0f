"""Options of the scheduler, read once, so that planning depends on its arguments only."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Iterable, Mapping
from typing import Any

LOG = logging.getLogger(__name__)

_MULTIPLIER = "_weight_multiplier"


@dataclasses.dataclass(frozen=True)
class SchedulerOptions:
    """Options by their names (in [filter_scheduler] unless another section is given)."""

    # [scheduler]
    limit_tenants_to_placement_aggregate: bool
    placement_aggregate_required_for_tenants: bool
    enable_isolated_aggregate_filtering: bool
    query_placement_for_image_type_support: bool
    image_metadata_prefilter: bool
    host_subset_size: int
    # [compute]packing_host_numa_cells_allocation_strategy
    packing_cells: bool
    shuffle_best_same_weighed_hosts: bool
    # Option -> maximum per host.
    limits: Mapping[str, int]
    isolated_images: frozenset[str]
    isolated_hosts: frozenset[str]
    restrict_isolated_hosts_to_isolated_images: bool
    image_properties_default_architecture: str
    isolation_prefix: str  # prefix of metadata keys for AggregateImagePropertiesIsolation
    multipliers: Mapping[str, float]  # option -> value, including options of third-party weighers
    image_ratios: Mapping[str, float]  # image property -> ratio; empty: equal weights
    # [metrics]: metric -> ratio, and other options.
    metric_ratios: Mapping[str, float]
    metrics_multiplier: float
    metrics_required: bool
    weight_of_unavailable: float

    @classmethod
    def from_conf(cls, conf: Any) -> SchedulerOptions:
        scheduler, filters, measured = conf.scheduler, conf.filter_scheduler, conf.metrics
        namespace = filters.aggregate_image_properties_isolation_namespace
        return cls(
            **{name: getattr(scheduler, name) for name in (
                "limit_tenants_to_placement_aggregate", "placement_aggregate_required_for_tenants",
                "enable_isolated_aggregate_filtering", "query_placement_for_image_type_support",
                "image_metadata_prefilter")},
            **{name: getattr(filters, name) for name in (
                "host_subset_size", "shuffle_best_same_weighed_hosts", "restrict_isolated_hosts_to_isolated_images")},
            packing_cells=conf.compute.packing_host_numa_cells_allocation_strategy,
            limits={name: filters[name] for name in ("max_io_ops_per_host", "max_instances_per_host")},
            isolated_images=frozenset(filters.isolated_images), isolated_hosts=frozenset(filters.isolated_hosts),
            image_properties_default_architecture=filters.image_properties_default_architecture or "",
            isolation_prefix=namespace + filters.aggregate_image_properties_isolation_separator if namespace else "",
            multipliers={name: float(filters[name]) for name in filters if name.endswith(_MULTIPLIER)},
            image_ratios=_ratios(filters.image_props_weight_setting, "[filter_scheduler]image_props_weight_setting"),
            metric_ratios=_ratios(measured.weight_setting, "[metrics]weight_setting"),
            metrics_multiplier=measured.weight_multiplier, metrics_required=measured.required,
            weight_of_unavailable=measured.weight_of_unavailable)


def _ratios(weight_setting: Iterable[str], option: str) -> dict[str, float]:
    """Return name -> ratio of metrics or properties. Invalid items are skipped with a warning."""
    ratios: dict[str, float] = {}
    for setting in weight_setting:
        name, _, ratio = setting.partition("=")
        try:
            ratios[name.strip()] = float(ratio)
        except ValueError:
            LOG.warning("Option %s: ignoring %s, which is not name=ratio", option, setting)
    return ratios
