"""What lies beside a model, changed somewhere: settings, a lock, a profile, a folder's config.

``made(seed, text, is_json)``: of the text that is right one that is not, by its tokens, or by what its JSON
holds. Some are right still.
"""

import copy
import json
import random
import re
import sys

_TOKENS = re.compile(r"\s+|[A-Za-z_]+|\d+|[^\sA-Za-z_\d]")
_WORDS = ("", "\n", "(", "[" * 40, "{", "-", "#", '"', "null", "\0", "\u2028", "9" * 25, "1e999", "..", "'''")
_NUMBERS = (0, 1, -1, 2**31, 2**63, 2**64, 10**30, int("1" * 400))
_VALUES = (
  None, [], {}, "", 0, -1, 1.5, 1e308, True, float("nan"), float("inf"), 10**400, "x", "\ud800", "\0", [[]],
  {"": None}, "../model.onnx", "/etc/passwd", [1] * 1000,
)  # fmt: skip


def made(seed, text, is_json):
  """Another text, as bytes: half a character is what it is in UTF-8, which is none."""
  rng = random.Random(seed)
  if is_json and rng.random() < 0.75:
    value = json.loads(text)
    for _ in range(rng.choice((1, 1, 2))):
      value = _changed(rng, value)
    text = _text(value)
  else:
    for _ in range(rng.choice((1, 1, 2, 5))):
      text = _other_tokens(rng, text)
  return text.encode("utf-8", "surrogatepass")


def _other_tokens(rng, text):
  tokens = _TOKENS.findall(text) or [""]
  i, j = rng.randrange(len(tokens)), rng.randrange(len(tokens))
  how = rng.randrange(6)
  if how == 0:
    del tokens[i]
  elif how == 1:
    tokens.insert(i, tokens[j])
  elif how == 2:
    tokens[i], tokens[j] = tokens[j], tokens[i]
  elif how == 3:
    tokens[i:i] = tokens[i : i + rng.randrange(1, 30)] * rng.choice((1, 2, 50))
  elif how == 4 and any(map(str.isdigit, tokens)):
    tokens[rng.choice([k for k, t in enumerate(tokens) if t.isdigit()])] = str(rng.choice(_NUMBERS))
  else:
    tokens[i] = rng.choice(_WORDS)
  return "".join(tokens)


def _changed(rng, value):
  value = copy.deepcopy(value)
  places = list(_places(value))
  if not places:
    return rng.choice(_VALUES)
  holder, key = rng.choice(places)
  how, old = rng.randrange(6), holder[key]
  if how == 0:
    del holder[key]
  elif how == 1:
    holder[key] = rng.choice(_VALUES)
  elif how == 2:
    other, place = rng.choice(places)
    holder[key] = copy.deepcopy(other[place])
  elif how == 3:
    for _ in range(rng.choice((2, 50, 300))):
      old = [old] if rng.random() < 0.7 else {"a": old}
    holder[key] = old
  elif isinstance(holder, dict):
    holder[f"{key}x"] = copy.deepcopy(old)
  else:
    holder.insert(key, copy.deepcopy(old))
  if how > 4 and isinstance(old, str):
    holder[key] = _other_tokens(rng, old)
  return value


def _places(value, depth=0):
  """(a container, a key of it) of all that there is, not too deep."""
  if isinstance(value, dict | list) and depth < 40:
    for key in list(value) if isinstance(value, dict) else range(len(value)):
      yield value, key
      yield from _places(value[key], depth + 1)


def _text(value):
  limit = sys.getrecursionlimit()
  sys.setrecursionlimit(20_000)
  try:
    return json.dumps(value)
  finally:
    sys.setrecursionlimit(limit)
