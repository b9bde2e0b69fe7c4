"""ONNX's own backend tests, by stock ONNX Runtime and by ``optimize`` before stock ONNX Runtime.

What ``optimize`` refuses by contract (``REFUSED``) leaves a user with the original: that runs, and
counts as refused; any other refusal fails. Models of an opset that is too old also run converted.
"""

import os
import tempfile
import unittest
import warnings
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnxruntime as ort
from onnx import version_converter
from onnx.backend.base import Backend, BackendRep, namedtupledict

from mirage_onnx import api, pipeline
from mirage_onnx.custom_op import session
from mirage_onnx.errors import MirageError
from mirage_onnx.importer import import_model, load
from mirage_onnx.importer.graph import domain_of
from mirage_onnx.importer.semantics import SEMANTICS
from mirage_onnx.ir.dtype import DType
from mirage_onnx.target import H200

#: Time for the searches of one model.
BUDGET_S = 20.0
#: Codes that the documentation promises for models which ONNX Runtime may run.
REFUSED = ("OPSET_UNSUPPORTED",)
#: Where the converting backends lift older models to.
CONVERTED_OPSET = 21
CATEGORIES = ("NodeModel", "SimpleModel", "PyTorchConvertedModel", "PyTorchOperatorModel",
              "RealModel")  # fmt: skip


def stock_session(data):
  options = ort.SessionOptions()
  options.log_severity_level = 4
  options.intra_op_num_threads = 1
  return ort.InferenceSession(data, options, providers=["CPUExecutionProvider"])


class Stock(Backend):
  #: Of the model prepared last: the code it was refused with, its nodes that are lowered (where that
  #: was asked for), its replaced nodes, and codes of why its operators in the table that read floats
  #: are in no kernel (where none is replaced; None where it has no such operator).
  refused: str | None = None
  lowered: int = 0
  replaced: int = 0
  kept: str | None = None

  @classmethod
  def supports_device(cls, device):
    return device == "CPU"

  @classmethod
  def prepare(cls, model, device="CPU", **kwargs):
    return Prepared(stock_session(cls.prepared(model)))

  @classmethod
  def prepared(cls, model):
    return model.SerializeToString()


class Optimized(Stock):
  """``optimize`` for an H200 as users run it, then ONNX Runtime on the CPU: the bodies run."""

  @classmethod
  def prepared(cls, model):
    try:
      return cls.optimized(model).SerializeToString()
    except MirageError as error:
      Optimized.refused = error.code
      if error.code in REFUSED:
        return model.SerializeToString()
      raise

  @classmethod
  def optimized(cls, model):
    result = api.optimize(model, target="h200", workers=1)
    Optimized.replaced = sum(
      len(row["ops"]) * row["count"] for row in result.report["regions"] if row["status"] == "replaced"
    )
    return result.model


class Emulated(Optimized):
  """Everything that verifies is replaced, and the kernels run in the emulator."""

  @classmethod
  def optimized(cls, model):
    loaded = load.load_model(model)
    floats = reading_floats(loaded)
    Optimized.lowered = sum(n.barrier is None for n in import_model(loaded).nodes)
    run = pipeline.run(loaded, pipeline.Options(H200, budget_s=BUDGET_S, workers=1, every=True))
    Optimized.replaced = sum(len(c.nodes) for c, _ in run.chosen)
    Optimized.kept = why_kept(run, floats) if floats else None
    return run.model

  @classmethod
  def prepare(cls, model, device="CPU", **kwargs):
    data = cls.prepared(model)
    if not Optimized.replaced:
      return Prepared(stock_session(data))
    options = ort.SessionOptions()
    options.log_severity_level = 4
    return Prepared(session.InferenceSession(data, options, emulate=True))


def reading_floats(loaded):
  """The nodes whose operator is in the table and that read float, float16 or bfloat16 as data.

  What fp64 kernels there would be is no part of the table: operators that only read double are left
  out, and so are inputs that are parameters of the math (an exponent, a type that is cast like).
  """
  found = []
  for name, node in zip(loaded.node_names, loaded.proto.graph.node, strict=True):
    if rule := SEMANTICS.get((domain_of(node), node.op_type)):
      data = [loaded.tensors.get(x) for i, x in enumerate(node.input) if i not in rule.parameters]
      if any(t and t.dtype in (DType.F32, DType.F16, DType.BF16) for t in data):
        found.append(name)
  return found


def why_kept(run, nodes):
  """The codes of refusals of these nodes, or of the regions that they are in."""
  if run.chosen:
    return ""
  refused = [*run.matches.rejections, *(o.rejection for o in run.outcomes.values() if o.rejection)]
  codes = {r.code for r in refused if not set(nodes).isdisjoint(r.nodes)}
  # A region that could be replaced, while its node also yields what no kernel does.
  return "+".join(sorted(codes)) or "STILL_READ"


