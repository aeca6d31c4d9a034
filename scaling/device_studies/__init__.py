"""The experiments of `kind: device`: what a CPU and a GPU do with the same small question, a file each. One
lists its points, measures one of them on one device and declares its report (`base.py`)."""
