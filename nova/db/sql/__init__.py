"""The base of all queries: connections, transactions, the database's clock, column types, searches and limits."""
