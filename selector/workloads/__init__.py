"""Problems and models to measure or to plan: published layers, random problems, models as sums of layers.

In: names, operators, numbers of problems. Out: problems, and models as sums of layers; no figures.
"""
