"""Devices, processes, checkpoints, files and timing: what programs stand on."""
