"""The error of this package; standard library only, so that it costs nothing to import."""


class TopologyError(ValueError):
    """A machine file is wrong, or a machine has not what is asked of it."""
