"""[pci]: devices that guests get for themselves."""

from oslo_config import cfg

OPTIONS = {
    "pci": [
        cfg.MultiStrOpt("alias", default=[],
                        help="A name for devices, for the flavor's pci_passthrough:alias: a JSON object with name, and "
                             "vendor_id, product_id, device_type (type-PCI, type-PF, type-VF), numa_policy (legacy, "
                             "preferred, required, socket), resource_class, traits. Several of one name are "
                             "alternatives. Read by nova-conductor."),
    ],
}
