"""Active sampling: the problems whose measurement gains most for the cost model."""
