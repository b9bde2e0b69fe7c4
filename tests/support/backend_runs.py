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
from typing import Any

import numpy as np
import onnxruntime as ort
from onnx import version_converter
from onnx.backend.base import Backend, BackendRep, namedtupledict

from mirage_onnx import api
from mirage_onnx.custom_op import session
from mirage_onnx.errors import MirageError
from mirage_onnx.importer import import_model, load

#: A margin that every region meets, however slow its kernel: what verifies is replaced.
ANY_COST = -1e9
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
  #: Of the model prepared last: the code it was refused with, its nodes that are in the table of
  #: operators (where that was asked for), and its replaced nodes.
  refused: str | None = None
  lowered: int = 0
  replaced: int = 0

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

  options: dict[str, Any] = {}  # noqa: RUF012 (a constant of the class)

  @classmethod
  def prepared(cls, model):
    try:
      result = api.optimize(model, target="h200", workers=1, **cls.options)
    except MirageError as error:
      Optimized.refused = error.code
      if error.code in REFUSED:
        return model.SerializeToString()
      raise
    Optimized.replaced = sum(
      len(row["ops"]) * row["count"] for row in result.report["regions"] if row["status"] == "replaced"
    )
    return result.model.SerializeToString()


class Emulated(Optimized):
  """Everything that verifies is replaced, and the kernels run in the emulator."""

  options = {"margin": ANY_COST, "budget_s": 20.0}  # noqa: RUF012

  @classmethod
  def prepare(cls, model, device="CPU", **kwargs):
    data = cls.prepared(model)
    if Optimized.refused is None:
      nodes = import_model(load.load_model(model)).nodes
      Optimized.lowered = sum(n.barrier is None for n in nodes)
    if not Optimized.replaced:
      return Prepared(stock_session(data))
    options = ort.SessionOptions()
    options.log_severity_level = 4
    return Prepared(session.InferenceSession(data, options, emulate=True))


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
    feeds = dict(zip(names, inputs, strict=False))
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
  Optimized.refused, Optimized.lowered, Optimized.replaced = None, 0, 0
  with warnings.catch_warnings(), np.errstate(all="ignore"):
    warnings.simplefilter("ignore")
    test.run(result)
  problem = next((text for _, text in (*result.errors, *result.failures)), "")
  why = problem.strip().splitlines()[-1][:300] if problem else ""
  status = "failed" if problem else "skipped" if result.skipped else "passed"
  return Ended(status, why, Optimized.refused, Optimized.lowered, Optimized.replaced)


def compare(stock, other, chosen=lambda i: True):
  """Every case whose number is chosen, by both backends; those that ``stock`` skips left out."""
  for i, ((category, name), tests) in enumerate(load_tests((stock, other)).items()):
    if chosen(i):
      first = run_test(tests[stock])
      if first.status != "skipped":
        yield Case(category, name, first, run_test(tests[other]))


def summary(cases):
  """Counts by category, and every case that ended in another way."""
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
  }  # fmt: skip
