"""Random block graphs match float64 in the emulator with all checks on.

A hundred times as many, and tables of what they consist of: ``python bench/kernel_fuzz.py``
(bench/results/random_kernels.txt).
"""

import random
import re
from collections import Counter
from dataclasses import replace
from itertools import product, repeat

import pytest
from random_kernel_oracle import oracle
from random_kernel_run import Subject, compiled, emitted, emulate, run_seeds
from random_kernels import random_kernel

from mirage_onnx.ir.dtype import DType
from mirage_onnx.targets import get_target

FAST, ALL = 30, 170
MOST_REFUSED = 0.05


def check(outcomes):
  found = list(outcomes)
  bad = [str(o) for o in found if o.is_bad]
  assert not bad, "\n".join(bad)
  refused = [str(o) for o in found if o.kind == "refused"]
  assert len(refused) <= MOST_REFUSED * len(found), "\n".join(refused)


def test_random_kernels():
  check(run_seeds(range(FAST)))


@pytest.mark.parametrize("arch", ["sm_86", "sm_120a"])
def test_with_the_features_of_others(arch):
  """Without clusters; without dependent launches, too. More of them: ``bench/every_gpu.py``."""
  check(run_seeds(range(60, 80), target=get_target(arch)))


@pytest.mark.slow
def test_more_random_kernels():
  check(run_seeds(range(FAST, ALL)))


def test_maxima_round_to_their_type():
  """Seed 12849 subtracts two maxima, in fp16 and in fp32, of the same values: all types there."""
  found = random_kernel(12849)
  (kernel,), (numbers,) = found.graph.kernels, found.params
  subjects = []
  for ranks, *types in product((1, 2), *repeat((DType.F16, DType.F32), 4)):
    ops = list(kernel.ops)
    for at, dtype in zip((5, 6, 7, 8), types, strict=True):
      ops[at] = replace(ops[at], dtype=dtype)
    graph = replace(found.graph, kernels=(replace(kernel, ops=tuple(ops)),))
    params = (replace(numbers, cluster=ranks, loop_tile=48 // ranks),)
    wants = oracle(graph, params, {"i0": "any"}, found.extents, 0)
    case = replace(found, graph=graph, params=params, oracle=wants)
    subjects.append(emitted(case))
  for subject, module, at in compiled(subjects):
    emulate(subject, module, at)
  check(s.outcome for s in subjects)


#: A mistake -> what it is made of, what it makes of that, and the share that is noticed. Some are
#: none: what a mask keeps out may be zero in the other operand, a loop may have one iteration.
MISTAKES = {
  "a tile begins too late": (
    r"(block_[xyz]\(\) \* )(\d+)", lambda m: f"{m[1]}{int(m[2]) + 1}", 0.9
  ),
  "a mask ends too early": (
    r"(\b[cr] < )(\d+)(?=\)| \?| &&)", lambda m: f"{m[1]}{int(m[2]) - 1}", 0.7
  ),
  "a mask is missing": (
    r"\b[cr] < (?:\d+|size_\w+)(?=\)| \?| &&)", lambda m: "true", 0.5
  ),
  "a sum is a maximum": (r"Sum::combine", lambda m: "Max::combine", 0.8),
  "a product is a sum": (r"(v\d+(?:\[\w+\])*) \* (?=v)", lambda m: f"{m[1]} + ", 0.75),
  "a barrier is missing": (r"ptx::sync_block\(\);", lambda m: "", 0.5),
}  # fmt: skip


def mistakes(subject):
  """For every kind of mistake, if the text has a place for it, one kernel with it."""
  (source,) = subject.sources
  text, rng = source.text, random.Random(subject.case.seed)
  head = text.index("_KERNEL(")
  for kind, (pattern, change, _) in MISTAKES.items():
    places = [m for m in re.finditer(pattern, text) if m.start() > head]
    if places:
      m = rng.choice(places)
      wrong = text[: m.start()] + change(m) + text[m.end() :]
      yield kind, Subject(subject.case, (replace(source, text=wrong),))


@pytest.mark.slow
def test_mistakes_in_the_text_are_noticed():
  subjects = [s for s in map(emitted, map(random_kernel, range(28))) if len(s.sources) == 1]
  tried = [m for s in subjects for m in mistakes(s)]
  for subject, module, at in compiled([s for _, s in tried]):
    emulate(subject, module, at)
  made = Counter(kind for kind, _ in tried)
  noticed = Counter(kind for kind, s in tried if s.outcome is not None and s.outcome.is_bad)
  assert min(made[kind] for kind in MISTAKES) >= 3, made
  for kind, (_, _, share) in MISTAKES.items():
    assert noticed[kind] >= share * made[kind], (kind, noticed[kind], made[kind])


def test_outcomes_of_wrong_kernels():
  """Twice as much is wrong, and text that does not compile a fault, in a module with others."""
  store = re.compile(r"(store<\w+>\([^;]*, )(v\d+[^;]*)\);")
  subjects = (emitted(random_kernel(seed)) for seed in range(100))
  good = next(s for s in subjects if len(s.sources) == 1 and store.search(s.sources[0].text))
  (source,) = good.sources
  texts = source.text.replace("const int", "const ant"), store.sub(r"\1 2 * \2);", source.text)
  broken, doubled = (Subject(good.case, (replace(source, text=text),)) for text in texts)
  for subject, module, at in compiled([good, broken, doubled]):
    emulate(subject, module, at)
  outcomes = [s.outcome for s in (good, broken, doubled) if s.outcome is not None]
  kinds = [(o.kind, o.code) for o in outcomes]
  assert kinds == [("ok", ""), ("fault", "compile"), ("wrong", "")]
  assert "--seeds" in str(outcomes[1]) and "ant" in str(outcomes[1])
