"""[image] chooses the image back end; [glance] says how to reach Glance (a keystoneauth group)."""

from keystoneauth1 import loading
from oslo_config import cfg

OPTIONS = {
    "image": [
        cfg.StrOpt("driver", default="directory", help="A name of the entry points nova.image.drivers."),
        cfg.StrOpt("directory", default="$state_path/images", help="Where the directory back end keeps images."),
    ],
    "glance": [
        cfg.IntOpt("num_retries", default=3, min=0, help="How often a failed request to Glance is repeated."),
        *loading.get_session_conf_options(),
        *loading.get_auth_common_conf_options(),
        *loading.get_adapter_conf_options(),
    ],
}
