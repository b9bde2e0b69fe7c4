"""HTML as text: whatever comes from a model is escaped, once, at the one place where it becomes markup."""

from __future__ import annotations

import json
from collections.abc import Iterable
from html import escape
from typing import Any

from mirage_onnx.inspection.printable import printable

#: Elements without an end.
_EMPTY = frozenset({"br", "hr", "img", "input", "link", "meta", "col"})


class Markup(str):
  """Text that is HTML already."""

  __slots__ = ()


Child = str | int | float | None
Children = Child | Iterable["Children"]


def markup(*children: Children) -> Markup:
  """Children one after the other: markup as it is, other text escaped, None is nothing."""
  return Markup("".join(_parts(children)))


def _parts(child: Children) -> Iterable[str]:
  if child is None:
    return
  if isinstance(child, Markup):
    yield str(child)
  elif isinstance(child, (str, int, float)):
    yield escape(printable(str(child)))
  else:
    for each in child:
      yield from _parts(each)


def el(tag: str, *children: Children, **attributes: Child | bool) -> Markup:
  """An element. An attribute that is None or False is left out, True has no value.

  ``_`` in a name is ``-`` (``aria_label``); one at its end is dropped (``class_``).
  """
  head = tag
  for name, value in attributes.items():
    if value is None or value is False:
      continue
    name = name.rstrip("_").replace("_", "-")
    head += f" {name}" if value is True else f' {name}="{escape(printable(str(value)))}"'
  if tag in _EMPTY:
    return Markup(f"<{head}>")
  return Markup(f"<{head}>{markup(*children)}</{tag}>")


def script_json(value: Any) -> Markup:
  """JSON for the inside of a script element: no text in it can end that, or begin a comment."""
  text = json.dumps(value, ensure_ascii=True, separators=(",", ":"), allow_nan=False)
  return Markup(text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026"))


def table(
  head: Iterable[Children], rows: Iterable[Iterable[Children]], caption: str, numbers: Iterable[int] = ()
) -> Markup:
  """A table that scrolls by itself where it is too wide; ``numbers``: columns of numbers."""
  right = set(numbers)

  def cell(tag: str, i: int, child: Children) -> Markup:
    return el(tag, child, class_="n" if i in right else None, scope="col" if tag == "th" else None)

  body = [el("tr", [cell("td", i, c) for i, c in enumerate(row)]) for row in rows]
  return el(
    "div",
    el(
      "table",
      el("caption", caption),
      el("thead", el("tr", [cell("th", i, c) for i, c in enumerate(head)])),
      el("tbody", body),
    ),
    class_="scroll", role="region", tabindex=0, aria_label=caption,
  )  # fmt: skip


def us(value: float | None) -> str:
  """A time in microseconds, with as many digits as are worth it."""
  if value is None:
    return "unknown"
  if value >= 1000:
    return f"{value:,.0f}"
  return f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def times(before: float | None, after: float | None) -> str:
  """How many times as fast."""
  return f"{before / after:.2f}×" if before is not None and after else "–"


def size(count: float) -> str:
  """Bytes."""
  for unit, one in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
    if count >= one:
      return f"{count / one:.1f} {unit}"
  return f"{count:.0f} B"


def short(name: str, most: int = 40) -> Markup:
  """A name of the model; of a long one the end, with all of it behind."""
  if len(name) <= most:
    return el("code", name)
  return el("code", f"…{name[1 - most :]}", title=name)
