"""Training: one step, the loop, schedules, checkpoints, health, logs, processes."""
