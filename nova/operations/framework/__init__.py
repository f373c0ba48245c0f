"""Base class of operations, their contexts, and steps that several operations share."""