def lifted(model):
  """The model at an opset that ``optimize`` takes, where onnx can convert it."""
  versions = [o.version for o in model.opset_import if o.domain in ("", "ai.onnx")]
  if not versions or versions[0] >= load.OPSETS.start:
    raise unittest.SkipTest("is new enough")
  try:
    return version_converter.convert_version(model, CONVERTED_OPSET)
  except Exception as error:  # onnx has no class for what its converter cannot do
    raise unittest.SkipTest("cannot be converted") from error


class StockLifted(Stock):
  """Old models only, converted first."""

  @classmethod
  def prepared(cls, model):
    return super().prepared(lifted(model))


class OptimizedLifted(Optimized):
  """Old models only, converted first."""

  @classmethod
  def prepared(cls, model):
    return super().prepared(lifted(model))


@dataclass(frozen=True)
class Prepared(BackendRep):
  session: ort.InferenceSession

  def run(self, inputs, **kwargs):
    names = [i.name for i in self.session.get_inputs()]
    # ONNX Runtime takes arrays, and some tests give numbers.
    arrays = (np.asarray(x) if isinstance(x, np.generic) else x for x in inputs)
    feeds = dict(zip(names, arrays, strict=False))
    outputs = [o.name for o in self.session.get_outputs()]
    return namedtupledict("Outputs", outputs)(*self.session.run(None, feeds))


@dataclass(frozen=True)
class Ended:
  """How a test ended: ``passed``, ``failed`` or ``skipped``; ``why`` is the error's last line."""

  status: str
  why: str = ""
  refused: str | None = None
  lowered: int = 0
  replaced: int = 0
  kept: str | None = None


@dataclass(frozen=True)
class Case:
  category: str
  name: str
  stock: Ended
  other: Ended

  @property
  def equal(self):
    return self.stock.status == self.other.status


def load_tests(backends):
  from onnx.backend.test import BackendTest

  os.environ.setdefault("ONNX_MODELS", str(Path(tempfile.gettempdir(), "mirage-onnx-backend")))
  with warnings.catch_warnings(), np.errstate(all="ignore"):
    warnings.simplefilter("ignore")
    suites = {b: BackendTest(b, __name__).test_cases for b in backends}
  found = {}
  for category in CATEGORIES:
    key = f"OnnxBackend{category}Test"
    names = unittest.TestLoader().getTestCaseNames(suites[backends[0]][key])
    for name in names:
      if name.endswith("_cpu"):
        found[category, name] = {b: suites[b][key](name) for b in backends}
  return found


def run_test(test):
  result = unittest.TestResult()
  Optimized.refused, Optimized.lowered, Optimized.replaced, Optimized.kept = None, 0, 0, None
  with warnings.catch_warnings(), np.errstate(all="ignore"):
    warnings.simplefilter("ignore")
    test.run(result)
  problem = next((text for _, text in (*result.errors, *result.failures)), "")
  why = problem.strip().splitlines()[-1][:300] if problem else ""
  status = "failed" if problem else "skipped" if result.skipped else "passed"
  return Ended(status, why, Optimized.refused, Optimized.lowered, Optimized.replaced, Optimized.kept)


def compare(stock, other, chosen=lambda i: True):
  """Every case whose number is chosen, by both backends; those that ``stock`` skips left out."""
  for i, ((category, name), tests) in enumerate(load_tests((stock, other)).items()):
    if chosen(i):
      first = run_test(tests[stock])
      if first.status != "skipped":
        yield Case(category, name, first, run_test(tests[other]))


def summary(cases):
  """Counts by category, and every case that ended in another way.

  ``float_tabled``: of the node tests in which a tabled operator reads floats (``reading_floats``),
  whether ONNX Runtime passes them or not, and whether that operator's form is lowered or not.
  """
  floats = [c.other for c in cases if c.category == "NodeModel" and c.other.kept is not None]
  replaced = [e for e in floats if e.replaced]
  kept = Counter(e.kept for e in floats if not e.replaced)
  return {
    "cases": len(cases),
    "by_category": dict(Counter(c.category for c in cases)),
    "stock": dict(Counter(c.stock.status for c in cases)),
    "refused": dict(Counter(c.other.refused for c in cases if c.other.refused)),
    "equal": sum(c.equal for c in cases),
    "differing": [
      {"case": c.name, "stock": c.stock.status, "other": c.other.status,
       "refused": c.other.refused, "why": c.other.why or c.stock.why}
      for c in cases if not c.equal
    ],
    "cases_with_lowered_nodes": sum(c.other.lowered > 0 for c in cases),
    "cases_with_replaced_nodes": sum(c.other.replaced > 0 for c in cases),
    "nodes_replaced": sum(c.other.replaced for c in cases),
    "float_tabled": {
      "cases": len(floats),
      "replaced": len(replaced),
      "replaced_and_passed": sum(e.status == "passed" for e in replaced),
      "kept": dict(sorted(kept.items(), key=lambda row: (-row[1], row[0]))),
    },
  }  # fmt: skip
