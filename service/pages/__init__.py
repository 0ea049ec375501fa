"""The page at `/`: the parameters of its address come in, HTML without a script goes out.

It is made on the server from what the selector has in memory and what was read of the database a moment ago.
"""
