"""The sections of the page, one file each: a run's results in, blocks out."""
