"""What benches of kernels beside torch share: times of all arms, launches that differ, torch's attention."""

from functools import partial

import numpy as np

#: Samples of each arm.
SAMPLES = 9


def arm_times(gpu, arms):
  """Name -> median, least and most microseconds of captured ``arms``, timed in turns."""
  times = gpu.time_us(list(arms.values()), SAMPLES)
  return {
    name: [round(float(v), 2) for v in (np.median(t), t.min(), t.max())]
    for name, t in zip(arms, times, strict=True)
  }


def unlike(torch, gpu, launch, y, again):
  """Of ``again`` launches those whose bits are not those that ``y``, of 16 bits, has of the first."""
  bits = y.view(torch.int16)
  first, differs = bits.clone(), torch.zeros((), device="cuda", dtype=torch.int64)
  for _ in range(again):
    bits.fill_(-1)
    launch()
    differs += (bits != first).any()
  gpu.wait()
  return int(differs)


def attention_ways(torch, q, k, v, ways, **more):
  """Those of torch's ``ways`` (FLASH, CUDNN, EFFICIENT) that take these heads, by name."""
  from torch.nn.attention import SDPBackend, sdpa_kernel

  def run(backend):
    with sdpa_kernel(backend):
      return torch.nn.functional.scaled_dot_product_attention(q, k, v, **more)

  found = {}
  for way in ways:
    backend = getattr(SDPBackend, f"{way}_ATTENTION")
    try:
      run(backend)
      found[way.lower()] = partial(run, backend)
    except RuntimeError:
      pass
  return found
