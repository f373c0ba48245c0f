"""No tests of its own."""
