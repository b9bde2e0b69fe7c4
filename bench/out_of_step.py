"""Warpgroups of a fed team on paper: what each number of steps between them hides, for which ring (no GPU).

    python bench/out_of_step.py

Tensor cores are shared by those that have a full tile; a tile of the ring is free when all have multiplied
it, and full again some clocks later; behind its part a warpgroup computes and stores by itself. Without lag
that gives 28 and 31 us for what takes 30 and 35 by clocks on an H200 (bench/results/notes.md); stores of two
at once do not slow each other down here. ``superopt/fed_numbers.py`` takes its lag from these rows.
"""

from dataclasses import dataclass

#: Clocks of a microsecond; between looks; of the first tiles, and until a freed one is full again.
CLOCKS, LOOK, FIRST, REFILL = 1710.0, 8.0, 1600.0, 900.0


@dataclass(frozen=True)
class Team:
  """``alone``: clocks of a step of a warpgroup that has the tensor cores; ``behind``: of what ends a part."""

  name: str
  groups: int
  stages: int
  alone: float
  behind: float
  steps: int = 12
  parts: int = 3


TEAMS = (
  Team("256x128, 8 warps, bare", 2, 4, 512, 3000),
  Team("256x128, 8 warps, GELU", 2, 4, 512, 5100),
  Team("256x128, 8 warps, GELU, stored late", 2, 4, 512, 2400),
  Team("128x128, 8 warps, GELU", 2, 7, 256, 2550, parts=6),
  Team("192x128, 12 warps, GELU", 3, 5, 256, 2550, parts=4),
  Team("256x128, 16 warps, GELU", 4, 4, 256, 2550),
)


def time_us(team, lag):
  """From the first copy until the last warpgroup has ended."""
  count, now, groups = team.steps * team.parts, 0.0, range(team.groups)
  full = [FIRST if i < team.stages else float("inf") for i in range(count)]
  step, left, busy_until, read = [0] * team.groups, [0.0] * team.groups, [0.0] * team.groups, [0] * count
  while any(step[g] < count or busy_until[g] > now for g in groups):
    ready = [
      g for g in groups
      if step[g] < count and busy_until[g] <= now and full[step[g]] <= now
      and (g == 0 or step[g] > 0 or step[g - 1] >= lag)
    ]  # fmt: skip
    now += LOOK
    for g in ready:
      left[g] = (left[g] or team.alone) - LOOK / len(ready)
      if left[g] <= 0:
        at, left[g] = step[g], 0.0
        read[at] += 1
        if read[at] == team.groups and at + team.stages < count:
          full[at + team.stages] = now + REFILL
        step[g] += 1
        if step[g] % team.steps == 0:
          busy_until[g] = now + team.behind
  return now / CLOCKS


def main():
  for team in TEAMS:
    most = (team.stages - 1) // (team.groups - 1)
    print(f"{team.name}: " + ", ".join(f"lag {n} {time_us(team, n):.1f} us" for n in range(most + 1)))


if __name__ == "__main__":
  main()
