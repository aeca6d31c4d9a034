"""Every error that a user can cause, in one place.

A message says what was given, what is allowed and what to do. The command line prints it without a traceback
and ends with exit code 2.
"""


class ScalingError(ValueError):
    """Base of all errors that are the input's or the machine's, not the program's."""


class StudyError(ScalingError):
    """A study file, an override or a name in it is wrong."""


class DataError(ScalingError):
    """A data set's file is missing, truncated or damaged."""


class StoreError(ScalingError):
    """A results folder cannot be read, written, or holds something else."""


class DiskFullError(StoreError):
    """There is no space left for results."""


class CheckpointError(ScalingError):
    """A saved state of a training does not fit the step that is to go on from it."""


class LaunchError(ScalingError):
    """Worker processes cannot be started as asked for."""


class ScheduleError(ScalingError):
    """A collective's schedule is malformed or does not deliver the sum."""


class PredictionError(ScalingError):
    """A cell cannot be predicted from what is known."""


class ExchangeError(ScalingError):
    """An aggregator's result or an update is not what it must be, or replicas have drifted apart."""


class NotFiniteError(ScalingError):
    """A gradient is NaN or infinite, or was after it had been encoded."""


class AttachError(ScalingError):
    """A user's own script cannot be measured as asked for."""
