"""Infrastructure: devices, processes, checkpoints, files and timing."""
