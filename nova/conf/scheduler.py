"""Options of host selection ([scheduler], [filter_scheduler], [metrics]), read by nova-scheduler."""

from oslo_config import cfg

# Option: (default, what the weigher prefers with a positive multiplier, further services that read the option).
_MULTIPLIERS = {
    "ram_weight_multiplier": (1.0, "hosts with much free memory", ""),
    "cpu_weight_multiplier": (1.0, "hosts with many free virtual CPUs", ""),
    "disk_weight_multiplier": (1.0, "hosts with much free disk space", ""),
    "io_ops_weight_multiplier": (-1.0, "hosts with many running builds, resizes, snapshots and other disk-heavy "
                                       "operations", ""),
    "num_instances_weight_multiplier": (0.0, "hosts with many servers", ""),
    "soft_affinity_weight_multiplier": (1.0, "hosts with many members of the server's soft-affinity group", ""),
    "soft_anti_affinity_weight_multiplier": (1.0, "hosts with few members of the server's soft-anti-affinity group",
                                             ""),
    "build_failure_weight_multiplier": (1000000.0, "hosts with few failed builds since the last successful one", ""),
    "pci_weight_multiplier": (1.0, "hosts with few free PCI devices, so that hosts with many stay available to "
                                   "servers that request devices", ""),
    "image_props_weight_multiplier": (0.0, "hosts with many servers whose images have the same properties",
                                      " and nova-conductor, which counts them for each request unless the value is 0"),
    "hypervisor_version_weight_multiplier": (1.0, "hosts with a newer hypervisor", ""),
}

OPTIONS = {
    "scheduler": [
        cfg.IntOpt("workers", min=1, help="Number of worker processes of nova-scheduler. Unset: one per CPU, at most "
                   "8. Read by nova-scheduler."),
        cfg.IntOpt("refresh_interval", default=60, min=1,
                   help="Seconds between two reads of all hosts, which correct errors from lost messages. The interval "
                        "grows if a read takes longer than a twentieth of it. Read by nova-scheduler."),
        cfg.IntOpt("pending_timeout", default=30, min=1, help="Seconds from the selection of a host until the "
                   "selected resources count as free again, unless they are claimed. Read by nova-scheduler."),
        cfg.BoolOpt("limit_tenants_to_placement_aggregate", default=False, help="Place a project's servers only on "
                    "hosts of aggregates with its id in filter_tenant_id* metadata, if any. Read by nova-scheduler."),
        cfg.BoolOpt("placement_aggregate_required_for_tenants", default=False,
                    help="If limit_tenants_to_placement_aggregate is set, select no host for projects that no "
                         "aggregate names. By default these projects may use all hosts. Read by nova-scheduler."),
        cfg.BoolOpt("enable_isolated_aggregate_filtering", default=False, help="Reserve the hosts of aggregates with "
                    "metadata trait:X=required for servers that require the trait X. Read by nova-scheduler."),
        cfg.BoolOpt("query_placement_for_image_type_support", default=False,
                    help="Require the trait COMPUTE_IMAGE_TYPE_* for the disk format of the image. Read by "
                         "nova-scheduler. Set it where hosts support different image formats."),
        cfg.BoolOpt("image_metadata_prefilter", default=False, help="Require the traits for the buses, device models "
                    "and architecture in the image properties. Read by nova-scheduler."),
    ],
    "filter_scheduler": [
        cfg.ListOpt("enabled_filters",
                    default=["ComputeFilter", "ComputeCapabilitiesFilter", "ImagePropertiesFilter",
                             "ServerGroupAntiAffinityFilter", "ServerGroupAffinityFilter"],
                    help="Filters in the order in which they run: names of the entry points nova.scheduler.filters. "
                         "Free resources, traits and availability zones are always checked. Read by nova-scheduler."),
        cfg.ListOpt("weight_classes", default=["nova.scheduler.weights.all_weighers"],
                    help="Weighers: names of the entry points nova.scheduler.weighers; of a dotted name only the last "
                         "part counts. The default means all weighers. Read by nova-scheduler."),
        cfg.IntOpt("host_subset_size", default=1, min=1, help="Number of best hosts from which one is selected at "
                   "random. Read by nova-scheduler. Raise it where several schedulers often select the same host."),
        cfg.BoolOpt("shuffle_best_same_weighed_hosts", default=False,
                    help="Select at random among the hosts with the same, highest weight. Read by nova-scheduler."),
        cfg.IntOpt("max_io_ops_per_host", default=8, min=0, help="IoOpsFilter: maximum number of disk-heavy operations "
                   "that run on a host at the same time. Read by nova-scheduler."),
        cfg.IntOpt("max_instances_per_host", default=50, min=1,
                   help="NumInstancesFilter: maximum number of servers on a host. Read by nova-scheduler."),
        cfg.ListOpt("isolated_images", default=[], help="IsolatedHostsFilter: ids of images whose servers run on "
                    "isolated_hosts only. Read by nova-scheduler."),
        cfg.ListOpt("isolated_hosts", default=[],
                    help="IsolatedHostsFilter: names of the hosts for isolated_images. Read by nova-scheduler."),
        cfg.BoolOpt("restrict_isolated_hosts_to_isolated_images", default=True, help="IsolatedHostsFilter: keep "
                    "servers of other images off isolated_hosts. Read by nova-scheduler."),
        cfg.ListOpt("image_props_weight_setting", default=[],
                    help="ImagePropertiesWeigher: image properties that count, as PROPERTY=RATIO. Empty: all "
                         "properties with ratio 1. Read by nova-scheduler and nova-conductor."),
        cfg.StrOpt("image_properties_default_architecture", help="ImagePropertiesFilter: architecture of images that "
                   "name none. Unset: any. Read by nova-scheduler."),
        cfg.StrOpt("aggregate_image_properties_isolation_namespace",
                   help="AggregateImagePropertiesIsolation: prefix of the metadata keys of aggregates that are "
                        "compared with image properties. Unset: all keys. Read by nova-scheduler."),
        cfg.StrOpt("aggregate_image_properties_isolation_separator", default=".",
                   help="AggregateImagePropertiesIsolation: separator between the prefix and the name of the property. "
                        "Read by nova-scheduler."),
        *(cfg.FloatOpt(name, default=default,
                       help=f"Multiplier of the weigher that prefers {preferred}. A negative value prefers the "
                            "opposite, 0 disables the weigher; aggregate metadata with the name of the option "
                            f"overrides it for hosts of the aggregate. Read by nova-scheduler{readers}.")
          for name, (default, preferred, readers) in _MULTIPLIERS.items()),
    ],
    "metrics": [
        cfg.FloatOpt("weight_multiplier", default=1.0, help="Multiplier of the MetricsWeigher. The aggregate metadata "
                     "metrics_weight_multiplier overrides it for hosts of the aggregate. Read by nova-scheduler."),
        cfg.ListOpt("weight_setting", default=[],
                    help="MetricsWeigher: metrics and their ratios, as METRIC=RATIO; the weight of a host is the sum "
                         "of value times ratio. Empty: metrics do not count. Read by nova-scheduler."),
        cfg.BoolOpt("required", default=True,
                    help="Require all metrics of weight_setting of every host: the MetricsFilter removes hosts that do "
                         "not report them. If false, such hosts get weight_of_unavailable. Read by nova-scheduler."),
        cfg.FloatOpt("weight_of_unavailable", default=-10000.0, help="MetricsWeigher: weight of a host that does not "
                     "report all metrics of weight_setting, if they are not required. Read by nova-scheduler."),
    ],
}
