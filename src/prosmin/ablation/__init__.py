"""Grids of runs: which cells there are, training and judging each, their table and plot."""
