r"""CL and NCL on CIFAR-100 from scratch: three seeds of each.

  python -m studies.cifar100.run --source=arrays:cifar100.npz --out=runs/cifar100-study

Works as `studies.cifar10.run` does, with the learning rates found there. No test image
is read.
"""

from studies.cifar10 import run

PLAN = run.Plan("cifar100_small", (41, 42, 43), 16, run.CHOSEN)


def main() -> None:
  """Trains all runs."""
  run.run(PLAN, __doc__)


if __name__ == "__main__":
  main()
