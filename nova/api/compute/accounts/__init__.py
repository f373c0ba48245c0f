"""Resources of users and projects."""
