"""[image] chooses the image back end; [glance] says how to reach Glance (a keystoneauth group)."""

from oslo_config import cfg

OPTIONS = {
    None: [
        cfg.ListOpt("non_inheritable_image_properties", default=["cache_in_nova", "bittorrent"],
                    help="Properties of a server's image that a snapshot of the server does not have."),
    ],
    "image": [
        cfg.StrOpt("driver", default="directory", help="A name of the entry points nova.image.drivers."),
        cfg.StrOpt("directory", default="$state_path/images", help="Where the directory back end keeps images."),
        cfg.IntOpt("quota_images", default=100, min=-1,
                   help="How many images the servers of a project may be made into in the directory back end (Glance "
                        "has limits of its own); -1 is unlimited."),
        cfg.IntOpt("quota_gigabytes", default=1000, min=-1,
                   help="How large the images of a project may be there together, in GiB; -1 is unlimited."),
        cfg.StrOpt("certificates", default="$state_path/certificates",
                   help="Where [key_manager]backend nova_files has certificates of images, ID.pem. Read by nova-api."),
    ],
    "glance": [
        cfg.BoolOpt("verify_glance_signatures", default=False,
                    help="Whether new servers boot only from images (of any back end) whose data are signed, as their "
                         "img_signature properties say. Without it trusted_image_certificates are refused. Needs "
                         "cursive, and [key_manager] in nova-api's configuration: barbican, or nova_files."),
        cfg.ListOpt("default_trusted_certificate_ids", default=[],
                    help="Ids of the certificates that an image's own has to come from where the request names none; "
                         "empty: whatever certificate the image names is believed."),
        cfg.IntOpt("num_retries", default=3, min=0, help="How often a failed request to Glance is repeated."),
    ],
}
