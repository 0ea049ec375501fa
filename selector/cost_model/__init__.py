"""The cost model at work: estimates of time and memory, in numpy alone.

In: problems, implementations, a device, a stored model. Out: estimates with intervals, or why there are none.
"""
