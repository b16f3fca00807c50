"""Corrupted pictures: the fifteen kinds of ImageNet-C and its four extras, stored or generated."""
