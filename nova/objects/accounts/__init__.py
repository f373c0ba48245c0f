"""Objects for flavors, key pairs, quotas, usage and notifications."""
