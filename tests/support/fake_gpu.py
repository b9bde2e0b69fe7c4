"""A GPU whose times are made up: everything of ``--target local`` runs but the kernels.

A kernel takes what is predicted, times a factor of its region and one of its numbers; ONNX Runtime's nodes
take what a table says. The GPU is busy for as long as a real one would be, and one thread has it at a time.
"""

import hashlib
import threading
import time

import numpy as np

from mirage_onnx.tune import measure, node_times
from mirage_onnx.tune.baseline import node_times_us, ranking_table
from mirage_onnx.tune.machine import gpu_alone

#: Seconds: until a candidate is ready, of a check of its results, of onnxruntime's session.
ARM_S, CHECK_S, SESSION_S, SAMPLE_S = 0.004, 0.02, 0.1, 0.002


def drawn(text):
  """A number from 0 to 1 of a text."""
  return int(hashlib.sha256(text.encode()).hexdigest()[:8], 16) / 2**32


class Drawn(dict):
  """Times of nodes by their names: the same in every process."""

  def get(self, name, default=None):
    return 4.0 + 8.0 * drawn(name)


class FakeGpu:
  """Puts itself in place of the GPU; ``us``: times of nodes, ``threads``: who had it, ``most``: at a time."""

  def __init__(self, monkeypatch):
    self.us, self.threads, self.most, self._now = {}, set(), 0, 0
    self._one = threading.Lock()
    gpu = self

    class Bench:
      def __init__(self, loaded, region, target, draws=lambda: None):
        self.loaded, self.region, self.given, self.drawn, self.session = loaded, region, draws, None, False

      def __enter__(self):
        return self

      def __exit__(self, *error):
        pass

      def alone(self):
        return gpu_alone()

      def ready(self):
        self.drawn = self.drawn or self.given() or measure.draws_of(self.loaded, self.region)

      def complaints(self, some):
        self.ready()
        gpu.busy((ARM_S + CHECK_S * len(self.drawn)) * len(some))
        return [None] * len(some)

      def times_us(self, some, samples, *, beside_ort):
        us = [gpu.kernel_us(self.region, c.candidate) for c in some]
        if beside_ort:
          us = [sum(gpu.us.get(n, 1.0) for n in self.region.nodes), *us]
          gpu.busy(0.0 if self.session else SESSION_S)
          self.session = True
        gpu.busy(SAMPLE_S * samples * len(us))
        noise = np.random.default_rng(0).standard_normal((len(us), samples))
        return np.array(us)[:, None] * (1 + 0.01 * noise)

    monkeypatch.setattr(measure, "GpuBench", Bench)
    monkeypatch.setattr(node_times, "measured_node_us", self.node_us)

  def busy(self, seconds):
    with self._one:
      self.threads.add(threading.current_thread().name)
      time.sleep(seconds)

  def kernel_us(self, region, candidate):
    own = 0.8 + 0.6 * drawn(region.key)
    return max(0.5, candidate.predicted_us) * own * (1 + 0.2 * drawn(str(candidate.params)))

  def node_us(self, loaded, program, names, target, *, until, useful=None):
    table = node_times_us(program, ranking_table(target))
    self.us |= {n: table.get(n, 3.0) for n in names}
    return {n: self.us[n] for n in names}
