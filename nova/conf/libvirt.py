"""[libvirt]: the libvirt driver."""

from oslo_config import cfg

OPTIONS = {
    "libvirt": [
        cfg.StrOpt("virt_type", default="kvm", choices=["kvm", "qemu", "lxc"], help="What kind of guests."),
    ],
}
