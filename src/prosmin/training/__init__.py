"""Training: schedules, one step, the loop, checkpoints, health."""
