"""The figures of a report: a figure is a file that holds its data, its drawing and its caption.

`base` has what such a file needs, `draw` finds and saves them all, and `parts`, `style` and `svg` are shared.
"""
