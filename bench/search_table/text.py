"""The results table of searches as text."""

from search_table.prunings import PRUNINGS

NAME, CELL = 28, 11

LEGEND = """\
Columns: the bound on contractions, reductions and accumulators of one kernel.
us: predicted time of the best program, states: prefixes of derivations, built:
kernels, s: CPU seconds of one process, best: seconds until the best was proven.
=    the same search as at the bound before, which left nothing out
CUT  the time ran out; what was found by then. MEMORY: the memory did
ENDED  as CUT, because the time of the whole run was over
-    not run: a smaller bound was cut
"""


def table(record, curves, bounds):
  """All tables. ``record``: the facts of the run."""
  whole = [c for c in curves if not c.off]
  lines = [
    f"Searches of all block graphs, each cut after {record['cut_s']:g} s",
    f"{record['date']}  {record['command']}",
    f"commit {record['commit'][:12]}{' with changes' if record['changed'] else ''}, "
    f"{record['cores']} cores, {record['jobs']} at once, Python {record['versions']['python']}",
    "",
    LEGEND,
    *_against_the_bound(whole, bounds),
    *_without(curves, bounds),
    *_counts(whole),
  ]
  return "\n".join(lines).rstrip() + "\n"


def _head(title, bounds):
  return f"{title:{NAME}}{'':8}" + "".join(f"{n:>{CELL}}" for n in bounds)


def _line(name, what, curve, bounds, shown):
  cells = []
  for n in bounds:
    outcome = curve.at(n)
    if outcome is None:
      cells.append("-")
    elif not curve.was_run(n):
      cells.append("=")
    else:
      cells.append(shown(outcome))
  return f"{name:{NAME}}{what:>7} " + "".join(f"{c:>{CELL}}" for c in cells)


def _us(o):
  return "none" if o.best_us is None else f"{o.best_us:.2f}"


def _best(o):
  return "none" if o.best_s is None else f"{o.best_s:.1f}"


def _states(o):
  return str(o.states)


def _built(o):
  return str(o.built)


def _seconds(o):
  return f"{o.cpu_s:.1f}" if o.is_whole else f"{o.stop} {o.cpu_s:.0f}"


def _against_the_bound(curves, bounds):
  yield _head("program", bounds)
  for c in curves:
    yield _line(c.program, "us", c, bounds, _us)
    yield _line("", "states", c, bounds, _states)
    yield _line("", "s", c, bounds, _seconds)
    if any(o.best_s is not None for _, o in c.outcomes):
      yield _line("", "best", c, bounds, _best)
  yield ""


def _without(curves, bounds):
  off = [c for c in curves if c.off]
  if not off:
    return
  yield "With one pruning off:"
  for name in dict.fromkeys(c.off for c in off):
    yield f"  {name:12}{PRUNINGS[name].says}"
  yield ""
  yield _head("program, pruning off", bounds)
  for program in dict.fromkeys(c.program for c in off):
    own = [c for c in curves if c.program == program]
    for c in own:
      name = f"  {c.off}" if c.off else program
      yield _line(name, "us", c, bounds, _us)
      yield _line("", "states", c, bounds, _states)
      yield _line("", "built", c, bounds, _built)
      yield _line("", "s", c, bounds, _seconds)
  yield ""


def _counts(curves):
  yield "At the largest bound that was run"
  head = "".join(f"{name:>8}" for name in ("classes", "nodes", "units", "built", "proven"))
  yield f"{'program':{NAME}}{head}  pruned"
  for c in curves:
    o = c.last[1]
    classes, nodes, end = o.egraph or (0, 0, "")
    note = "" if end == "SATURATED" else f" (saturation ended by {end or o.stop})"
    yield (
      f"{c.program:{NAME}}{classes:>8}{nodes:>8}{o.units:>8}{o.built:>8}{o.verified:>8}"
      f"  {sum((o.pruned or {}).values())}{note}"
    )
  yield ""
  total = {}
  for c in curves:
    for reason, count in (c.last[1].pruned or {}).items():
      total[reason] = total.get(reason, 0) + count
  yield "Pruned in all of them, by reason"
  for reason, count in sorted(total.items(), key=lambda r: (-r[1], r[0])):
    yield f"{count:>12}  {reason}"
