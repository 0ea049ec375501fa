"""The page at `/`: HTML made on the server, without a script, from what the selector has in memory."""
