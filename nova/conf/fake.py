"""[fake]: the fake hypervisor."""

from oslo_config import cfg

OPTIONS = {
    "fake": [
        cfg.IntOpt("nodes", default=1, min=1, help="Virtual nodes of the host."),
        cfg.StrOpt("directory", help="Where guests are remembered, so that they survive the process as real ones "
                                     "do; unset: nowhere."),
        cfg.BoolOpt("shared_storage", default=False,
                    help="Whether all virtual hosts see the same disks, as on a shared file system."),
        cfg.StrOpt("scenario", help="A YAML file that describes many virtual hosts, all played by one nova-compute "
                                    "in place of its own host (nova/virt/fake_scenario.py explains it)."),
        cfg.IntOpt("vcpus", default=64, min=1, help="CPUs of each node."),
        cfg.IntOpt("memory_mb", default=512 * 1024, min=1, help="Memory of each node in MiB."),
        cfg.IntOpt("disk_gb", default=10 * 1024, min=1, help="Disk of each node in GiB."),
        cfg.DictOpt("latency", default={}, help="Seconds that verbs take, e.g. spawn:0.5,destroy:0.1 (* for all)."),
        cfg.DictOpt("failure", default={}, help="Share of calls that fail, e.g. spawn:0.1 (* for all)."),
    ],
}
