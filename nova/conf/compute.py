"""Options of compute hosts: resources, intervals and limits ([DEFAULT], [compute], [image_cache], [pci]), and the fake
hypervisor driver for tests ([fake])."""

from oslo_config import cfg

# Prefix of the options, resource, and default of a host without a ratio of its own.
_RATIOS = (("cpu", "Virtual-to-physical CPU", 4.0), ("ram", "Memory", 1.0), ("disk", "Disk", 1.0))

OPTIONS = {
    None: [
        cfg.StrOpt("compute_driver", default="libvirt", help="Hypervisor driver: a name of the entry points "
                   "nova.virt.drivers (libvirt, uml, vmware, ironic or fake). Read by nova-compute. Set fake for tests "
                   "without guests."),
        cfg.IntOpt("max_concurrent_builds", default=10, min=0,
                   help="Maximum number of servers that this host builds at the same time. 0: no limit. Read by "
                        "nova-compute. Lower it where many builds overload the disks."),
        cfg.IntOpt("max_concurrent_snapshots", default=5, min=0, help="Maximum number of snapshots, backups and shelve "
                   "operations that this host runs at the same time. 0: no limit. Read by nova-compute."),
        cfg.IntOpt("reserved_host_cpus", default=0, min=0, help="Number of host CPUs reserved for the host itself and "
                   "not offered to instances. Read by nova-compute."),
        cfg.IntOpt("reserved_host_memory_mb", default=512, min=0, help="Memory in MiB reserved for the host itself and "
                   "not offered to instances. Read by nova-compute. Raise it on hosts that run other services, too."),
        cfg.MultiStrOpt("reserved_huge_pages", default=[], help="Huge pages not offered to instances, by NUMA cell and "
                        "page size in KiB: node:0,size:2048,count:64. Repeat the option for several cells or sizes. "
                        "Empty: all huge pages are offered. Read by nova-compute."),
        cfg.IntOpt("reserved_host_disk_mb", default=0, min=0, help="Disk space in MiB reserved for the host itself and "
                   "not offered to instances. Read by nova-compute."),
        *(cfg.FloatOpt(f"{name}_allocation_ratio", min=0.0,
                       help=f"{resource} overcommit ratio of this host. Unset: initial_{name}_allocation_ratio "
                            "applies. Read by nova-compute.") for name, resource, _default in _RATIOS),
        *(cfg.FloatOpt(f"initial_{name}_allocation_ratio", default=default, min=0.0,
                       help=f"{resource} overcommit ratio of a host on which {name}_allocation_ratio is unset. Read "
                            "by nova-compute.") for name, resource, default in _RATIOS),
        cfg.IntOpt("update_resources_interval", default=60, min=1,
                   help="Seconds between two inventory reports of a host. Read by nova-compute."),
        cfg.ListOpt("compute_monitors", default=[], help="Monitors that measure this host, as KIND.NAME "
                    "(cpu.virt_driver) of the entry points nova.compute.monitors.KIND; a name without KIND means cpu. "
                    "The values are sent with each inventory report, for the MetricsWeigher and as the notification "
                    "metrics.update. Empty: nothing is measured. Read by nova-compute."),
        cfg.IntOpt("sync_power_state_interval", default=600, help="Seconds between two comparisons of all guests of a "
                   "host with the database. A negative value disables them. Read by nova-compute."),
        cfg.IntOpt("volume_usage_poll_interval", default=0, min=0, help="Seconds between two reports of the bytes that "
                   "guests read from and wrote to volumes, sent as the notification volume.usage. 0: no reports. Read "
                   "by nova-compute. Set it for billing by notifications."),
        cfg.IntOpt("shutdown_timeout", default=60, min=0, help="Seconds that a guest gets to shut down by itself when "
                   "it is stopped, rescued, rebuilt, resized, shelved or soft-deleted; then it is powered off. The "
                   "image property os_shutdown_timeout overrides it. Read by nova-compute."),
        cfg.BoolOpt("resume_guests_state_on_host_boot", default=False,
                    help="After a reboot of the host, start the guests that ran before, unless their servers were "
                         "stopped, moved or deleted since. [compute]resume_guests_at_once limits how many start at "
                         "the same time. By default guests stay powered off. Read by nova-compute."),
        cfg.BoolOpt("force_config_drive", default=False, help="Give every new server a config drive, even if the "
                    "request contains no config_drive. Read by nova-conductor. Set it where guests cannot reach the "
                    "metadata service."),
        cfg.StrOpt("mkisofs_cmd", default="genisoimage",
                   help="Command that creates the ISO 9660 image of a config drive. Read by nova-compute."),
        cfg.StrOpt("default_ephemeral_format", default="ext4",
                   help="File system of ephemeral disks for which the request names none. Read by nova-compute."),
        cfg.BoolOpt("enable_new_services", default=True,
                    help="Enable a new nova-compute service for scheduling as soon as it registers. Read by "
                         "nova-conductor. Disable it to test new hosts before they receive servers."),
        cfg.BoolOpt("force_raw_images", default=False,
                    help="Convert images to raw when they enter the image cache. By default raw images stay raw, and "
                         "others become qcow2. Raw base images take more disk space and are faster. Read by "
                         "nova-compute."),
    ],
    "compute": [
        cfg.StrOpt("cpu_shared_set",
                   help="Host CPUs for guests without dedicated CPUs, as a list of ranges and exclusions (0-3,^2). "
                        "Unset: all host CPUs, or none if cpu_dedicated_set is set. Read by nova-compute."),
        cfg.StrOpt("cpu_dedicated_set", help="Host CPUs for guests with dedicated CPUs (flavor extra spec "
                   "hw:cpu_policy=dedicated), as a list of ranges and exclusions. Unset: none. Read by nova-compute."),
        cfg.BoolOpt("packing_host_numa_cells_allocation_strategy", default=False, help="Fill the NUMA cells of a host "
                    "one after the other. By default the cell with the most free resources is used first. Read by "
                    "nova-scheduler and nova-conductor; both need the same value."),
        cfg.IntOpt("max_disk_devices_to_attach", default=-1, min=-1, help="Maximum number of disks of a server, "
                   "including volumes. -1: no limit. Read by nova-conductor."),
        cfg.IntOpt("kernel_size_limit_mb", default=512, min=1,
                   help="Maximum size in MiB of the kernel image and of the ramdisk image of a server (image "
                        "properties kernel_id and ramdisk_id). Read by nova-api and nova-compute."),
        cfg.IntOpt("rescue_disk_limit_gb", default=20, min=1, help="Maximum virtual size in GiB of the rescue image of "
                   "a volume-backed server, since no disk space of the host is claimed for it. For other servers the "
                   "limit is the size of their root disk. Read by nova-compute."),
        cfg.IntOpt("threads", default=32, min=1,
                   help="Maximum number of operations of one kind (power actions, moves, deletions) that run on this "
                        "host at the same time. See max_concurrent_builds for builds. Read by nova-compute."),
        cfg.IntOpt("resume_guests_at_once", default=10, min=1, help="Number of guests that start at the same time "
                   "after a reboot of the host. See resume_guests_state_on_host_boot. Read by nova-compute."),
        cfg.StrOpt("unknown_guests", default="keep", choices=["keep", "stop", "destroy"],
                   help="Action on guests of this host that have no server in the database: keep (report them only), "
                        "stop or destroy. Read by nova-compute. Keep the default unless you are sure of the database: "
                        "with a wrong or restored database, guests in use also lack a server."),
        cfg.IntOpt("unknown_guests_age", default=3600, min=0, help="Seconds for which a guest must have been without a "
                   "server before unknown_guests stops or destroys it. Read by nova-compute."),
        cfg.IntOpt("unknown_guests_max", default=5, min=1,
                   help="Maximum number of guests without a server that unknown_guests stops or destroys. If the host "
                        "has more such guests, none of them is stopped or destroyed. Read by nova-compute."),
    ],
    "image_cache": [
        cfg.IntOpt("size_limit_mb", min=0, help="Disk space in MiB for cached images. This space, or the space that "
                   "they use if it is more, is reserved in the DISK_GB inventory of the host. To make room for a new "
                   "image, unused images are removed, the least recently used first; without enough room the server is "
                   "built on another host. Unset: a tenth of the file system. 0: no limit, and only the used space is "
                   "reserved. Read by nova-compute."),
        cfg.IntOpt("precache_concurrency", default=1, min=1, help="Number of hosts of an aggregate that download "
                   "images at the same time after a request to cache them. Read by nova-conductor."),
        cfg.IntOpt("manager_interval", default=2400, help="Seconds between two cleanups of the image cache. A negative "
                   "value disables them. Read by nova-compute."),
        cfg.StrOpt("subdirectory_name", default="_base",
                   help="Name of the image cache directory below instances_path. Read by nova-compute."),
        cfg.BoolOpt("remove_unused_base_images", default=True,
                    help="Remove unused images from the image cache during a cleanup. Read by nova-compute."),
        cfg.IntOpt("remove_unused_original_minimum_age_seconds", default=86400, min=0, help="Seconds for which a "
                   "cached image must have been unused before a cleanup removes it from the host. Read by "
                   "nova-compute."),
    ],
    "pci": [
        cfg.MultiStrOpt("alias", default=[],
                        help="Alias of PCI devices for the flavor extra spec pci_passthrough:alias, as a JSON object: "
                             "name, and vendor_id, product_id, device_type (type-PCI, type-PF, type-VF), numa_policy "
                             "(legacy, preferred, required, socket), resource_class, traits. Several aliases with one "
                             "name are alternatives. Empty: flavors cannot request devices. Read by nova-conductor."),
        cfg.MultiStrOpt("device_spec", default=[], help="PCI devices of this host that guests may use, as a JSON "
                        "object or a list of them: vendor_id, product_id, address (a glob, or an object of regular "
                        "expressions for domain, bus, slot, function) or devname, and the properties physical_network, "
                        "trusted, remote_managed, managed, live_migratable, one_time_use, resource_class, traits. The "
                        "first entry that matches a device applies. Empty: no devices. Read by nova-compute."),
    ],
    "fake": [
        cfg.IntOpt("nodes", default=1, min=1, help="Number of virtual nodes of the host. Read by nova-compute."),
        cfg.StrOpt("directory",
                   help="Directory in which the state of fake guests is stored, so that guests survive a restart of "
                        "nova-compute, as real guests do. Unset: guests exist in memory only. Read by nova-compute."),
        cfg.BoolOpt("shared_storage", default=False,
                    help="Let all virtual hosts share their disks, as on a shared file system. Read by nova-compute."),
        cfg.StrOpt("scenario", help="YAML file that describes virtual hosts; one nova-compute simulates all of them in "
                   "place of its own host. nova/virt/fake/scenario.py explains the format. Unset: one host. Read by "
                   "nova-compute. Set it to test with thousands of hosts."),
        cfg.IntOpt("vcpus", default=64, min=1, help="Number of CPUs of each virtual node. Read by nova-compute."),
        cfg.IntOpt("memory_mb", default=512 * 1024, min=1,
                   help="Memory of each virtual node in MiB. Read by nova-compute."),
        cfg.IntOpt("disk_gb", default=10 * 1024, min=1,
                   help="Disk space of each virtual node in GiB. Read by nova-compute."),
        cfg.DictOpt("latency", default={},
                    help="Seconds that a call of the driver takes, by the name of the call, as in "
                         "spawn:0.5,destroy:0.1; * stands for all other calls. Empty: calls return immediately. Read "
                         "by nova-compute."),
        cfg.DictOpt("failure", default={}, help="Fraction of the calls of the driver that fail, by the name of the "
                    "call, as in spawn:0.1; * stands for all other calls. Empty: no call fails. Read by nova-compute."),
    ],
}
