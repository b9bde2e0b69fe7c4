"""Errors planted in a stage of ``optimize`` at chosen regions: where each stage's function is."""

from contextlib import contextmanager

from mirage_onnx import judging, search_run
from mirage_onnx.importer import build
from mirage_onnx.match.repeated import RegionMaker
from mirage_onnx.rewrite import apply as apply_module
from mirage_onnx.rewrite import model as model_module
from mirage_onnx.tune import emulated, instances, realise

#: Stage -> where the function is that fails, and which of its arguments tells the region.
STAGES = {
  "import": (build, "lower_node", 0),
  "match": (RegionMaker, "make", 1),
  "terms": (judging, "with_right_terms", 0),
  "search": (search_run, "work", 0),
  "verifier": (search_run, "verifier", 1),
  "prediction": (judging, "as_expected", 0),
  "compile": (realise, "tuned", 1),
  "instances": (instances.InstanceChecks, "verdicts", 1),
  "emulated run": (emulated.Emulated, "__call__", 1),
  "plan": (apply_module, "plan_candidate", 0),
  "body": (model_module, "build_body", 1),
}
#: Stages that a run which keeps the results of searches leaves out.
SEARCHING = ("search", "verifier")


class PlantedError(ZeroDivisionError):
  """What no stage expects."""


def nodes_of(arg):
  """The nodes of what a stage is given: an outcome, a region, a job, a replacement or a set of names."""
  if isinstance(arg, list):  # instances of one region
    return nodes_of(arg[0])
  for name in ("region", "nodes", "name"):
    if hasattr(arg, name):
      found = getattr(arg, name)
      return nodes_of(found) if name == "region" else (found,) if isinstance(found, str) else tuple(found)
  return tuple(arg) if isinstance(arg, frozenset) else ()


@contextmanager
def planted(stage, at):
  """``stage`` fails where ``at`` holds of one of the nodes; yields the list of how often it did."""
  where, name, position = STAGES[stage]
  right, hits = getattr(where, name), []

  def wrong(*args, **more):
    if any(map(at, nodes_of(args[position]))):
      hits.append(stage)
      raise PlantedError("planted")
    return right(*args, **more)

  setattr(where, name, wrong)
  try:
    yield hits
  finally:
    setattr(where, name, right)
