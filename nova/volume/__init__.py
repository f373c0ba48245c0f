"""Volume back ends: entry points of nova.volume.drivers on hosts, of which [volume]driver selects one."""
