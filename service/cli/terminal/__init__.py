"""What the commands share of the terminal: words and options come in, tables, progress and JSON go out."""
