"""Corrupted images: the fifteen kinds of ImageNet-C and its four extras, stored or generated."""
