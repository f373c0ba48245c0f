"""RPC endpoints for volumes, volume snapshots and shares."""
