"""The search of a run that has one region, with what is known of its family."""

from mirage_onnx.superopt.hooks import Hooks
from mirage_onnx.superopt.shared_searches import SharedSearches, work


def search_structure(region, scope, verify, store, *, budget_s=900.0, hooks=None):
  """Its result; ``store`` learns it, and its probes."""
  shared = SharedSearches([region], store, lambda: budget_s)

  def ask(job):
    return work(job, scope, verify, hooks or Hooks())

  ((_, result),) = shared.results(ask)
  for i in sorted(shared._unlearned):
    shared.learn(i, ask, budget_s)
  return result
