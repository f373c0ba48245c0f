"""Commands by resource; each function declares its arguments and results (nova/cli/declare.py)."""
