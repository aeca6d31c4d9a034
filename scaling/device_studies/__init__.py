"""The experiments of `kind: device`: what a CPU and a GPU do with the same small question, a file each.

An experiment lists its points, measures one of them on one device and declares its report (`base.py`).
Everything around it (cells, launches, resume, samples) is that of every other kind.
"""
