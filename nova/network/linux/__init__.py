"""Networks of guests by Linux bridges, namespaces, tunnels, nftables and dnsmasq."""
