"""Exported models with regions picked by hand: same bits without our library."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest

from mirage_onnx.importer.graph import reads
from mirage_onnx.rewrite.model import BodyMaker, rewrite_model
from mirage_onnx.rewrite.replacement import Replacement, WeightUse
from mirage_onnx.rewrite.save import save_model

MODELS = Path(__file__).parents[2] / "models"
LIMITS = {"input_ids": 128, "attention_mask": 2, "position_ids": 16}
NORM = ("Cast", "Pow", "ReduceMean", "Add", "Sqrt", "Reciprocal", "Mul", "Cast", "Mul")
#: Consecutive operators of a region in each model, and how often they occur.
PATTERNS = [
  ("rmsnorm_linear", (*NORM, "Gemm"), 1),
  ("lora", (*NORM, "MatMul", "MatMul", "MatMul", "Mul", "Add"), 2),
  ("bert", ("MatMul", "Add", "Gelu", "MatMul", "Add", "Add", "LayerNormalization"), 2),
  ("llama_decode", NORM, 5),
]


def instances(model, pattern):
  """Runs of nodes with these operators, every one a region; matrices are stored K-major."""
  graph, found = model.graph, []
  nodes = list(graph.node)
  shapes = {t.name: tuple(t.dims) for t in graph.initializer}
  start = 0
  while start + len(pattern) <= len(nodes):
    run = nodes[start : start + len(pattern)]
    if tuple(n.op_type for n in run) != pattern:
      start += 1
      continue
    start += len(pattern)
    names = {n.name for n in run}
    made = {o for n in run for o in n.output}
    used = dict.fromkeys(i for n in run for i in n.input if i not in made)
    inputs = [i for i in used if i not in shapes or (len(shapes[i]) and shapes[i] != (1,))]
    others = {i for n in nodes if n.name not in names for i in reads(n)}
    others |= {o.name for o in graph.output}
    outputs = tuple(o for n in run for o in n.output if o in others)
    matrices = [i for i in inputs if len(shapes.get(i, ())) == 2]
    weights = tuple(WeightUse(i, (1, 0)) for i in matrices)
    found.append(Replacement(tuple(n.name for n in run), tuple(inputs), weights, outputs, True, 0))
  return found


@pytest.mark.parametrize(("name", "pattern", "count"), PATTERNS, ids=[p[0] for p in PATTERNS])
def test_same_bits(toy, rng, tmp_path, name, pattern, count):
  path = MODELS / f"{name}.onnx"
  model = onnx.load(path)
  regions = instances(model, pattern)
  assert len(regions) == count
  keys = [BodyMaker(model).body(r).key for r in regions]
  plans = list(dict.fromkeys(keys))
  regions = [replace(r, plan=plans.index(k)) for r, k in zip(regions, keys, strict=True)]
  result = rewrite_model(model, regions, toy.bundle)
  assert len(result.functions) == len(plans)
  assert len(result.graph.node) == len(model.graph.node) - count * (len(pattern) - 1)
  onnx.checker.check_model(result)
  out = tmp_path / "out.onnx"
  save_model(result, out, path)
  feeds = {}
  for value in model.graph.input:
    shape = [d.dim_value for d in value.type.tensor_type.shape.dim]
    feeds[value.name] = (
      rng.integers(LIMITS[value.name], size=shape)
      if value.name in LIMITS
      else rng.standard_normal(shape).astype(np.float16)
    )
  assert toy.same(path, out, **feeds)
