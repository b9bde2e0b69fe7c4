"""Who holds an element: places and conditions of the text, evaluated for every lane and warp."""

import random
import re
from collections import Counter
from itertools import product
from math import prod
from types import SimpleNamespace
from typing import Any

import numpy as np

from mirage_onnx.codegen.source import Writer
from mirage_onnx.codegen.tiled.spot import Spot, digits, owner
from mirage_onnx.lower.forms import MMA, Form, Warps, length, vector
from mirage_onnx.lower.pieces import Piece

PTX = {"ptx::lane()": "lane", "ptx::warp()": "warp", "/": "//"}


def _value(text, names):
  for c, python in PTX.items():
    text = text.replace(c, python)
  return eval(text, {}, names)


def _declare(writer, names):
  for name, text in re.findall(r"const int (\w+) = (.*);", writer.text):
    names[name] = _value(text, names)


def _threads(warps):
  lane = np.tile(np.arange(32), warps.total)
  names = {"lane": lane, "warp": np.arange(32 * warps.total) // 32}
  names |= {"g": lane // 4, "t": lane % 4}
  writer = Writer()
  digits(writer, warps)
  _declare(writer, names)
  return names


def _holders(form, warps):
  """Element -> times it is held, times it is owned; the registers of all lanes that hold none."""
  threads = _threads(warps)
  ranges = [(f"q_{p.name}", p.length) for p in form.rest]
  ranges += [("i", warps.tiles(form.g, form.lanes.groups))] if form.g else []
  ranges += [("j", warps.tiles(form.t, form.lanes.inner))] if form.t else []
  ranges += [("e", form.lanes.pack)] if form.t and form.lanes.pack > 1 else []
  assert prod(n for _, n in ranges) == warps.registers(form)
  pieces = sorted({*form.g, *form.t, *form.rest})
  held, owned, empty = Counter[Any](), Counter[Any](), 0
  for at in product(*(range(n) for _, n in ranges)):
    writer, names = Writer(), dict(threads)
    index = {name: str(i) for (name, _), i in zip(ranges, at, strict=True)}
    spot = Spot(writer, SimpleNamespace(), warps, form, index)
    spot.declare(pieces)
    _declare(writer, names)
    there = np.ones(len(names["lane"]), bool)
    for condition in spot.held(pieces):
      there &= _value(condition, names)
    mine = there.copy()
    for condition in owner(form, warps):
      mine &= _value(condition, names)
    places = [np.broadcast_to(_value(spot.known[p], names), there.shape) for p in pieces]
    for thread in range(len(there)):
      element = tuple(int(p[thread]) for p in places)
      held[element] += bool(there[thread])
      owned[element] += bool(mine[thread])
    empty += int((~there).sum())
  return +held, +owned, empty


def _random_form(rng):
  names = iter(("a0", "a1", "a2", "a3", "a4"))
  sides = []
  for most in (2, 2, 1):
    count = rng.randrange(most + 1)
    sides.append(tuple(Piece(next(names), "", rng.choice([2, 3, 8, 9, 16]), True, 1) for _ in range(count)))
  g, t, rest = sides
  lanes = rng.choice([MMA, vector(1), vector(2)])
  other = (Piece("z", "", 32, True, 1),)
  total, counts = rng.choice([1, 2, 4, 8]), []
  left = total
  for side in (g, t, other):
    n = rng.choice([n for n in (1, 2, 4, 8) if left % n == 0]) if side else 1
    left //= n
    counts.append((side, n))
  even = frozenset(s for s in (g, t) if s and rng.random() < 0.5)
  return Form(lanes, g, t, rest), Warps(tuple(c for c in counts if c[0]), total, even)


def test_every_element_is_held_by_whom_the_form_says():
  rng, padded, whole = random.Random(3), 0, 0
  for _ in range(60):
    form, warps = _random_form(rng)
    pieces = sorted({*form.g, *form.t, *form.rest})
    elements = set(product(*(range(p.length) for p in pieces)))
    held, owned, empty = _holders(form, warps)
    lanes = (1 if form.g else form.lanes.groups) * (1 if form.t else form.lanes.lanes)
    copies = lanes * prod(n for s, n in warps.digits if s not in (form.g, form.t))
    assert set(held) == elements
    assert set(held.values()) == {copies * warps.spare}
    assert owned == dict.fromkeys(elements, 1)
    covered = (not form.g or warps.covers(form.g, form.lanes.groups)) and (
      not form.t or warps.covers(form.t, form.lanes.inner)
    )
    assert covered == (empty == 0)
    padded, whole = padded + (not covered), whole + covered
  assert min(padded, whole) > 5


def test_fragments_are_those_of_the_instruction():
  """Element (r, c) of mma.m16n8k16's accumulator is in lane 4 (r % 8) + c % 8 / 2."""
  rows, columns = Piece("a0", "", 16, True, 1), Piece("a1", "", 8, True, 1)
  form, warps = Form(MMA, (rows,), (columns,), ()), Warps((), 1)
  assert warps.shape(form) == (2, 1, 2)
  spot = Spot(Writer(), SimpleNamespace(), warps, form, {"i": "1", "j": "0", "e": "1"})
  spot.declare((rows, columns))
  names = _threads(warps)
  _declare(spot.writer, names)
  assert list(names["r"]) == [8 + lane // 4 for lane in range(32)]
  assert list(names["c"]) == [lane % 4 * 2 + 1 for lane in range(32)]


def test_a_part_of_a_form():
  a, b, c = (Piece(f"a{n}", "", 8, True, 1) for n in range(3))
  form = Form(MMA, (a, b), (c,), ())
  assert form.of([a]).text == "g(a0 a1)"
  assert form.of([a, c]).text == "g(a0 a1) t(a2)"
  assert form.of([]).text == "scalar"
  assert Form(vector(2), (), (c,), ()).of([a, c]).text == "v2 t(a2) rest(a0)"
  assert length(form.g) == 64


def test_even_tiles():
  """A contraction takes 16 rows: a side of more than 8 gets tiles in pairs."""
  side, short = (Piece("a0", "", 24, True, 1),), (Piece("a1", "", 8, True, 1),)
  warps = Warps((), 1, frozenset((side, short)))
  assert (warps.tiles(side, 8), warps.tiles(short, 8)) == (4, 1)
  assert Warps((), 1).tiles(side, 8) == 3
