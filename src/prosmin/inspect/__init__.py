"""`prosmin inspect`: from a folder of images to what does not belong, what is there twice and what is too bad to use."""
