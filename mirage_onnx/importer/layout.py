"""Operators that move or rename dimensions without arithmetic."""

from math import prod

import numpy as np

from mirage_onnx.importer.context import Context, shape_of
from mirage_onnx.importer.slicing import rows_of_run


def transpose(c: Context) -> None:
  x = c.tensor(0)
  permutation = c.attribute("perm") or tuple(reversed(range(len(shape_of(x)))))
  c.finish(c.transpose(x, tuple(permutation)))


def reshape(c: Context) -> None:
  """Reshape, Squeeze, Unsqueeze, Flatten: the result's shape says it all."""
  x, shape = c.tensor(0), c.output().shape
  if shape is None:
    raise c.reject("the shape of the result is not known", "RANK_UNKNOWN")
  elements, known = prod(shape_of(x)), prod(d for d in shape if isinstance(d, int))
  unknown = [d for d in shape if isinstance(d, str)]
  if len(unknown) > 1 or (unknown and (not known or elements % known)):
    raise c.reject(f"the shape of the result is {c.symbols.show(shape)}", "DYNAMIC_DIM")
  # The only new name is what the elements leave: -1 in the model's text.
  c.finish(c.reshape(x, tuple(elements // known if isinstance(d, str) else d for d in shape)))


def gather_nd(c: Context) -> None:
  """A reshape where the indices name every element once, in order: how exporters slice a mask.

  What a run picks are the rows of a table (the weights of a token's experts).
  """
  x, target = shape_of(c.tensor(0)), c.output()
  if c.known(1) is None:
    by = c.tensor(1).shape
    if c.attribute("batch_dims", 0) or (by is not None and by[-1:] != (1,)):
      raise c.reject("picks other parts than rows where a run says")
    rows_of_run(c, by and by[:-1])
    return
  if not target.is_static or any(map(c.symbols.is_symbolic, x)):
    raise c.reject("what it picks shows only a run", "DYNAMIC_DIM")
  indices = c.array(1, "the indices")
  if c.attribute("batch_dims", 0) or c.tensor(1).shape != (*shape_of(target), len(x)):
    raise c.reject("picks parts of a tensor")
  places = np.where(indices < 0, indices + np.array(x), indices).reshape(-1, len(x))
  inside = ((places >= 0) & (places < np.array(x))).all()
  if not (inside and np.array_equal(np.ravel_multi_index(tuple(places.T), x), np.arange(prod(x)))):
    raise c.reject("picks other elements than all of them, in order")
  c.finish(c.reshape(c.tensor(0), shape_of(target)))


def expand(c: Context) -> None:
  """numpy broadcasting; a step of its own only where elements are repeated."""
  x, want = c.tensor(0), c.output()
  if want.shape is None:
    raise c.reject("the shape of the result is not known", "RANK_UNKNOWN")
  if not want.is_static:
    raise c.reject(f"the shape of the result is {c.symbols.show(want.shape)}", "DYNAMIC_DIM")
  have, shape = shape_of(x), shape_of(want)
  if c.broadcast(have, shape) != shape:
    raise c.reject(f"{c.symbols.show(have)} to {c.symbols.show(shape)}", "DYNAMIC_DIM")
  if [d for d in have if d != 1] == [d for d in shape if d != 1]:
    c.finish(c.reshape(x, shape))
    return
  if 0 in shape:
    raise c.reject(f"repeats elements: {c.symbols.show(have)} to {c.symbols.show(shape)}")
  c.finish(c.expand(x, shape))
