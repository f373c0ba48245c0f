"""Commands by what they are about; each function declares what it takes and returns (nova/cli/declare.py)."""
