"""[volume]: who keeps volumes; and the embedded ones, files in a directory of the hosts."""

from oslo_config import cfg

OPTIONS = {
    "volume": [
        cfg.StrOpt("driver", default="local",
                   help="Who keeps volumes: local (Nova itself), cinder (see [cinder]) or none; a name of the entry "
                        "points nova.volume.drivers (hosts) and nova.volume.attachments (conductors). The same "
                        "everywhere, and not to be changed while servers have volumes."),
        cfg.StrOpt("pool", default="$state_path/volumes", help="The directory of a host that keeps volumes."),
        cfg.BoolOpt("shared", default=False,
                    help="Whether all hosts share one pool (a network file system): then a volume is not bound to a "
                         "host. The same on all hosts and conductors."),
        cfg.StrOpt("format", default="raw", choices=["raw", "qcow2"],
                   help="How volumes are kept from now on. Both are sparse; raw is faster."),
        cfg.IntOpt("max_size_gb", default=16384, min=1, help="The size of the largest volume, in GiB."),
        cfg.IntOpt("quota_volumes", default=10, min=-1, help="How many volumes a project may have; -1 is unlimited."),
        cfg.IntOpt("quota_gigabytes", default=1000, min=-1,
                   help="How large the volumes of a project may be together, in GiB; -1 is unlimited."),
        cfg.BoolOpt("allow_swap", default=False,
                    help="Whether an administrator may have one embedded volume take the place of another in a server "
                         "that runs, with all its data (PUT os-volume_attachments). Elsewhere, and without it here, "
                         "only a volume that its service migrates is swapped."),
        cfg.IntOpt("removal_interval", default=30, min=1,
                   help="Seconds after which a host is told once more of volumes that it has to remove."),
    ],
}

# The back ends whose volumes are in Nova's own database.
EMBEDDED = ("none", "local")
