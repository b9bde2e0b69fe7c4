// Tensor cores fed by a warpgroup: four warps, the first a multiple of four. Needs ptx.cuh; sm_90a.
// PTX ISA, "Asynchronous Warpgroup Level Matrix Instructions".
//
// wgmma_*: d += a b, of 64 rows, 8 J columns and a depth of 16. Warp w of the warpgroup has rows
// 16w .. 16w + 15 of d as mma.m16n8k16 has them, 8 columns after the other: d[0][j] is row g, columns
// 8j + 2t and 8j + 2t + 1, d[1][j] row g + 8. A from registers lies as it does there, too. What lies
// in shared memory is named by a descriptor (wgmma_tile) of rows of 16 depth elements; if Turned, B is 16
// rows, one for each depth (wgmma_turned_tile).
//
// It runs beside the threads. wgmma_fence comes before the first that takes registers which
// other instructions have written; d, and registers of A, belong to it until wgmma_wait says that its
// group is complete, and wgmma_hold comes before anything else touches d. Shared memory that threads
// have written it sees after fence_proxy_async and a barrier.
#pragma once

namespace ptx {

// Rows of 128 bytes in groups of eight, 1024 bytes each and so aligned, with chunk c of 16 bytes of
// row r at c ^ (r % 8): `at` is the first depth element of row 0.
PTX_DEVICE U64 wgmma_tile(const void* at) {
  constexpr U64 kSwizzle128 = 1ull << 62, kGroup = static_cast<U64>(1024 >> 4) << 32;
  return kSwizzle128 | kGroup | 1ull << 16 | (device::shared(at) & 0x3ffffu) >> 4;
}

// The same tile as operand B with the depth down its rows: panels of 64 columns, `across` bytes apart.
PTX_DEVICE U64 wgmma_turned_tile(const void* at, unsigned across) {
  return (wgmma_tile(at) & ~(0x3fffull << 16)) | static_cast<U64>(across >> 4) << 16;
}

PTX_DEVICE void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
PTX_DEVICE void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
// Until at most N of the warpgroup's groups, the last ones, are still under way.
template <int N>
PTX_DEVICE void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory");
}
// The compiler keeps what it does with d on this side.
template <int J>
PTX_DEVICE void wgmma_hold(float (&d)[2][J][2]) {
#pragma unroll
  for (int j = 0; j < J; ++j)
    asm volatile(""
                 : "+f"(d[0][j][0]), "+f"(d[0][j][1]), "+f"(d[1][j][0]), "+f"(d[1][j][1])::"memory");
}

// What x is computed of is computed before the next wait for products: ptxas moves a wait in front of all
// that does not need their results, and then nothing runs beside them. An event of the profiler under a
// condition is what it keeps in its place, and as good as nothing to do.
PTX_DEVICE void wgmma_beside(float x) {
  asm volatile("{\n\t.reg .pred p;\n\tsetp.lt.f32 p, %0, 0fFF7FFFFF;\n\t@p pmevent 1;\n\t}" ::"f"(x)
               : "memory");
}

// All warps of a warpgroup give registers of each thread back until it has N, or take some that others have given,
// and wait until there are so many.
template <int N>
PTX_DEVICE void registers_give() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N));
}
template <int N>
PTX_DEVICE void registers_take() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N));
}

// A number that is computed here: computed behind a loop with products under way, in front of the wait
// for them, it would make ptxas wait for each of them (C7514).
PTX_DEVICE int pinned(int value) {
  asm volatile("" : "+r"(value));
  return value;
}

template <class T>
PTX_DEVICE T* pinned(T* at) {
  asm volatile("" : "+l"(at));
  return at;
}

namespace device {

// Registers of d: of 8 columns, of 32; their names; and of the operands behind them.
#define PTX_D(j) "+f"(d[0][j][0]), "+f"(d[0][j][1]), "+f"(d[1][j][0]), "+f"(d[1][j][1])
#define PTX_D4(j) PTX_D(j), PTX_D(j + 1), PTX_D(j + 2), PTX_D(j + 3)
#define PTX_D8(j) PTX_D4(j), PTX_D4(j + 4)
#define PTX_NAMES_32 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15"
#define PTX_NAMES_64 \
  PTX_NAMES_32 ",%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
#define PTX_NAMES_96 \
  PTX_NAMES_64 ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47"
#define PTX_NAMES_128 \
  PTX_NAMES_96 ",%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"
#define PTX_NAMES_160 \
  PTX_NAMES_128 ",%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79"
#define PTX_NAMES_192 \
  PTX_NAMES_160 ",%80,%81,%82,%83,%84,%85,%86,%87,%88,%89,%90,%91,%92,%93,%94,%95"
#define PTX_NAMES_224 \
  PTX_NAMES_192 ",%96,%97,%98,%99,%100,%101,%102,%103,%104,%105,%106,%107,%108,%109,%110,%111"
#define PTX_NAMES_256 \
  PTX_NAMES_224 ",%112,%113,%114,%115,%116,%117,%118,%119,%120,%121,%122,%123,%124,%125,%126,%127"
#define PTX_WGMMA(n, type, first, second, last) \
  asm volatile("{\n\t.reg .pred add;\n\tsetp.ne.b32 add, 1, 0;\n\t" \
               "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32." type "." type " {" PTX_NAMES_##n \
               "}, " first ", " second ", add, 1, 1, " last ";\n\t}"
#define PTX_WGMMA_SHARED(n, type, first, second, turned, ...) \
  PTX_WGMMA(n, type, first, second, "0, " turned) \
      : __VA_ARGS__ : "l"(a_tile), "l"(b_tile), "n"(static_cast<int>(Turned)))
#define PTX_WGMMA_REGISTERS(n, type, first, second, turned, ...) \
  PTX_WGMMA(n, type, first, second, turned) \
      : __VA_ARGS__ : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b_tile), \
        "n"(static_cast<int>(Turned)))

