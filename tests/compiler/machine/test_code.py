"""Instructions of sm_90 as nvdisasm of CUDA 13.1 reads them."""

import pytest

from mirage_onnx.compiler.machine import code
from mirage_onnx.compiler.machine.steps import MachineStep, WgmmaStep

S = MachineStep
SUMS = tuple(f"R{n}" for n in range(24, 56))
READ = {
  "HGMMA.64x64x16.F32 R24, R88, gdesc[UR20], RZ, !UPT": (
    (0x00E0001458187DF0, 0x000FE2000C7008FF),
    S(SUMS, product=WgmmaStep(64, ("R88", "R89", "R90", "R91"), ())),
  ),
  "HGMMA.64x64x16.F32 R24, R100, gdesc[UR20], R24, gsb0": (
    (0x00E0001464187DF0, 0x000FE60008000818),
    S(SUMS, product=WgmmaStep(64, ("R100", "R101", "R102", "R103"), SUMS), commits=True),
  ),
  "WARPGROUP.DEPBAR.LE gsb0, 0x1": ((0x00008000000079C5, 0x000FE40000010100), S(ends=1)),
  "USETMAXREG.TRY_ALLOC.CTAPOOL UP0, 0xe8": ((0x000000E8000079C8, 0x000E240008000600), S()),
  "SYNCS.PHASECHK.TRANS64.TRYWAIT P0, [UR4], R7": ((0x00000007FF0075A7, 0x000E240008000144), S()),
  "@!P0 PMTRIG 0x2": ((0x0000000200008801, 0x000FCC0003800000), S()),
  "WARPGROUP.ARRIVE": ((0x00000000000079C5, 0x000FE20000000000), S()),
  "@P0 BRA (+0x440)": ((0x0000000400100947, 0x000FEA0003800000), S(to=(0x45,))),
  "BRA.DIV UR4, (+0x48d0)": ((0x0000004A04347947, 0x000FEA000B800000), S(to=(0x48E,))),
  "@!P2 BRA !P0, (+0x4b0)": ((0x00000004002CA947, 0x000FEA0004000000), S(to=(0x4C,))),
  "LDS R88, [R32+0x4000]": ((0x0040000020587984, 0x0002A20000000800), S(("R88",), plain=True)),
  "@!PT LDS RZ, [RZ]": ((0x00000000FFFFF984, 0x000FE20000000800), S()),
  "CS2R R108, SRZ": ((0x00000000006C7805, 0x000FE2000001FF00), S(("R108", "R109"), plain=True)),
  "IMAD.MOV.U32 R8, RZ, RZ, R43": ((0x000000FFFF087224, 0x000FCE00078E002B), S(("R8",), "R43")),
  "IMAD.MOV.U32 R28, RZ, RZ, -0x40": ((0xFFFFFFC0FF1C7424, 0x000FE200078E00FF), S(("R28",), plain=True)),
  "IMAD.WIDE R140, R157, 0x2, R4": ((0x000000029D8C7825, 0x000FE200078E0204), S(("R140", "R141"))),
  "LDL.64 R20, [R1+0x48]": ((0x0000480001147983, 0x010F280000100A00), S(("R20", "R21"), plain=True)),
  "@!P6 LDG.E.U8 R147, [R160.64]": (
    (0x00000008A093E981, 0x000F62000C1E1100), S(("R147",), plain=True, may=True),
  ),
  "LDGSTS.E.BYPASS.128 [R39+0x8000], [R2.64]": ((0x0800000002277FAE, 0x0003E2000B901C4C), S()),
  "R2UR UR7, R167": ((0x00000000A70772CA, 0x000FE200000E0000), S()),
  "VOTEU.ANY UP0, P0": ((0x00000000003F7886, 0x000FE20000000100), S()),
  "PREEXIT": ((0x000000000000782D, 0x000FE20000000000), S()),
  "ACQBULK": ((0x000000000000782E, 0x000FE20000000000), S()),
  "FCHK P0, R0, R165": ((0x000000A500007302, 0x000E620000000000), S()),
  "FADD R2, R124, R8": ((0x000000087C027221, 0x000FE20000010000), S(("R2",), reads=("R124", "R8"))),
}  # fmt: skip


@pytest.mark.parametrize("text", READ)
def test_as_it_is_disassembled(text):
  bits, wanted = READ[text]
  assert code._step(0, *bits) == wanted


def test_a_jump_back():
  """``@P0 BRA`` from 0x3030 to 0x1480."""
  distance = (0x1480 - 0x3040) // 4
  low = 0x947 | (distance & 255) << 16 | (distance >> 8 & (1 << 30) - 1) << 34
  assert code._step(0x3030, low, 0x000FEA000383FFFF).to == (0x148,)


def test_jumps_that_only_a_run_knows():
  with pytest.raises(code.UnknownMachineCodeError, match="0x949"):
    code._step(0, 0x7949, 0)
