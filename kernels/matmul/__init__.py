"""Matrix products whose Triton kernels are generated from schedules, and fused with what surrounds them.

`schedule` says what a schedule is and which task mappings it stands for, `space` which schedules a device
has, `ranking` which of them fits a problem, `tuned` what was measured, `source` writes the kernel, and
`launch` runs it. `epilogue` has the functions that are fused into any schedule.
"""
