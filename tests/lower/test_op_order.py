"""Orders of steps against every way to spread them over phases, and on whole kernels."""

import random
from itertools import cycle, product

import pytest
from golden_texts import PROGRAMS
from tiled_kernels import ATTENTION, case, errors

from mirage_onnx.lower import arrange
from mirage_onnx.lower.arrange import most_held
from mirage_onnx.lower.op_order import OrderedStep, fewest_barriers
from mirage_onnx.lower.steps import ThreadBarrier


def _set(*items):
  return frozenset(items)


def _draw(rng, count, *, loop):
  """Steps that take registers and tiles of earlier ones, and often exchange."""
  nodes, published = [], []
  for number in range(count):
    before = [i for n in nodes for i in n.makes]
    uses = _set(*rng.sample(before, min(len(before), rng.randint(0, 2))))
    kind, late = rng.random(), not loop and rng.random() < 0.1
    if published and (kind < 0.5 or number == count - 1):
      tile, ranks = published.pop(rng.randrange(len(published)))
      nodes.append(OrderedStep(_set(number), uses, _set(tile), ranks=ranks, late=late))
    elif kind < 0.85:
      published += [(f"t{number}", not loop and rng.random() < 0.3)] * rng.randint(1, 2)
      nodes.append(OrderedStep(uses=uses, writes=_set(f"t{number}"), late=late))
    else:
      nodes.append(OrderedStep(_set(rng.choice([number, *before])), uses, late=late))
  return nodes


def _fits(nodes, phases, kinds, loop):
  """Whether the last of these steps may stand in its phase; ``kinds``: 1 a barrier of ranks."""
  *_, b = own = nodes[: len(phases)]
  p = phases[-1]
  for a, q in zip(own[:-1], phases, strict=False):
    meet = bool(a.writes & (b.reads | b.writes) or a.reads & b.writes)
    need = 1 + (b.ranks and bool(a.writes & b.reads))
    bound = meet or a.makes & (b.uses | b.makes) or a.uses & b.makes
    apart = any(k + 1 >= need for k in kinds[q:p])
    if (bound and p < q) or (meet and not apart) or (meet and loop and p == q + len(kinds)):
      return False
  return (p > 0 or not b.late) and not (loop and b.writes and not kinds)


def _possible(nodes, kinds, loop, phases=()):
  """Whether there are phases for the steps with these barriers: every way is tried."""
  return len(phases) == len(nodes) or any(
    _fits(nodes, (*phases, p), kinds, loop) and _possible(nodes, kinds, loop, (*phases, p))
    for p in range(len(kinds) + 1)
  )


def _check(nodes, loop):
  order = fewest_barriers(nodes, (9, 9), loop=loop)
  flat = [i for phase in order.phases for i in phase]
  at = dict(sorted((i, p) for p, own in enumerate(order.phases) for i in own))
  for n, b in enumerate(nodes):
    assert _fits(nodes, [*at.values()][: n + 1], order.clusters, loop)
    for i, a in enumerate(nodes[:n]):
      bound = a.makes & (b.uses | b.makes) or a.uses & b.makes
      assert not bound or flat.index(i) < flat.index(n)
  cost = sum(order.clusters), len(order.clusters) - sum(order.clusters)
  for length in range(min(sum(cost) + 2, 5)):
    for kinds in product((0, 1), repeat=length):
      if (sum(kinds), length - sum(kinds)) < cost:
        assert not _possible(nodes, kinds, loop), (nodes, kinds)
  assert cost == (0, 0) or fewest_barriers(nodes, cost, loop=loop) is None
  return cost


@pytest.mark.parametrize("loop", [False, True])
def test_fewest_barriers(loop):
  rng, costs = random.Random(loop), set()
  for n in range(500):
    costs.add(_check(_draw(rng, 2 + n % 7, loop=loop), loop))
  assert len(costs) > (2 if loop else 6), costs


def test_two_exchanges_meet_at_one_barrier():
  """In the order as written but for the step that has to come earlier."""
  nodes = [
    OrderedStep(uses=_set(), writes=_set("a")), OrderedStep(_set(1), reads=_set("a")),
    OrderedStep(_set(2), _set(1)), OrderedStep(_set(3)), OrderedStep(uses=_set(3), writes=_set("b")),
    OrderedStep(_set(5), _set(2), _set("b")),
  ]  # fmt: skip
  order = fewest_barriers(nodes, (0, 2))
  assert order.phases == ((0, 3, 4), (1, 2, 5))
  runs = [[nodes[i] for i in p] for p in ((0, 1, 2, 3, 4), (0, 3, 4, 1, 2))]
  assert [most_held(run, {3: 8, 2: 2}, _set(2)) for run in runs] == [10, 8]


ATTENDING = {"cluster": 2, "loop_tile": 16, "a0": 2, "a1": 64, "a2": 16, "a3": 8, "a4": 16}
#: o0 = (i1 i0) (i2 i0), weights read from device memory.
GATED = PROGRAMS["product_of_products"]


def _met(c, *, cluster):
  return sum(isinstance(s, ThreadBarrier) and s.cluster == cluster for s in c.threads().steps.after)


def test_an_order_that_holds_too_much(monkeypatch):
  """Sums of ranks meet at one barrier of the cluster, unless that takes too many registers."""
  c = case(ATTENTION, 8, 1, warps=4, **ATTENDING)
  assert _met(c, cluster=True) == 2
  held = cycle((1000, 0))
  monkeypatch.setattr(arrange, "most_held", lambda *_: next(held))
  assert _met(c, cluster=True) == 3


def test_contractions_with_many_loads_keep_their_place():
  cases = [case(GATED, rows, 8, warps=4, a0=8, a1=1024, a2=48) for rows in (16, 48)]
  assert [_met(c, cluster=False) for c in cases] == [2, 3]
  assert max(errors(cases, 4)) < 1e-2
