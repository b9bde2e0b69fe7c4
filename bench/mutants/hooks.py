"""Where values pass from stage to stage: a fault replaces one of them.

A hook is one or more names of production code that are bound to the same function. ``watching``
records what passes, ``changed`` lets another value pass in place of one that was recorded.
"""

import importlib
from contextlib import ExitStack, contextmanager
from unittest import mock


@contextmanager
def patched(value, *places):
  """``value`` under every "module:name" (or "module:Class.name") of ``places``."""
  with ExitStack() as stack:
    for place in places:
      module, name = place.split(":")
      owner = importlib.import_module(module)
      *path, last = name.split(".")
      for part in path:
        owner = getattr(owner, part)
      stack.enter_context(mock.patch.object(owner, last, value))
    yield


def production(place):
  """What a place holds."""
  module, name = place.split(":")
  found = importlib.import_module(module)
  for part in name.split("."):
    found = getattr(found, part)
  return found


@contextmanager
def watching(place, *others):
  """Yields the list of what the function at ``place`` returns meanwhile."""
  seen, function = [], production(place)

  def watch(*args, **kwargs):
    seen.append(function(*args, **kwargs))
    return seen[-1]

  with patched(watch, place, *others):
    yield seen


@contextmanager
def changed(same, change, place, *others):
  """The function at ``place`` returns ``change(value)`` where ``same(value)``."""
  function = production(place)

  def other(*args, **kwargs):
    value = function(*args, **kwargs)
    return change(value) if same(value) else value

  with patched(other, place, *others):
    yield
