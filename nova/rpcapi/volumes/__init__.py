"""RPC interfaces for volumes, volume snapshots and shares."""
