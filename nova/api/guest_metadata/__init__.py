"""The metadata service: data for guests at http://169.254.169.254."""
