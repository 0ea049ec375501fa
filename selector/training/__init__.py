"""Cost models made and judged: fitted to measurements, compared with baselines on what they have not seen.

In: a database of measurements. Out: a stored model, evaluations and reports.
"""
