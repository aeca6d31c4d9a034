"""The figures of a report: a figure is a file that holds its data, its drawing and its caption.

`base` has what such a file needs, `draw` finds and saves them all, and `parts` and `svg` are shared.
"""

import os

os.environ["MPLBACKEND"] = "agg"  # files alone are drawn; a name that matplotlib does not know would end it
