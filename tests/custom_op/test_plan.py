"""Plans: one spelling, the same refusals in Python and C++, and no crash on anything."""

import pytest
from golden_texts import texts_of
from hypothesis import given, settings
from hypothesis import strategies as st

from mirage_onnx.custom_op import (
  Expr,
  InputPtr,
  InputSpec,
  Int32,
  Int64,
  Launch,
  OutputPtr,
  OutputSpec,
  Plan,
  Variant,
  WorkspacePtr,
  const,
  dim,
  parse_plan,
)
from mirage_onnx.custom_op.arguments import MapOf
from mirage_onnx.custom_op.plan import Equal
from mirage_onnx.errors import MirageError

TEXT = """\
plan 2
input f16 * 4096
input i64
equal d0.0,2,* 8
output f16 d0.0 4096
output f32
workspace d0.0,4096,*
variant d0.0,16,le
launch 0 rms grid d0.0,16,ceildiv 64 1 block 128 cluster 4 smem 65536 pdl 1 args i0#d0.0,8192,* w:16#4096 o0#0
launch 4095 _Z1kv grid 1 1 1 block 1 cluster 1 smem 0 pdl 0 args
variant
launch 1 k grid 1 1 1 block 1024 cluster 16 smem 232448 pdl 0 args i32:d0.0 i64:-1 o1#4 MAP
""".replace("MAP", "t:8:3:64:72:256:w:16#512")


def python_refusal(text):
  try:
    parse_plan(text)
  except MirageError as error:
    assert error.code == "PLAN_INVALID"
    return error.detail
  return ""


def test_text_reads_into_the_objects_it_names():
  plan = parse_plan(TEXT)
  one = const(1)
  first = Launch(
    0, "rms", (dim(0, 0).ceildiv(16), const(64), one), 128,
    (InputPtr(0, dim(0, 0) * 8192), WorkspacePtr(const(16), const(4096)), OutputPtr(0, const(0))),
    4, 65536, True,
  )  # fmt: skip
  second = Launch(4095, "_Z1kv", (one, one, one), 1, ())
  third = Launch(
    1,
    "k",
    (one, one, one),
    1024,
    (
      Int32(dim(0, 0)),
      Int64(const(-1)),
      OutputPtr(1, const(4)),
      MapOf(WorkspacePtr(const(16), const(512)), 8, 3, 64, 72, 256),
    ),
    16,
    232448,
  )
  assert plan == Plan(
    (InputSpec("f16", (None, 4096)), InputSpec("i64", ())),
    (OutputSpec("f16", (dim(0, 0), const(4096))), OutputSpec("f32", ())),
    (Variant((first, second), dim(0, 0).le(16)), Variant((third,))),
    dim(0, 0) * 4096,
    (Equal(dim(0, 0) * 2, const(8)),),
  )


def test_text_is_canonical(native):
  assert parse_plan(TEXT).to_text() == TEXT
  assert native.plan(TEXT.encode()) == ""


#: TEXT with one replacement: old, new, line, reason.
REFUSALS = [
  row.replace("\\n", "\n").replace("\\t", "\t").split(" | ") for row in texts_of("rules")["plan"].splitlines()
]


@pytest.mark.parametrize(("old", "new", "line", "reason"), REFUSALS)
def test_refusals(native, old, new, line, reason):
  assert TEXT.count(old) >= 1
  text = TEXT.replace(old, new, 1)
  expected = f"plan line {line}: {reason}"
  assert python_refusal(text) == expected
  assert native.plan(text.encode()) == expected


@pytest.mark.parametrize("word", ["grid", "block", "cluster", "smem", "pdl", "args"])
def test_every_keyword_of_a_launch_is_needed(native, word):
  text = TEXT.replace(f" {word}", " other", 1)
  assert "expected 'launch <cubin>" in python_refusal(text)
  assert native.plan(text.encode()) == python_refusal(text)


@pytest.mark.parametrize(
  ("text", "reason"),
  [
    ("", "line 1: the plan has no variant"),
    ("plan 2\n", "line 2: the plan has no variant"),
    ("plan 2\nvariant\n", "line 2: statement 'variant' is unknown or out of place"),
    ("x" * (1 << 20) + "\n", "line 1: the text is longer than 1 MiB"),
  ],
)
def test_incomplete_plans(native, text, reason):
  assert python_refusal(text) == native.plan(text.encode()) == f"plan {reason}"


PIECES = sorted({word for line in TEXT.splitlines() for word in line.split()} | {"\n", " ", "*", "0"})


@settings(max_examples=500, deadline=None)
@given(st.data())
def test_mutated_plans_are_judged_alike(native, data):
  text = TEXT
  for _ in range(data.draw(st.integers(1, 3))):
    at = data.draw(st.integers(0, len(text)))
    drop = data.draw(st.integers(0, 12))
    text = text[:at] + data.draw(st.sampled_from(["", *PIECES])) + text[at + drop :]
  assert native.plan(text.encode()) == python_refusal(text)
  if not python_refusal(text):
    assert parse_plan(text).to_text() == text


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=200), st.integers(0, len(TEXT)))
def test_bytes_never_crash(native, noise, at):
  data = TEXT.encode()
  for mutated in (noise, data[:at] + noise + data[at + len(noise) :]):
    text = mutated.decode("latin-1")
    assert (native.plan(mutated) == "") == (python_refusal(text) == "")


def test_objects_that_break_a_rule_cannot_be_written(models):
  good = models.add_plan()
  bad = [
    models.add_plan(variants=()),
    models.add_plan(outputs=()),
    models.add_plan(variants=(*good.variants, *good.variants)),
    models.add_plan(workspace=Expr("d9.0")),
    models.add_plan(workspace=Expr("1\nvariant")),
  ]
  for plan in bad:
    with pytest.raises(MirageError, match="plan"):
      plan.to_text()
  assert good.to_text()


def test_the_first_nonzero_guard_is_chosen():
  plan = parse_plan(TEXT)
  assert plan.choose([[16, 4096], []]) is plan.variants[0]
  assert plan.choose([[17, 4096], []]) is plan.variants[1]
