"""The strategies of the systems that arXiv 1608.07249 compares, and of those that came out of them.

One file a system. Each says what the system does, where its source says so, and where ours differs. Some of
them sum and some average; here all deliver the mean, so that a learning rate means the same everywhere.
"""
