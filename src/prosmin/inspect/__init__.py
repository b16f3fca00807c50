"""`prosmin inspect`: what does not belong in a folder of images, what is there twice, what is too bad to use."""

from prosmin.inspect.run import inspect

__all__ = ["inspect"]
