"""What the host is and has, as it is reported."""
