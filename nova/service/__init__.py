"""What every process does: it starts workers, tells that it lives, and ends in time."""
