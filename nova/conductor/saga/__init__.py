"""The saga engine: actions are journaled, walked through their steps, and found again when somebody died."""
