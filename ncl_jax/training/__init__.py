"""Training: state, step, loss, loop and work directory."""
