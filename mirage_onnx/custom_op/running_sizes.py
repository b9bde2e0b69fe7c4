"""Sizes at which the original runs, of dimensions that nobody has given one.

Small ones are drawn first (``compare_inputs.DEFAULT_DIM``). A model that says "batch" and was traced with one
row runs at one only. A model of images or of sound does not run on four pixels: then all but the first
dimension of each input, which is the batch, grow until it does.
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import product
from typing import Any

import numpy as np

from mirage_onnx.custom_op.compare_inputs import DEFAULT_DIM, FIRST, NAMELESS, draw_one
from mirage_onnx.custom_op.input_facts import InputFacts
from mirage_onnx.errors import MirageError
from mirage_onnx.ir.size_names import names_in

#: What is tried where ``DEFAULT_DIM`` is too small.
LARGER = (32, 64, 256, 512)
#: Numbers in the inputs of one try: a run may hold many times as many.
MOST_NUMBERS = 1 << 22
#: No other size is tried so many seconds after the first: a model may run at none, for another reason.
MOST_S = 10.0

Arrays = dict[str, np.ndarray]


def first_run(
  arguments: Sequence[Any],
  dims: Mapping[str, int],
  int_limits: Mapping[str, int],
  facts: InputFacts,
  run: Callable[[Arrays], Arrays],
) -> tuple[dict[str, int], Arrays, Arrays]:
  """``dims`` with sizes of others at which the model runs, the inputs that were drawn, and its outputs.

  ``run`` raises a MirageError where inputs do not fit. A model that makes nothing at all of them (images of
  no pixel) does not run either, unless it makes nothing of larger ones.

  Raises:
      MirageError: that of the default sizes, where the model runs at none.
  """

  def at(sizes: Mapping[str, int]) -> Arrays:
    return draw_one(arguments, np.random.default_rng(0), FIRST, sizes, int_limits, facts)

  first: MirageError | None = None
  nothing: tuple[dict[str, int], Arrays, Arrays] | None = None
  tried: list[dict[str, int]] = []
  end = time.monotonic() + MOST_S
  for size, rows in product((DEFAULT_DIM, *LARGER), (DEFAULT_DIM, 1)):
    inner = {} if size == DEFAULT_DIM else dict.fromkeys(free_sizes(arguments, facts), size)
    outer = {} if rows == DEFAULT_DIM else dict.fromkeys(batch_sizes(arguments, facts), rows)
    sizes = {**inner, **outer, **dims}
    if sizes in tried or (tried and time.monotonic() > end):
      continue
    tried.append(sizes)
    feeds = at(sizes)
    if inner and sum(x.size for x in feeds.values()) > MOST_NUMBERS:
      continue
    try:
      made = run(feeds)
    except MirageError as error:
      first = first or error
      continue
    if any(x.size for x in made.values()):
      return sizes, feeds, made
    nothing = nothing or (sizes, feeds, made)
  if nothing is None:
    assert first is not None
    raise first
  return nothing


def free_sizes(arguments: Sequence[Any], facts: InputFacts) -> set[str]:
  """Names of dimensions that may grow: no batch, no formula of others, nothing that an operator fixes."""
  inner = {d for v in arguments for d in v.shape[int(len(v.shape) > 1) :] if not isinstance(d, int)}
  return _named(inner, facts) - batch_sizes(arguments, facts) | ({NAMELESS} if not all(inner) else set())


def batch_sizes(arguments: Sequence[Any], facts: InputFacts) -> set[str]:
  """Names of the first of several dimensions."""
  return _named((v.shape[0] for v in arguments if len(v.shape) > 1), facts)


def _named(dims: Iterable[int | str | None], facts: InputFacts) -> set[str]:
  known = {*facts.sizes, *facts.totals()}
  return {d for d in dims if d and isinstance(d, str) and d not in known and not names_in(d)}