#define PTX_SHARED_OF(type) \
  if constexpr (J == 4) \
    PTX_WGMMA_SHARED(32, type, "%16", "%17", "%18", PTX_D4(0)); \
  else if constexpr (J == 8) \
    PTX_WGMMA_SHARED(64, type, "%32", "%33", "%34", PTX_D8(0)); \
  else if constexpr (J == 12) \
    PTX_WGMMA_SHARED(96, type, "%48", "%49", "%50", PTX_D8(0), PTX_D4(8)); \
  else if constexpr (J == 16) \
    PTX_WGMMA_SHARED(128, type, "%64", "%65", "%66", PTX_D8(0), PTX_D8(8)); \
  else if constexpr (J == 20) \
    PTX_WGMMA_SHARED(160, type, "%80", "%81", "%82", PTX_D8(0), PTX_D8(8), PTX_D4(16)); \
  else if constexpr (J == 24) \
    PTX_WGMMA_SHARED(192, type, "%96", "%97", "%98", PTX_D8(0), PTX_D8(8), PTX_D8(16)); \
  else if constexpr (J == 28) \
    PTX_WGMMA_SHARED(224, type, "%112", "%113", "%114", PTX_D8(0), PTX_D8(8), PTX_D8(16), PTX_D4(24)); \
  else \
    PTX_WGMMA_SHARED(256, type, "%128", "%129", "%130", PTX_D8(0), PTX_D8(8), PTX_D8(16), PTX_D8(24))

#define PTX_A(i, j, k, l) "{%" #i ",%" #j ",%" #k ",%" #l "}"
#define PTX_REGISTERS_OF(type) \
  if constexpr (J == 4) \
    PTX_WGMMA_REGISTERS(32, type, PTX_A(16, 17, 18, 19), "%20", "%21", PTX_D4(0)); \
  else if constexpr (J == 8) \
    PTX_WGMMA_REGISTERS(64, type, PTX_A(32, 33, 34, 35), "%36", "%37", PTX_D8(0)); \
  else if constexpr (J == 12) \
    PTX_WGMMA_REGISTERS(96, type, PTX_A(48, 49, 50, 51), "%52", "%53", PTX_D8(0), PTX_D4(8)); \
  else if constexpr (J == 16) \
    PTX_WGMMA_REGISTERS(128, type, PTX_A(64, 65, 66, 67), "%68", "%69", PTX_D8(0), PTX_D8(8)); \
  else if constexpr (J == 20) \
    PTX_WGMMA_REGISTERS(160, type, PTX_A(80, 81, 82, 83), "%84", "%85", PTX_D8(0), PTX_D8(8), PTX_D4(16)); \
  else if constexpr (J == 24) \
    PTX_WGMMA_REGISTERS(192, type, PTX_A(96, 97, 98, 99), "%100", "%101", PTX_D8(0), PTX_D8(8), PTX_D8(16)); \
  else if constexpr (J == 28) \
    PTX_WGMMA_REGISTERS(224, type, PTX_A(112, 113, 114, 115), "%116", "%117", PTX_D8(0), PTX_D8(8), \
                        PTX_D8(16), PTX_D4(24)); \
  else \
    PTX_WGMMA_REGISTERS(256, type, PTX_A(128, 129, 130, 131), "%132", "%133", PTX_D8(0), PTX_D8(8), \
                        PTX_D8(16), PTX_D8(24))

}  // namespace device

template <bool Turned, int J>
PTX_DEVICE void wgmma_f16(float (&d)[2][J][2], U64 a_tile, U64 b_tile) {
  PTX_SHARED_OF("f16");
}
template <bool Turned, int J>
PTX_DEVICE void wgmma_bf16(float (&d)[2][J][2], U64 a_tile, U64 b_tile) {
  PTX_SHARED_OF("bf16");
}
template <bool Turned, int J>
PTX_DEVICE void wgmma_f16(float (&d)[2][J][2], const unsigned (&a)[4], U64 b_tile) {
  PTX_REGISTERS_OF("f16");
}
template <bool Turned, int J>
PTX_DEVICE void wgmma_bf16(float (&d)[2][J][2], const unsigned (&a)[4], U64 b_tile) {
  PTX_REGISTERS_OF("bf16");
}

}  // namespace ptx
