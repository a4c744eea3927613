"""Comparisons and sweeps of several runs, and the reports on them."""
