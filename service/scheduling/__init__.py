"""The words of cluster schedulers: throughputs and placements come in, files and scores of their own go out.

Kubernetes, Slurm and Ray are told where a job should go, Gavel, Sia and AdaptDL how fast it runs there.
"""
