"""What every query stands on: connections and transactions, the clock, types of columns, searches, limits."""
