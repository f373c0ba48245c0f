"""What a host measures of itself beside its inventory, for schedulers and for those who listen to notifications."""
