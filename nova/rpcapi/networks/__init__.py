"""RPC interfaces for networks, addresses and security groups."""
