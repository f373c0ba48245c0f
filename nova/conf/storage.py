"""Options of images, volumes and shares: their back ends, the embedded ones ([image], [volume], [share]), and Glance,
Cinder and Manila ([glance], [cinder], [manila]). The groups of services also have keystoneauth's options."""

from oslo_config import cfg

OPTIONS = {
    "volume": [
        cfg.StrOpt("driver", default="local", help="Back end of volumes: local (files on the hosts), cinder (see "
                   "[cinder]) or none; a name of the entry points nova.volume.drivers and nova.volume.attachments. "
                   "Read by nova-api, nova-conductor and nova-compute; all need the same value. Do not change it while "
                   "servers have volumes."),
        cfg.StrOpt("pool", default="$state_path/volumes",
                   help="Directory for the volumes that this host stores (without Cinder). Read by nova-compute."),
        cfg.BoolOpt("shared", default=False, help="Set it if the pools of all hosts are one directory on a network "
                    "file system: volumes of driver local can be used on any host. By default a volume is bound to a "
                    "host. Read by nova-conductor and nova-compute; all need the same value."),
        cfg.StrOpt("format", default="raw", choices=["raw", "qcow2"], help="File format of new volumes of driver "
                   "local. Both formats are sparse; raw is faster. Read by nova-conductor."),
        cfg.IntOpt("max_size_gb", default=16384, min=1,
                   help="Maximum size of a volume in GiB (driver local). Read by nova-conductor."),
        cfg.IntOpt("quota_volumes", default=10, min=-1,
                   help="Maximum number of volumes of a project (driver local). -1: no limit. Read by nova-conductor."),
        cfg.IntOpt("quota_gigabytes", default=1000, min=-1, help="Maximum total size in GiB of the volumes of a "
                   "project (driver local). -1: no limit. Read by nova-conductor."),
        cfg.BoolOpt("allow_swap", default=False, help="For [volume]driver=local: allow administrators to replace a "
                    "volume of a running server by another one (PUT os-volume_attachments); the host copies the data. "
                    "With Cinder, only volumes that Cinder migrates can be replaced. Read by nova-conductor."),
        cfg.IntOpt("removal_interval", default=30, min=1, help="Seconds after which a request to a host to remove "
                   "deleted volumes is sent again (driver local). Read by nova-conductor."),
    ],
    None: [
        cfg.ListOpt("non_inheritable_image_properties", default=["cache_in_nova", "bittorrent"],
                    help="Image properties that a snapshot of a server does not inherit from the image of the server. "
                         "Read by nova-conductor."),
        cfg.IntOpt("block_device_allocate_retries", default=60, min=0,
                   help="Number of times that Nova polls Cinder until a new volume is available; then the build fails. "
                        "Raise it where Cinder copies large images. Read by nova-conductor."),
        cfg.IntOpt("reimage_timeout_per_gb", default=20, min=1,
                   help="Seconds per GiB that Cinder may take to write an image to the root volume of a server during "
                        "a rebuild; then the rebuild fails. Raise it for slow storage. Read by nova-conductor."),
        cfg.IntOpt("block_device_allocate_retries_interval", default=3, min=1,
                   help="Seconds between two polls of block_device_allocate_retries. Read by nova-conductor."),
        cfg.HostAddressOpt("my_shared_fs_storage_ip", default="$my_ip", help="IP address from which this host mounts "
                           "shares, and to which access to shares is granted. Read by nova-compute."),
        cfg.IntOpt("stale_share_access_reconcile_interval", default=1800, min=0, help="Seconds between two cleanups, "
                   "which remove access rules (not shares) that no server needs. 0: never. Read by nova-conductor."),
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
        cfg.StrOpt("pool", default="$state_path/shares", help="Directory for the shares that this host stores (driver "
                   "local), and for the mount points of Manila's shares. Read by nova-compute."),
        cfg.BoolOpt("shared", default=False, help="Set it if the pools of all hosts are one directory on a network "
                    "file system: shares of driver local can be used on any host. By default a share is bound to the "
                    "first host that uses it. Read by nova-conductor and nova-compute; all need the same value."),
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
    "image": [
        cfg.StrOpt("driver", default="directory",
                   help="Back end that stores images: a name of the entry points nova.image.drivers (directory or "
                        "glance). Read by nova-api, nova-conductor and nova-compute; all need the same value."),
        cfg.StrOpt("directory", default="$state_path/images",
                   help="Directory in which the directory back end stores images. All hosts need access to it. Read by "
                        "nova-api, nova-conductor, nova-compute and nova-manage."),
        cfg.IntOpt("quota_images", default=100, min=-1, help="Maximum number of images that a project may create from "
                   "its servers in the directory back end. -1: no limit. Glance has its own quotas. Read by nova-api, "
                   "nova-conductor and nova-compute."),
        cfg.IntOpt("quota_gigabytes", default=1000, min=-1, help="Maximum total size in GiB of the images of a project "
                   "in the directory back end. -1: no limit. Read by nova-api, nova-conductor and nova-compute."),
        cfg.StrOpt("certificates", default="$state_path/certificates", help="Directory with the certificates of signed "
                   "images, as ID.pem, for [key_manager]backend = nova_files. Read by nova-api."),
    ],
    "glance": [
        cfg.BoolOpt("verify_glance_signatures", default=False, help="Boot new servers only from images (of any back "
                    "end) with a valid signature in their img_signature properties. By default signatures are not "
                    "checked, and requests with trusted_image_certificates are refused. Needs the package cursive, and "
                    "[key_manager]backend barbican or nova_files in the configuration of nova-api. Read by nova-api "
                    "and nova-conductor."),
        cfg.ListOpt("default_trusted_certificate_ids", default=[], help="Ids of trusted certificates for requests that "
                    "name none; one of them must have issued the certificate of a signed image. Empty: any certificate "
                    "that an image names is trusted. Read by nova-api."),
        cfg.IntOpt("num_retries", default=3, min=0, help="Number of times that a failed request to Glance is sent "
                   "again. Read by nova-api, nova-conductor and nova-compute."),
    ],
}

EMBEDDED = ("none", "local")  # back ends that store volumes in Nova's own database
