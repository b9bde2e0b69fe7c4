"""Things whose times are known to differ: loops, and chains of products."""

import time
from itertools import pairwise

import numpy as np
import onnx
from onnx import helper
from protos import typed


def busy(seconds):
  def run():
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
      pass

  return run


def save(path, layers, rows=64):
  """``layers`` products of 256 x 256, one after the other."""
  weight = onnx.numpy_helper.from_array(np.eye(256, dtype=np.float32) * 0.5, "w")
  names = ["x", *(f"h{i}" for i in range(layers - 1)), "y"]
  nodes = [helper.make_node("MatMul", [a, "w"], [b]) for a, b in pairwise(names)]
  graph = helper.make_graph(nodes, "g", [typed("x", 1, [rows, 256])], [typed("y", 1, [rows, 256])], [weight])
  onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10), path)
  return str(path)
