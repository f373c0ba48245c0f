"""Options of PCI passthrough ([pci])."""

from oslo_config import cfg

OPTIONS = {
    "pci": [
        cfg.MultiStrOpt("alias", default=[],
                        help="Alias of PCI devices for the flavor extra spec pci_passthrough:alias, as a JSON object: "
                             "name, and vendor_id, product_id, device_type (type-PCI, type-PF, type-VF), numa_policy "
                             "(legacy, preferred, required, socket), resource_class, traits. Several aliases with one "
                             "name are alternatives. Empty: flavors cannot request devices. Read by nova-conductor."),
        cfg.MultiStrOpt("device_spec", default=[], help="PCI devices of this host that guests may use, as a JSON "
                        "object or a list of them: vendor_id, product_id, address (a glob, or an object of regular "
                        "expressions for domain, bus, slot, function) or devname, and the properties physical_network, "
                        "trusted, remote_managed, managed, live_migratable, one_time_use, resource_class, traits. The "
                        "first entry that matches a device applies. Empty: no devices. Read by nova-compute."),
    ],
}
