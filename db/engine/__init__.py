"""A database as such: where it is, SQLite or PostgreSQL, its transactions, revisions and errors."""
