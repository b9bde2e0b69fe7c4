"""What benches beside torch make of times."""

import numpy as np
from torch_arms import SAMPLES, arm_times


class FakeGpu:
  def time_us(self, arms, samples):
    assert samples == SAMPLES
    return np.array([[us + n % 3 for n in range(samples)] for us in arms])


def test_arm_times():
  assert arm_times(FakeGpu(), {"ours": 10.0, "torch": 20.126}) == {
    "ours": [11.0, 10.0, 12.0],
    "torch": [21.13, 20.13, 22.13],
  }
