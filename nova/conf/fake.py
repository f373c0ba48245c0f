"""Options of the fake hypervisor driver ([fake]), which is for tests."""

from oslo_config import cfg

OPTIONS = {
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
                    help="Seconds that a call of the driver takes, by its name, such as spawn:0.5,destroy:0.1; * "
                         "stands for all other calls. Empty: calls return immediately. Read by nova-compute."),
        cfg.DictOpt("failure", default={}, help="Fraction of the calls of the driver that fail, by its name, such as "
                    "spawn:0.1; * stands for all other calls. Empty: no call fails. Read by nova-compute."),
    ],
}
