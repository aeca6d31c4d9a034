"""The experiments of `kind: device`: what a CPU and a GPU do with the same small question.

An experiment lists its points and measures one of them on one device (`base.py`); a study names it
(`registry.py`). Everything around it (cells, launches, resume, samples, report) is that of every other kind.
"""
