"""Defaults of options from a file of the working folder: ``mirage.toml``, else ``pyproject.toml``.

    [optimize]            # in pyproject.toml: [tool.mirage-onnx.optimize]
    budget = 120
    shapes = ["batch=1,8", "seq=128"]

A table a verb, a key an option by its long name. The command line wins. Files that are somewhere above
are not looked for: what a command does depends on its folder alone.
"""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mirage_onnx.bounded_file import read_bounded
from mirage_onnx.errors import MirageError

OWN, PROJECT, TABLE = "mirage.toml", "pyproject.toml", "mirage-onnx"
#: No file of settings is larger; and of the parts of a dotted key, the parser's time is the square.
MOST_BYTES, MOST_STEPS = 1 << 20, 1 << 21
#: Options that are of one call.
_OF_A_CALL = ("json", "help", "output")


@dataclass(frozen=True, slots=True)
class Config:
  """``defaults``: by verb and parameter, as typer takes them. ``source``: the file, or ""."""

  source: str
  defaults: Mapping[str, Mapping[str, Any]]


def read_config(folder: Path, verbs: Mapping[str, Any]) -> Config:
  """The defaults that a folder gives for the options of ``verbs``.

  Raises:
      MirageError: CONFIG_INVALID for a file that is no TOML, or names a verb or option that is none.
  """
  own = _load(folder / OWN)
  if own is not None:
    return Config(OWN, _checked(OWN, own, verbs))
  project = _load(folder / PROJECT)
  tool = (project or {}).get("tool", {})
  table = tool.get(TABLE) if isinstance(tool, dict) else None
  if table is None:
    return Config("", {})
  return Config(PROJECT, _checked(PROJECT, table, verbs))


def _load(path: Path) -> dict[str, Any] | None:
  try:
    text = read_bounded(path, MOST_BYTES).decode("utf-8")
    if sum(line.count(".") ** 2 for line in text.splitlines()) > MOST_STEPS:
      raise ValueError("its keys have too many parts")
    return tomllib.loads(text)
  except FileNotFoundError:
    return None
  except (OSError, ValueError, RecursionError) as error:
    if path.name == PROJECT:
      return None  # it is not ours to judge
    why = " ".join(str(getattr(error, "strerror", None) or error).split())[:200]
    raise MirageError("CONFIG_INVALID", f"{path.name}: {why}") from error


def _checked(source: str, tables: Any, verbs: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
  if not isinstance(tables, dict):
    raise MirageError("CONFIG_INVALID", f"{source}: {TABLE} is no table")
  found: dict[str, dict[str, Any]] = {}
  for verb, table in tables.items():
    if verb not in verbs:
      known = ", ".join(verbs)
      raise MirageError("CONFIG_INVALID", f"{source}: no verb is called {verb!r}; there are {known}")
    if not isinstance(table, dict):
      raise MirageError("CONFIG_INVALID", f"{source}: {verb} is no table")
    options = _options(verbs[verb])
    for key, value in table.items():
      if (name := options.get(key.replace("_", "-"))) is None:
        known = ", ".join(sorted(options))
        raise MirageError("CONFIG_INVALID", f"{source}: {verb} has no option {key!r}; it has {known}")
      if isinstance(value, dict):
        raise MirageError("CONFIG_INVALID", f"{source}: {verb}.{key} is a table")
      found.setdefault(verb, {})[name] = value
  return found


def _options(command: Any) -> dict[str, str]:
  """Long names without dashes -> the parameter; of switches the name that turns them on."""
  options = (p for p in command.params if p.param_type_name == "option")
  names = {o.removeprefix("--"): str(p.name) for p in options for o in p.opts if o.startswith("--")}
  return {name: parameter for name, parameter in names.items() if name not in _OF_A_CALL}
