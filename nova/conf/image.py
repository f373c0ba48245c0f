"""Options of images: the back end ([image]) and Glance ([glance], which also has keystoneauth's options)."""

from oslo_config import cfg

OPTIONS = {
    None: [
        cfg.ListOpt("non_inheritable_image_properties", default=["cache_in_nova", "bittorrent"],
                    help="Image properties that a snapshot of a server does not inherit from the image of the server. "
                         "Read by nova-conductor."),
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
        cfg.ListOpt("default_trusted_certificate_ids", default=[], help="Ids of the certificates that must have issued "
                    "the certificate of a signed image when the request names none. Empty: any certificate that an "
                    "image names is trusted. Read by nova-api."),
        cfg.IntOpt("num_retries", default=3, min=0, help="Number of times that a failed request to Glance is sent "
                   "again. Read by nova-api, nova-conductor and nova-compute."),
    ],
}
