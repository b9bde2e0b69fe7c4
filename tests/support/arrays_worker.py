"""A worker (``python -m``): how many pages of new memory ten times eight arrays of 1024 pages took."""

import resource
import sys

import numpy as np

from mirage_onnx.worker_process import send


def faults():
  return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


if __name__ == "__main__":
  before = faults()
  for _ in range(10):
    arrays = [np.ones(1 << 19) for _ in range(8)]
    del arrays
  send(sys.stdout.buffer, ("faults", faults() - before))
