"""The terminal, as commands share it: typed words and options come in, tables, progress and JSON go out."""
