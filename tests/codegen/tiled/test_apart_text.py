"""What is behind the sums of a cluster's ranks: each rank reads and writes a part, or the first all of it."""

import pytest
from tiled_kernels import ATTENTION, case, near

from tests.codegen.tiled.test_warpgroup import SPLIT, by_wgmma, emit

#: The sum, a bias and GELU behind it; rows that are summed once more.
BIASED = SPLIT.replace("tensor o0", "tensor i2 f16[a2] weight\ntensor o0").replace(
  "  %5 = cast %4",
  "  %5 = load i2 imap=a2,- cmap=- fmap=- : f16[a2] post column\n  %6 = cast %5 : f32[a2] post column\n"
  "  %7 = add %4 %6 : f32[a0,a2] post C_frag\n  %8 = erf %7 : f32[a0,a2] post C_frag\n  %9 = cast %8",
).replace("o0 = %5", "o0 = %9")  # fmt: skip
SUMMED = SPLIT.replace(
  "  %5 = cast %4",
  "  %5 = sum[a2] %4 : f32[a0] post row\n  %6 = mul %4 %5 : f32[a0,a2] post C_frag\n  %7 = cast %6",
).replace("o0 = %5", "o0 = %7")
CASES = {
  "two": by_wgmma(SPLIT, 64, 64, warps=4, stages=3, cluster=2, a0=77, a1=448),
  "four": by_wgmma(BIASED, 64, 64, warps=4, stages=3, cluster=4, a0=130, a1=1000, a2=200),
  "columns shared out": by_wgmma(BIASED, 256, 64, stages=3, cluster=2, a0=77, a1=456, a2=264),
  "tall": by_wgmma(SPLIT, 128, 128, warps=16, stages=3, cluster=4, a0=197, a1=520, a2=136),
}
NOT = {
  "what is summed by all lanes of a row": by_wgmma(SUMMED, 64, 64, warps=4, stages=3, cluster=2, a2=64),
  "columns that lie anywhere": by_wgmma(SPLIT, 64, 64, warps=4, stages=3, cluster=2, a2=196),
}


@pytest.mark.parametrize("name", CASES)
def test_each_rank_has_a_part(name):
  text, ranks = emit(CASES[name]).text, CASES[name].params[0].cluster
  for rank in range(ranks):
    assert (
      text.count(f"if (ptx::cluster_rank() != {rank})")
      == text.count(f"if (ptx::cluster_rank() == {rank})")
      == 1
    )
  assert text.count("publish_four<") == text.count("gather_four<") >= ranks
  assert f"other_ranks<{ranks}>(" in text and "gather_four<Sum, " in text


@pytest.mark.parametrize("name", NOT)
def test_the_first_rank_has_all(name):
  text = emit(NOT[name]).text
  assert "ptx::cluster_rank() == 0" in text
  assert "\n  if (ptx::cluster_rank() == 0" not in text  # each of its stores asks, no block beside wgmma


def test_right():
  near([*CASES.values(), *NOT.values()], bound=2e-2)


#: Clusters without wgmma.
SAVED_BY_ONE = {
  "two": case(ATTENTION, 8, 1, cluster=2, loop_tile=16, warps=2, stages=2, a0=2, a1=40, a2=16, a3=11, a4=24),
  "four": case(ATTENTION, 8, 1, cluster=4, loop_tile=16, warps=4, stages=3, a0=2, a1=17, a2=16, a3=11, a4=24),
}


@pytest.mark.parametrize("name", SAVED_BY_ONE)
def test_ranks_that_save_nothing_read_nothing(name):
  text = emit(SAVED_BY_ONE[name]).text
  last = text.rindex("ptx::cluster_sync();", 0, text.rindex("ptx::cluster_sync();"))
  behind = text[last:].splitlines()
  heads = [n for n, line in enumerate(behind) if line.startswith("  if (ptx::cluster_rank() == 0")]
  reads = [n for n, line in enumerate(behind) if "cluster_reduce<" in line]
  end = behind.index("  }", heads[0])
  assert len(heads) == 1 and reads and heads[0] < min(reads) and max(reads) < end
  assert all("sync" not in line for line in behind[heads[0] : end])


def test_right_where_one_rank_saves():
  near([*SAVED_BY_ONE.values()])
