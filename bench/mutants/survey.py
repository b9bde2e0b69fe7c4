"""What passes between stages when a subject is optimized without a fault: what faults are made of."""

import os
import pickle
from dataclasses import dataclass
from typing import Any

import onnx

from mutants.harness import optimize
from mutants.hooks import patched, production, watching

PLANS = ("mirage_onnx.rewrite.apply:plan_candidate",)
TEXTS = ("mirage_onnx.compiler.candidates:emit_kernel",)
BODIES = ("mirage_onnx.rewrite.model:build_body",)
APPLY = "mirage_onnx.rewrite.apply:apply"


@dataclass(frozen=True)
class Survey:
  """What was seen.

  ``plans``: every ``Planned``; ``sources``: every kernel's text; ``bodies``: every function;
  ``chosen``: the (region, compiled) pairs that the rewriter is given.
  """

  plans: tuple[Any, ...]
  sources: tuple[Any, ...]
  bodies: tuple[Any, ...]
  chosen: tuple[Any, ...]


def survey(bench, name):
  """Of one subject, kept in the bench's folder; found in a child, for it may run onnxruntime."""
  path = bench.folder / f"{name}.survey"
  if not path.exists():
    child = os.fork()
    if child == 0:
      status = 1
      try:
        path.write_bytes(pickle.dumps(_survey(bench, name)))
        status = 0
      finally:
        os._exit(status)
    _, status = os.waitpid(child, 0)
    assert status == 0, f"no survey of {name}"
  plans, sources, bodies, chosen = pickle.loads(path.read_bytes())
  return Survey(plans, sources, tuple(map(onnx.FunctionProto.FromString, bodies)), chosen)


def _survey(bench, name):
  chosen = []
  apply = production(APPLY)

  def watched(loaded, pairs, *args, **more):
    chosen.append(tuple(pairs))
    return apply(loaded, pairs, *args, **more)

  with (
    bench.searches(name).give(), watching(*PLANS) as plans, watching(*TEXTS) as sources,
    watching(*BODIES) as bodies, patched(watched, APPLY),
  ):  # fmt: skip
    optimize(bench.original(name), bench.folder / f"{name}.survey.onnx")
  return (
    tuple({p.plan.to_text(): p for p in plans}.values()),
    tuple({s.text: s for s in sources}.values()),
    tuple({b.function.SerializeToString(): None for b in bodies}),
    chosen[0],
  )
