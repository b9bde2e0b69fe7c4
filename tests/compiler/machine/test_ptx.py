"""PTX as steps."""

from mirage_onnx.compiler.machine.ptx import ptx_steps
from mirage_onnx.compiler.machine.steps import MachineStep, WgmmaStep

TEXT = """
.visible .entry k(
	.param .u64 p
)
.maxntid 128
{
	.reg .pred 	%p<2>;
	ld.param.u64 	%rd1, [p];
	mov.u32 	%r1, %tid.x;
	mov.f32 	%f1, 0f00000000;
$L__BB0_1:
	.pragma "nounroll";
	// begin inline asm
	cvt.rn.f16x2.f32 %r2, %f3, %f4;
	// end inline asm
	mov.b32 	%r3, %r2;
	@%p1 ld.shared.v2.u32 	{%r4, %r5}, [%r1+16];
	// begin inline asm
	{
	.reg .pred add;
	setp.ne.b32 add, 1, 0;
	wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%f1,%f2}, {%r2,%r3,%r4,%r5}, %rd1, add, 1, 1, 0;
	}
	// end inline asm
	wgmma.commit_group.sync.aligned;
	wgmma.wait_group.sync.aligned 1;
	setp.lt.s32 	%p1, %r1, 4;
	st.shared.u32 	[%r1], %r2;
	@%p1 bra 	$L__BB0_1;
	ret;

}
"""


def test_steps():
  s = MachineStep
  assert ptx_steps(TEXT, "k") == [
    s(("%rd1",), plain=True), s(("%r1",), plain=True), s(("%f1",), plain=True),
    s(("%r2",)), s(("%r3",), "%r2"), s(("%r4", "%r5"), plain=True, may=True), s(),
    s(("%f1", "%f2"), product=WgmmaStep(8, ("%r2", "%r3", "%r4", "%r5"), ("%f1", "%f2"))),
    s(commits=True), s(ends=1), s(("%p1",)), s(), s(to=(3,)), s(falls=False),
  ]  # fmt: skip
