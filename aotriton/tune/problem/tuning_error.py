"""The error that ends a run of the tuner."""


class TuningError(Exception):
    """Tuning cannot go on; the message says why. What was measured until then is recorded."""
