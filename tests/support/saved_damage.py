"""Random damage to decoded JSON: what a file may look like after anything happened to it."""

import copy

NUMBERS = (-2, -1, 0, 1, 2, 3, 4, 8, 64, 921, 1000, 1003, 1006, 1009, 10**12)
OTHERS = (
  None, True, 1.5, "", "x", "tb_exp_op", "tb_matmul_op", "kn_exp_op", [], {}, [1, 2], {"x": 1},
)  # fmt: skip


def damaged(graph, rng, changes=1):
  """A copy with this many places changed."""
  result = copy.deepcopy(graph)
  for _ in range(changes):
    places = list(_places(result))
    holder, key = places[rng.integers(len(places))]
    value = holder[key]
    choice = rng.random()
    if choice < 0.15:
      del holder[key]
    elif choice < 0.25 and isinstance(holder, list):
      holder.insert(key, copy.deepcopy(value))
    elif choice < 0.35 and isinstance(holder, list):
      other = int(rng.integers(len(holder)))
      holder[key], holder[other] = holder[other], holder[key]
    elif choice < 0.85 or isinstance(value, int):
      holder[key] = NUMBERS[rng.integers(len(NUMBERS))]
    else:
      holder[key] = copy.deepcopy(OTHERS[rng.integers(len(OTHERS))])
  return result


def _places(x):
  if isinstance(x, dict | list):
    for key in list(x) if isinstance(x, dict) else range(len(x)):
      yield x, key
      yield from _places(x[key])
