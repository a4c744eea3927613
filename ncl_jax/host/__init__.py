"""This machine: paths, array files, cores and memory."""
