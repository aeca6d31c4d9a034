"""The figures of a report: a figure is a file that holds its data, its drawing and its caption."""
