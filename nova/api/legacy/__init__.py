"""What upstream has removed from the API."""
