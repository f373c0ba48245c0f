"""[pci]: devices that guests get for themselves."""

from oslo_config import cfg

OPTIONS = {
    "pci": [
        cfg.MultiStrOpt("alias", default=[],
                        help="A name for devices, for the flavor's pci_passthrough:alias: a JSON object with name, and "
                             "vendor_id, product_id, device_type (type-PCI, type-PF, type-VF), numa_policy (legacy, "
                             "preferred, required, socket), resource_class, traits. Several of one name are "
                             "alternatives. Read by nova-conductor."),
        cfg.MultiStrOpt("device_spec", default=[],
                        help="Devices of this host that guests may get: a JSON object (or a list of them) with "
                             "vendor_id, product_id, address (a glob, or an object of regular expressions for domain, "
                             "bus, slot, function) or devname, and what aliases may ask for: physical_network, "
                             "trusted, remote_managed, managed, live_migratable, one_time_use, resource_class, "
                             "traits. The first that names a device counts. Read by nova-compute."),
    ],
}
