"""Records of the origin of kernels (``provenance.py``) with numbers, names and texts at their ends, by seed."""

import contextlib
import json
import random
import re

NUMBER = re.compile(r"(?<![\w.%])\d+(?![\w.])")
EDGES = ("0", "1", "2", "3", "5", "7", "33", "1023", "1025", "65536", "1048577", "2147483648", "1099511627776",
         "9223372036854775807", "18446744073709551616", "1" + "0" * 40, "-1", "00")  # fmt: skip
NAMES = (
  "",
  "a b",
  "a\nb",
  "x" * 64,
  "x" * 65,
  "int",
  "main",
  "__global__",
  'x"); //',
  "é",
  "%1",
  "a0/2",
  "_",
  "9a",
  "a0'",
  "\0",
)


def made(seed, text):
  """The record of ``text`` (JSON), changed in one to three places."""
  rng = random.Random(f"record {seed}")
  record = json.loads(text)
  for _ in range(rng.choice((1, 1, 2, 3))):
    with contextlib.suppress(AttributeError, LookupError, TypeError, ValueError):  # what was changed before
      KINDS[rng.randrange(len(KINDS))](rng, record)
  return json.dumps(record).encode()


def _number(rng, text):
  found = list(NUMBER.finditer(text))
  if not found:
    return text
  m = rng.choice(found)
  return text[: m.start()] + rng.choice(EDGES) + text[m.end() :]


def numbers_of_a_graph(rng, record):
  record["ugraph"] = _number(rng, record["ugraph"])


def numbers_of_params(rng, record):
  if record["params"]:
    k = rng.randrange(len(record["params"]))
    record["params"][k] = _number(rng, record["params"][k])


def numbers_of_a_region(rng, record):
  record["region"] = _number(rng, record["region"])


def numbers_of_a_plan(rng, record):
  record["interface"]["head"] = _number(rng, record["interface"]["head"])


def names(rng, record):
  what = rng.choice(("ugraph", "region"))
  words = sorted(set(re.findall(r"\b[a-z]\d+\b", record[what])))
  if words:
    old, new = rng.choice(words), rng.choice(NAMES)
    record[what] = re.sub(rf"\b{old}\b", lambda _: new, record[what])


def lines(rng, record):
  what = rng.choice(("ugraph", "region"))
  found = record[what].split("\n")
  k = rng.randrange(len(found))
  if rng.random() < 0.4:
    found[k:k] = [found[k]] * rng.choice((1, 2, 50, 3000))
  elif rng.random() < 0.5:
    del found[k]
  else:
    j = rng.randrange(len(found))
    found[k], found[j] = found[j], found[k]
  record[what] = "\n".join(found)


def kernels(rng, record):
  found = record["kernels"]
  what = rng.randrange(5)
  if what == 0:
    record["kernels"] = found * rng.choice((0, 2, 1000))
  elif what == 1:
    found[0]["name"] = rng.choice(NAMES)
  elif what == 2:
    found[0]["sha256"] = rng.choice(("", "0" * 64, found[0]["sha256"].upper(), 5, None))
  elif what == 3:
    found.reverse()
  else:
    record["kernels"] = {"name": found[0]}


def interface(rng, record):
  i = record["interface"]
  what = rng.randrange(6)
  if what == 0:
    side = rng.choice(("inputs", "outputs"))
    name = rng.choice([*i[side], "zz"])
    i[side][name] = rng.choice((0, 1, -1, 99, 1 << 40, "0", 1.5, None, [], True))
  elif what == 1:
    i["sizes"] = {rng.choice(("a0", "zz")): rng.choice(("d0.0", "d9.9", "1," * 2000, "", 5, "d0.0,0,mod"))}
  elif what == 2:
    i["head"] = i["head"] + rng.choice(("variant\n", "output f32 1\n", "x", "workspace 5\n", "\n" * 100))
  elif what == 3:
    del i[rng.choice(sorted(i))]
  elif what == 4:
    record["interface"] = rng.choice((None, [], "head", 5, {"head": i}))
  else:
    side = rng.choice(("inputs", "outputs"))
    values = list(i[side].values())
    rng.shuffle(values)
    i[side] = dict(zip(i[side], values, strict=True))


def facts(rng, record):
  record[rng.choice(("target", "generator", "nvrtc", "region", "ugraph", "params"))] = rng.choice(
    (None, "", "H200", "h200", "local", 5, [], {}, ["x"], "9" * 100_000, [[[]]], True)
  )


def deep(rng, record):
  nested = []
  for _ in range(rng.choice((10, 200))):
    nested = [nested]
  record[rng.choice(sorted(record))] = nested


KINDS = (
  numbers_of_a_graph, numbers_of_a_graph, numbers_of_params, numbers_of_params, numbers_of_a_region, numbers_of_a_plan,
  names, lines, kernels, interface, facts, deep,
)  # fmt: skip
