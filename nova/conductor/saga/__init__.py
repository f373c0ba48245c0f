"""The saga engine: it stores actions, executes their steps, and takes over actions of failed processes."""
