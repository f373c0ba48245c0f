"""Objects for volumes, volume snapshots and shares."""
