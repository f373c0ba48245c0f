"""[scheduler], [filter_scheduler] and [metrics]: how hosts are chosen."""

from oslo_config import cfg

_MULTIPLIERS = {
    "ram_weight_multiplier": (1.0, "free memory"),
    "cpu_weight_multiplier": (1.0, "free virtual CPUs"),
    "disk_weight_multiplier": (1.0, "free disk"),
    "io_ops_weight_multiplier": (-1.0, "heavy operations under way on the host"),
    "num_instances_weight_multiplier": (0.0, "servers on the host"),
    "soft_affinity_weight_multiplier": (1.0, "members of the server group on the host, for soft-affinity"),
    "soft_anti_affinity_weight_multiplier": (1.0, "members of the server group on the host, for soft-anti-affinity"),
    "build_failure_weight_multiplier": (1000000.0, "builds that failed on the host since the last good one (always "
                                                   "against the host)"),
    "pci_weight_multiplier": (1.0, "few free PCI devices: hosts with many are left to servers that want some"),
    "image_props_weight_multiplier": (0.0, "servers on the host whose images have the same properties (read by "
                                           "nova-conductor, too, which counts them for each request if it is not 0)"),
    "hypervisor_version_weight_multiplier": (1.0, "the version of the hypervisor"),
}

OPTIONS = {
    "scheduler": [
        cfg.IntOpt("workers", min=1, help="Worker processes; unset: one per CPU, at most 8."),
        cfg.IntOpt("refresh_interval", default=60, min=1,
                   help="Seconds between two readings of the whole fleet. They only put right what lost messages left "
                        "wrong, and are put off where one takes longer than a twentieth of this."),
        cfg.IntOpt("pending_timeout", default=30, min=1,
                   help="Seconds after which a chosen host counts as free again if no claim followed."),
        cfg.BoolOpt("limit_tenants_to_placement_aggregate", default=False,
                    help="Projects named by filter_tenant_id* metadata of aggregates only get hosts of these."),
        cfg.BoolOpt("placement_aggregate_required_for_tenants", default=False,
                    help="With limit_tenants_to_placement_aggregate: a project that no aggregate names gets no host."),
        cfg.BoolOpt("enable_isolated_aggregate_filtering", default=False,
                    help="Hosts of aggregates with trait:X=required metadata only take servers that require X."),
        cfg.BoolOpt("query_placement_for_image_type_support", default=False,
                    help="Require the trait COMPUTE_IMAGE_TYPE_* of the image's disk format."),
        cfg.BoolOpt("image_metadata_prefilter", default=False,
                    help="Require the traits that the image's buses, models and architecture stand for."),
    ],
    "filter_scheduler": [
        cfg.ListOpt("enabled_filters",
                    default=["ComputeFilter", "ComputeCapabilitiesFilter", "ImagePropertiesFilter",
                             "ServerGroupAntiAffinityFilter", "ServerGroupAffinityFilter"],
                    help="Names of the entry points nova.scheduler.filters, in the order in which they are asked. "
                         "Room, traits and availability zone are always checked."),
        cfg.ListOpt("weight_classes", default=["nova.scheduler.weights.all_weighers"],
                    help="Names of the entry points nova.scheduler.weighers; the default stands for all of them. Of a "
                         "dotted name only the last part counts."),
        cfg.IntOpt("host_subset_size", default=1, min=1,
                   help="A random one of this many best hosts is taken: spreads the choices of several schedulers."),
        cfg.BoolOpt("shuffle_best_same_weighed_hosts", default=False,
                    help="Take a random one of the hosts that are equally the best."),
        cfg.IntOpt("max_io_ops_per_host", default=8, min=0, help="IoOpsFilter: heavy operations at the same time."),
        cfg.IntOpt("max_instances_per_host", default=50, min=1, help="NumInstancesFilter: servers per host."),
        cfg.ListOpt("isolated_images", default=[], help="IsolatedHostsFilter: images for isolated hosts."),
        cfg.ListOpt("isolated_hosts", default=[], help="IsolatedHostsFilter: hosts for isolated images."),
        cfg.BoolOpt("restrict_isolated_hosts_to_isolated_images", default=True,
                    help="IsolatedHostsFilter: isolated hosts take no other images."),
        cfg.ListOpt("image_props_weight_setting", default=[],
                    help="ImagePropertiesWeigher: property=ratio pairs, the only ones that count; empty: all, each "
                         "with 1. Read by nova-scheduler and nova-conductor."),
        cfg.StrOpt("image_properties_default_architecture",
                   help="ImagePropertiesFilter: the architecture of images that name none; unset: any."),
        cfg.StrOpt("aggregate_image_properties_isolation_namespace",
                   help="AggregateImagePropertiesIsolation: only metadata keys with this prefix count."),
        cfg.StrOpt("aggregate_image_properties_isolation_separator", default=".",
                   help="AggregateImagePropertiesIsolation: between the prefix and the property."),
        *(cfg.FloatOpt(name, default=default, help=f"The weight of {what}; may be overridden by metadata of the host's "
                                                   "aggregates with this name. Negative prefers few.")
          for name, (default, what) in _MULTIPLIERS.items()),
    ],
    "metrics": [
        cfg.FloatOpt("weight_multiplier", default=1.0, help="The weight of metrics; aggregate metadata: "
                                                            "metrics_weight_multiplier."),
        cfg.ListOpt("weight_setting", default=[], help="metric=ratio pairs: the weight of a host is the sum of "
                                                       "metric * ratio."),
        cfg.BoolOpt("required", default=True, help="Whether every host must report all metrics of weight_setting; the "
                                                   "MetricsFilter leaves out hosts that do not."),
        cfg.FloatOpt("weight_of_unavailable", default=-10000.0,
                     help="The weight of a host that does not report them all, where they are not required."),
    ],
}
