"""Watches the ranks of a launch on one host, from a process of its own, whoever started them.

One watcher a host, started by the first rank there: a thread of a rank could not run while that rank is
stopped, or stuck in C code that holds the interpreter's lock, and a launcher is not on every host.
"""
