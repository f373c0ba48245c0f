"""The metadata service: what guests read at http://169.254.169.254."""
