"""The intake of measurements: lines of JSON from other machines come in, receipts go out.

Each record is reviewed against what is known, and stored once with its author, or set aside with the reason.
"""
