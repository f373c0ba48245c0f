"""Views of the control plane for novactl."""
