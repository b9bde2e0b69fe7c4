"""From a lock to chosen regions with kernels: no search and no GPU, and nothing is believed.

Regions are made of the model again and must have the lock's keys. A program is proven for its region,
its numbers and the weights of every instance, as the search would have; its text is generated and
compiled again. What differs from the lock ends the run.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace

from mirage_onnx import events
from mirage_onnx.compiler.candidates import Compiled, compile_candidates
from mirage_onnx.errors import MirageError, Rejection
from mirage_onnx.failures import guarded
from mirage_onnx.ir import Candidate as IrCandidate
from mirage_onnx.ir import Program, Region, ugraph_extents
from mirage_onnx.ir.spec import check_interface, check_ugraph
from mirage_onnx.match.candidates import Matches, RegionCandidate, candidate
from mirage_onnx.match.repeated import RegionMaker
from mirage_onnx.superopt.journal_lines import UNREADABLE
from mirage_onnx.superopt.result import SearchReport, SearchResult, Stop, Verified
from mirage_onnx.target import Target
from mirage_onnx.tune.instances import Chosen, InstanceChecks
from mirage_onnx.tune.lock import Lock, LockedRegion
from mirage_onnx.tune.outcome import Outcome
from mirage_onnx.tune.race import Measured
from mirage_onnx.tune.tuning import Look
from mirage_onnx.verify.equivalence import Proof
from mirage_onnx.verify.prover import prover
from mirage_onnx.verify.term_checks import TermChecks
from mirage_onnx.verify.weights import ModelWeights


def replayed(
  program: Program,
  matches: Matches,
  outcomes: Mapping[str, Outcome],
  lock: Lock,
  target: Target,
  weights: ModelWeights,
  look: Look | None = None,
  emit: events.Emit = events.silent,
) -> tuple[tuple[Chosen, ...], dict[str, Outcome]]:
  """What the lock has chosen, with kernels, and all outcomes by region key; others are NOT_LOCKED.

  ``look``: asked about each program.

  Raises:
      MirageError: LOCK_DIFFERS, something comes out otherwise; LOCK_INVALID, a program is refused.
  """
  found = {
    key: replace(o, rejection=Rejection("NOT_LOCKED", "the lock leaves it as it was", o.region.nodes))
    for key, o in outcomes.items()
  }
  instances = _instances(program, matches, lock)
  own: dict[int, list[RegionCandidate]] = {}
  for node, instance in zip(lock.nodes, instances, strict=True):
    own.setdefault(node.region, []).append(instance)
  checks, terms = InstanceChecks(weights), TermChecks()
  done = dict[int, Outcome]()
  emit(
    events.RegionsStarted("lock", tuple((same[0].region.key, same[0].region.nodes) for same in own.values()))
  )
  for n, same in own.items():
    locked, region = lock.regions[n], same[0].region
    _same(f"the weights of {_named(region)}", weights_of(same, weights), locked.weights)
    program_, proof = _proven(locked, same, checks, terms, weights)
    compiled = _compiled(locked, region, program_, target)
    ran, wrong = look(region, program_) if look else ("", None)
    if wrong:
      raise _refused(region, wrong)
    m = locked.measured
    known = outcomes.get(region.key) or Outcome(region, (), locked.baseline_us)
    result = SearchResult((Verified(program_, proof),), SearchReport(0.0, 0, 0, 1, Stop.EXHAUSTED, (), ()))
    measured = Measured(m.kernel_us, m.ort_us, m.tried) if m else None
    done[n] = Outcome(
      region, tuple(same), known.baseline_us, result, compiled, measured, ran=ran or known.ran
    )  # fmt: skip
    found[region.key] = done[n]
    emit(events.RegionTuned(region.key, region.nodes, program_.predicted_us, None))
  return tuple((c, done[n.region]) for n, c in zip(lock.nodes, instances, strict=True)), found


def weights_of(instances: Sequence[RegionCandidate], weights: ModelWeights) -> str:
  """A hash of the weights of these instances, in their order."""
  return hashlib.sha256(" ".join(weights.digest(c.region) for c in instances).encode()).hexdigest()


def _instances(program: Program, matches: Matches, lock: Lock) -> list[RegionCandidate]:
  """The instance of every node of the lock: one that was matched, or several in one."""
  known = {(c.nodes, c.outputs): c for c in matches.candidates}
  maker: RegionMaker | None = None
  found, names = list[RegionCandidate](), {n.name: n for n in program.nodes}
  for node in lock.nodes:
    key = frozenset(node.nodes), frozenset(node.outputs)
    if missing := next((n for n in node.nodes if n not in names), None):
      raise MirageError("LOCK_DIFFERS", f"the model has no node {missing!r}")
    made: RegionCandidate | Rejection | None = known.get(key)
    if made is None:
      maker = maker or RegionMaker(program)
      made = candidate(maker, *key)
    if isinstance(made, Rejection):
      raise MirageError("LOCK_INVALID", f"{', '.join(node.nodes)[:200]} are no region: {made.reason}")
    _same(f"the region of {_named(made.region)}", made.region.key, lock.regions[node.region].key)
    found.append(made)
  return found


def _proven(
  locked: LockedRegion,
  same: Sequence[RegionCandidate],
  checks: InstanceChecks,
  terms: TermChecks,
  weights: ModelWeights,
) -> tuple[IrCandidate, Proof]:
  """The program with its proof for the region, safe for all instances."""
  program, region = locked.candidate, same[0].region
  try:
    wrong = check_ugraph(program.ugraph) or check_interface(region, program.ugraph)
    if wrong is None:
      ugraph_extents(program.ugraph, program.params, region.extents)
  except UNREADABLE as error:
    wrong = Rejection("NOT_EQUIVALENT", f"{type(error).__name__}: {error}", region.nodes)
  if wrong is not None:
    raise _refused(region, wrong)

  def prove() -> Proof | Rejection:
    for c in same:
      if (other := terms(c.region)) is not None:
        return other
    proof = prover(region, weights.of(region))(region, program.ugraph, program.params)
    if isinstance(proof, Rejection):
      return proof
    return next((v for v in checks.verdicts(same, program) if v is not None), proof)

  made = guarded("proof", region.nodes, prove)
  if isinstance(made, Rejection):
    raise _refused(region, made)
  return program, made


def _compiled(locked: LockedRegion, region: Region, program: IrCandidate, target: Target) -> Compiled:
  """The kernels, whose texts and images are those of the lock."""
  done, refused = compile_candidates(region, [program], target, keep=1)
  if not done:
    raise _refused(region, refused[0])
  (compiled,) = done
  _same(f"the number of kernels of {_named(region)}", len(compiled.sources), len(locked.kernels))
  for source, cubin, was in zip(compiled.sources, compiled.cubins, locked.kernels, strict=True):
    _same(f"the text of kernel {source.name}", _sha256(source.text.encode()), was.text_sha256)
    _same(f"the image of kernel {source.name}", _sha256(cubin.image), was.image_sha256)
  return compiled


def _same(what: str, here: object, there: object) -> None:
  if here != there:
    raise MirageError("LOCK_DIFFERS", f"{what} is another here: {_short(here)}, {_short(there)} in the lock")


def _short(value: object) -> str:
  return str(value)[:12]


def _refused(region: Region, why: Rejection) -> MirageError:
  return MirageError("LOCK_INVALID", f"the program of {_named(region)} is refused: {why.code}: {why.reason}")


def _named(region: Region) -> str:
  first, *rest = region.nodes
  return f"{first} and {len(rest)} more nodes" if rest else first


def _sha256(data: bytes) -> str:
  return hashlib.sha256(data).hexdigest()
