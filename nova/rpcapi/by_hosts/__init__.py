"""RPC interfaces that hosts call: guests, heartbeats, orders, networks and the fleet."""
