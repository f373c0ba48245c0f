"""Control loops of the scheduler."""
