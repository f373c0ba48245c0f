"""[DEFAULT] and [compute]: what nova-compute reads."""

from oslo_config import cfg

OPTIONS = {
    None: [
        cfg.StrOpt("compute_driver", default="libvirt", help="A name of the entry points nova.virt.drivers."),
        cfg.IntOpt("max_concurrent_builds", default=10, min=0, help="Builds at the same time; 0: unlimited."),
        cfg.IntOpt("max_concurrent_snapshots", default=5, min=0,
                   help="Snapshots, backups and shelvings at the same time; 0: unlimited."),
        cfg.IntOpt("reserved_host_cpus", default=0, min=0, help="CPUs that guests do not get."),
        cfg.IntOpt("reserved_host_memory_mb", default=512, min=0, help="Memory in MiB that guests do not get."),
        cfg.MultiStrOpt("reserved_huge_pages", default=[],
                        help="Huge pages that guests do not get, of a NUMA cell and a size in KiB: "
                             "node:0,size:2048,count:64."),
        cfg.IntOpt("reserved_host_disk_mb", default=0, min=0, help="Disk in MiB that guests do not get."),
        cfg.FloatOpt("cpu_allocation_ratio", min=0.0, help="Virtual CPUs per CPU; unset: initial_..."),
        cfg.FloatOpt("ram_allocation_ratio", min=0.0, help="Memory over-commit; unset: initial_..."),
        cfg.FloatOpt("disk_allocation_ratio", min=0.0, help="Disk over-commit; unset: initial_..."),
        cfg.FloatOpt("initial_cpu_allocation_ratio", default=4.0, min=0.0, help="The ratio of a new host."),
        cfg.FloatOpt("initial_ram_allocation_ratio", default=1.0, min=0.0, help="The ratio of a new host."),
        cfg.FloatOpt("initial_disk_allocation_ratio", default=1.0, min=0.0, help="The ratio of a new host."),
        cfg.IntOpt("update_resources_interval", default=60, min=1, help="Seconds between two inventories."),
        cfg.ListOpt("compute_monitors", default=[],
                    help="What the host measures of itself, like cpu.virt_driver: names of the entry points "
                         "nova.compute.monitors.KIND, as KIND.NAME; without KIND: cpu. The values are told with each "
                         "inventory, to schedulers and as metrics.update. Empty: nothing is measured."),
        cfg.IntOpt("sync_power_state_interval", default=600, help="Seconds between two full comparisons of rows and "
                                                                  "guests; below 0: never."),
        cfg.IntOpt("volume_usage_poll_interval", default=0, min=0,
                   help="Seconds between two reports of what guests have read from volumes and written to them, which "
                        "are told as volume.usage; 0: none."),
        cfg.IntOpt("shutdown_timeout", default=60, min=0, help=(
            "Seconds that a guest gets to shut down by itself when it is stopped, rescued, rebuilt, resized, shelved "
            "or soft-deleted; then it is cut off. The image property os_shutdown_timeout takes precedence. "
            "Read by nova-compute.")),
        cfg.BoolOpt("resume_guests_state_on_host_boot", default=False,
                    help="After a boot of the host start the guests that ran before, unless their servers were "
                         "stopped, moved or deleted since; so many at a time as [compute]resume_guests_at_once."),
        cfg.BoolOpt("force_config_drive", default=False, help="Give every server a config drive."),
        cfg.StrOpt("mkisofs_cmd", default="genisoimage", help="The command that makes config drives."),
        cfg.StrOpt("default_ephemeral_format", default="ext4", help="File system of ephemeral disks."),
        cfg.BoolOpt("enable_new_services", default=True, help="Whether new computes take servers at once."),
        cfg.BoolOpt("force_raw_images", default=False, help="Convert cached images to raw."),
    ],
    "compute": [
        cfg.StrOpt("cpu_shared_set", help="The host's CPUs on which guests without CPUs of their own run, like 0-3,^2; "
                                          "unset: all, or none with a cpu_dedicated_set."),
        cfg.StrOpt("cpu_dedicated_set", help="The host's CPUs that are given to single guests (hw:cpu_policy); unset: "
                                             "none."),
        cfg.BoolOpt("packing_host_numa_cells_allocation_strategy", default=False,
                    help="Fill one NUMA cell of a host after the other rather than the emptiest first. Read by "
                         "nova-scheduler and nova-conductor."),
        cfg.IntOpt("max_disk_devices_to_attach", default=-1, min=-1,
                   help="How many disks a server may have, volumes included; -1 is unlimited."),
        cfg.IntOpt("kernel_size_limit_mb", default=512, min=1,
                   help="MiB that the kernel and the ramdisk of a server (kernel_id, ramdisk_id of its image) may have "
                        "each. Read by nova-api and nova-compute."),
        cfg.IntOpt("rescue_disk_limit_gb", default=20, min=1,
                   help="GiB that the disk may have from which a server that boots from a volume is rescued: nothing "
                        "of the host's disk is claimed for it. Others are rescued from one that would fit their root "
                        "disk."),
        cfg.IntOpt("threads", default=32, min=1,
                   help="Operations of a kind (power actions, moves, deletes) that run on this host at the same time; "
                        "for builds see max_concurrent_builds."),
        cfg.IntOpt("resume_guests_at_once", default=10, min=1,
                   help="Guests that are started at the same time after a boot of the host."),
        cfg.StrOpt("unknown_guests", default="keep", choices=["keep", "stop", "destroy"],
                   help="What becomes of guests that the database does not know. A wrong or restored database looks "
                        "like this, so they are only reported unless you say otherwise."),
        cfg.IntOpt("unknown_guests_age", default=3600, min=0,
                   help="Seconds for which a guest must have been unknown before it is stopped or destroyed."),
        cfg.IntOpt("unknown_guests_max", default=5, min=1,
                   help="With more unknown guests than this none of them is stopped or destroyed."),
    ],
    "image_cache": [
        cfg.IntOpt("size_limit_mb", min=0,
                   help="MiB that cached images may take. So much of the host's DISK_GB is reserved for them, or what "
                        "they take, if that is more. For a new image those that no guest stands on go, longest unused "
                        "first; where that is not enough the server goes to another host. Unset: a tenth of the file "
                        "system. 0: no limit, and what they take is reserved."),
        cfg.IntOpt("precache_concurrency", default=1, min=1,
                   help="Hosts of an aggregate that fetch images at the same time when an operator asks for them. Read "
                        "by nova-conductor."),
        cfg.IntOpt("manager_interval", default=2400, help="Seconds between two cleanings; below 0: never."),
        cfg.StrOpt("subdirectory_name", default="_base", help="The cache below instances_path."),
        cfg.BoolOpt("remove_unused_base_images", default=True, help="Whether cleaning removes unused images."),
        cfg.IntOpt("remove_unused_original_minimum_age_seconds", default=86400, min=0,
                   help="How long an image must have been unused before it is removed."),
    ],
}
