"""`prosmin calibrate`: forecast heads for an encoder that stays as it is."""

from prosmin.calibrate.run import Request, calibrate

__all__ = ["Request", "calibrate"]
