"""Options of volumes and shares: their back ends, the embedded ones ([volume], [share]), Cinder and Manila ([cinder],
[manila]). Those of Cinder are read with [volume]driver = cinder; both groups also have keystoneauth's options."""

from oslo_config import cfg

OPTIONS = {
    "volume": [
        cfg.StrOpt("driver", default="local", help="Back end of volumes: local (files on the hosts), cinder (see "
                   "[cinder]) or none; a name of the entry points nova.volume.drivers and nova.volume.attachments. "
                   "Read by nova-api, nova-conductor and nova-compute; all need the same value. Do not change it while "
                   "servers have volumes."),
        cfg.StrOpt("pool", default="$state_path/volumes",
                   help="Directory for the embedded volumes of this host. Read by nova-compute."),
        cfg.BoolOpt("shared", default=False, help="The pools of all hosts are one directory on a network file system, "
                    "so that an embedded volume can be used on any host. By default a volume is bound to a host. Read "
                    "by nova-conductor and nova-compute; all need the same value."),
        cfg.StrOpt("format", default="raw", choices=["raw", "qcow2"], help="File format of new embedded volumes. Both "
                   "formats are sparse; raw is faster. Read by nova-conductor."),
        cfg.IntOpt("max_size_gb", default=16384, min=1,
                   help="Maximum size of an embedded volume in GiB. Read by nova-conductor."),
        cfg.IntOpt("quota_volumes", default=10, min=-1,
                   help="Maximum number of embedded volumes of a project. -1: no limit. Read by nova-conductor."),
        cfg.IntOpt("quota_gigabytes", default=1000, min=-1, help="Maximum total size in GiB of the embedded volumes of "
                   "a project. -1: no limit. Read by nova-conductor."),
        cfg.BoolOpt("allow_swap", default=False, help="Allow administrators to replace an embedded volume of a running "
                    "server by another one, with a copy of the data (PUT os-volume_attachments). By default, and with "
                    "other back ends, only volumes that Cinder migrates are swapped. Read by nova-conductor."),
        cfg.IntOpt("removal_interval", default=30, min=1, help="Seconds after which a request to a host to remove "
                   "deleted embedded volumes is sent again. Read by nova-conductor."),
    ],
    None: [
        cfg.IntOpt("block_device_allocate_retries", default=60, min=0,
                   help="Number of times that Nova polls Cinder until a new volume is available; then the build fails. "
                        "Raise it where Cinder copies large images. Read by nova-conductor."),
        cfg.IntOpt("reimage_timeout_per_gb", default=20, min=1,
                   help="Seconds per GiB that Cinder may take to write an image to the root volume of a server during "
                        "a rebuild; then the rebuild fails. Raise it for slow storage. Read by nova-conductor."),
        cfg.IntOpt("block_device_allocate_retries_interval", default=3, min=1,
                   help="Seconds between two polls of block_device_allocate_retries. Read by nova-conductor."),
        cfg.HostAddressOpt("my_shared_fs_storage_ip", default="$my_ip", help="IP address from which this host mounts "
                           "shares; access to shares is granted to it. Read by nova-compute."),
        cfg.IntOpt("stale_share_access_reconcile_interval", default=1800, min=0, help="Seconds between two checks for "
                   "access rules of shares that no server needs; they are removed. 0: never. Read by nova-conductor."),
    ],
    "cinder": [
        cfg.StrOpt("catalog_info", default="volumev3::publicURL",
                   help="Entry of Cinder in the service catalog, as TYPE:NAME:INTERFACE. The options service_type, "
                        "service_name and valid_interfaces override its parts. Read by nova-conductor."),
        cfg.StrOpt("os_region_name", help="Region of Cinder in the service catalog. The option region_name overrides "
                   "it. Unset: any region. Read by nova-conductor."),
        cfg.IntOpt("http_retries", default=3, min=0, help="Number of times that a GET request to Cinder is sent again "
                   "when no connection could be made. Requests that change something are repeated by the operation "
                   "that sends them. Read by nova-conductor."),
    ],
    "share": [
        cfg.StrOpt("driver", default="local",
                   help="Back end of shares: local (directories of the hosts), manila (see [manila]) or none; a name "
                        "of the entry points nova.share.drivers and nova.share.services. Read by nova-conductor and "
                        "nova-compute; all need the same value. Do not change it while servers have shares."),
        cfg.StrOpt("pool", default="$state_path/shares", help="Directory for the embedded shares of this host, and for "
                   "the mount points of other shares. Read by nova-compute."),
        cfg.BoolOpt("shared", default=False, help="The pools of all hosts are one directory on a network file system, "
                    "so that an embedded share can be used on any host. By default a share is bound to the first host "
                    "that uses it. Read by nova-conductor and nova-compute; all need the same value."),
        cfg.StrOpt("nfs_mount_options", default="vers=4,nodev,nosuid,noexec",
                   help="Options for mounting NFS shares, as for mount -o. Read by nova-compute."),
        cfg.IntOpt("mount_timeout", default=60, min=1,
                   help="Seconds that mounting or unmounting a share may take. Read by nova-compute."),
    ],
    "manila": [
        cfg.IntOpt("share_apply_policy_timeout", default=10, min=1, help="Seconds that Manila may take to grant or to "
                   "revoke access to a share. Read by nova-conductor."),
        cfg.StrOpt("api_version", default="2.82", help="Microversion of requests to Manila. Read by nova-conductor."),
    ],
}

EMBEDDED = ("none", "local")  # back ends that store volumes in Nova's own database
