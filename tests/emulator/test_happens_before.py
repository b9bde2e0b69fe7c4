"""Random programs: the emulator finds a race where a plain closure of the order finds one."""

import random
from dataclasses import dataclass
from itertools import combinations

import numpy as np
import pytest

from mirage_onnx.emulator import EmulationError, compile_kernels
from tests.emulator.kernels import body

BYTES, STEPS, PROGRAMS = 16, 7, 60
TYPES = {1: "unsigned char", 2: "unsigned short", 4: "unsigned"}


@dataclass(frozen=True)
class Shape:
  """A cluster of ``blocks``, each of ``warps``; warps and threads are counted over all blocks."""

  blocks: int
  warps: int

  @property
  def threads(self):
    return self.blocks * self.warps * 32


@dataclass(frozen=True)
class Access:
  """By one thread, to the shared memory of block ``home``, between two synchronisations."""

  step: int
  thread: int
  write: bool
  home: int
  offset: int
  size: int

  def text(self, shape):
    place = f"reinterpret_cast<{TYPES[self.size]}*>(s + {self.offset})"
    if self.home == self.thread // (32 * shape.warps):
      what = f"*{place} = 1" if self.write else f"sum += *{place}"
    elif self.write:
      what = f"ptx::dsmem_st({place}, {self.home}, 1u)"
    else:
      what = f"sum += ptx::dsmem_ld({place}, {self.home})"
    return f"if (t == {self.thread}) {what};  // step {self.step}"


@dataclass(frozen=True)
class Barrier:
  """In each group, what the warps of the first did before happens before what those of the second
  do after."""

  groups: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]
  text: str


def draw_barrier(rng, shape, step):
  warps = tuple(range(shape.blocks * shape.warps))
  blocks = [warps[b * shape.warps : (b + 1) * shape.warps] for b in range(shape.blocks)]
  a, b = rng.sample(warps, 2)
  pair = f"if (w == {a}) {{0}} else if (w == {b}) {{1}}"
  wait = f"ptx::wait(bar + {step}, 0);"
  found = [
    Barrier((), ""),
    Barrier(tuple((w, w) for w in blocks), "ptx::sync_block();"),
    Barrier(tuple(((w,), (w,)) for w in warps), "ptx::sync_warp();"),
    Barrier((((a,), (a,)),), f"if (w == {a}) ptx::sync_warp();"),
  ]
  if a // shape.warps == b // shape.warps:
    sync, arrive = (f"ptx::bar_{what}({step + 1}, 64);" for what in ("sync", "arrive"))
    found += [
      Barrier((((a, b), (a, b)),), pair.format(sync, sync)),
      Barrier((((a, b), (b,)),), pair.format(arrive, sync)),
      Barrier((((a,), (b,)),), pair.format(f"ptx::mbarrier_arrive(bar + {step});", wait)),
    ]
  else:
    arrive = f"ptx::mbarrier_arrive_remote(bar + {step}, {b // shape.warps});"
    found.append(Barrier((((a,), (b,)),), pair.format(arrive, wait)))
  if shape.blocks > 1:
    found.append(Barrier(((warps, warps),), "ptx::cluster_sync();"))
  return rng.choice(found)


def draw_program(rng, shape):
  accesses = []
  for step in range(STEPS):
    for _ in range(rng.choice([0, 1, 1, 2])):
      thread = rng.choice([0, 1, 31, 32, 40, 64, shape.threads - 1])
      home = rng.randrange(shape.blocks)
      size = rng.choice([1, 2, 4]) if home == thread // (32 * shape.warps) else 4
      offset = rng.randrange(BYTES // size) * size
      accesses.append(Access(step, thread, rng.random() < 0.5, home, offset, size))
  return accesses, [draw_barrier(rng, shape, step) for step in range(STEPS - 1)]


def races(shape, accesses, barriers):
  """Whether two accesses conflict and neither happens before the other."""
  known = [set() for _ in range(shape.threads)]  # (thread, step)
  before = {}
  for step in range(STEPS):
    before |= {a: set(known[a.thread]) for a in accesses if a.step == step}
    if step == STEPS - 1:
      break
    released = [k | {(t, step)} for t, k in enumerate(known)]
    for sources, targets in barriers[step].groups:
      everything = set().union(*(released[32 * w + i] for w in sources for i in range(32)))
      for w in targets:
        for i in range(32):
          known[32 * w + i] |= everything
  for a, b in combinations(accesses, 2):  # steps do not decrease
    overlap = a.offset < b.offset + b.size and b.offset < a.offset + a.size
    if a.home != b.home or not overlap or not (a.write or b.write) or a.thread == b.thread:
      continue
    # A thread's knowledge of (t, step) covers its steps before that, too.
    if not any(t == a.thread and step >= a.step for t, step in before[b]):
      return True
  return False


def to_kernel(name, shape, accesses, barriers):
  everybody = "ptx::cluster_sync();" if shape.blocks > 1 else "ptx::sync_block();"
  lines = [
    "int i = ptx::thread();",
    f"int t = static_cast<int>(ptx::cluster_rank()) * {32 * shape.warps} + i, w = t / 32;",
    "unsigned char* s = ptx::smem<unsigned char>();",
    f"ptx::U64* bar = reinterpret_cast<ptx::U64*>(s + {BYTES});",
    "unsigned sum = 0;",
    f"for (int k = 0; i == 0 && k < {BYTES}; ++k) s[k] = 0;",
    f"for (int k = 0; i == 0 && k < {STEPS}; ++k) ptx::mbarrier_init(bar + k, 32);",
    everybody,
  ]
  for step in range(STEPS):
    lines += [a.text(shape) for a in accesses if a.step == step]
    lines += [barriers[step].text] if step < STEPS - 1 else []
  return body(
    name,
    "\n".join([*lines, everybody, "ptx::st_u32(y + t, sum);"]),
    parameters="unsigned* y",
    grid=(shape.blocks, 1, 1),
    block=32 * shape.warps,
    cluster=shape.blocks,
    smem=BYTES + 8 * STEPS,
  )


@pytest.mark.parametrize("shape", [Shape(1, 3), Shape(2, 2)], ids=["block", "cluster"])
def test_races_are_found_exactly_where_they_are(shape):
  rng = random.Random(11)
  programs = [draw_program(rng, shape) for _ in range(PROGRAMS)]
  wanted = [races(shape, *program) for program in programs]
  assert PROGRAMS // 5 < sum(wanted) < PROGRAMS * 4 // 5
  module = compile_kernels([to_kernel(f"p{i}", shape, *p) for i, p in enumerate(programs)])
  for i, racy in enumerate(wanted):
    for order in ("ascending", "descending"):
      tensors = {"y": np.zeros(shape.threads, np.uint32)}
      if not racy:
        module.run(tensors, [i], order=order)
        continue
      with pytest.raises(EmulationError) as caught:
        module.run(tensors, [i], order=order)
      assert caught.value.kind == "race", (module.kernels[i].text, caught.value)
