"""What can be known before a run: dry run, memory plan, input rate, self-check."""
