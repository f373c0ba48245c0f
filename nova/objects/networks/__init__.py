"""Objects for networks and addresses."""
