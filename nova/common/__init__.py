"""Code that novad and the federator share. It imports nothing of Nova."""
