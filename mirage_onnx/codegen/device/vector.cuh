// Element types, and vectors of them: global memory <-> fp32 registers.
//
// F16, BF16 and F32 are tags: T::Storage is what memory holds, a 16-bit value being its bits. Bool, I8, U8,
// I32 and I64 are of inputs only: elements are loaded as the nearest fp32 number.
// Eight<T> is eight consecutive elements as they lie in memory.
// Needs ptx.cuh, included before.
#pragma once

// How a tensor is read (see ptx.cuh): once, as a constant, or after another kernel wrote it.
enum class Path { kStream, kConst, kCoherent };

struct F16 {
  using Storage = unsigned short;
  static PTX_DEVICE float widen(Storage bits) { return ptx::f16_to_f32(bits); }
  static PTX_DEVICE Storage narrow(float v) { return ptx::f32_to_f16(v); }
  static PTX_DEVICE void unpack(unsigned pair, float& a, float& b) { ptx::unpack_f16(pair, a, b); }
  static PTX_DEVICE unsigned pack(float a, float b) { return ptx::pack_f16(a, b); }
};

struct BF16 {
  using Storage = unsigned short;
  static PTX_DEVICE float widen(Storage bits) { return ptx::bf16_to_f32(bits); }
  static PTX_DEVICE Storage narrow(float v) { return ptx::f32_to_bf16(v); }
  static PTX_DEVICE void unpack(unsigned pair, float& a, float& b) { ptx::unpack_bf16(pair, a, b); }
  static PTX_DEVICE unsigned pack(float a, float b) { return ptx::pack_bf16(a, b); }
};

struct F32 {
  using Storage = float;
};

struct Bool {
  using Storage = unsigned char;
  template <Path P>
  static PTX_DEVICE Storage load(const Storage* from) {
    return P == Path::kCoherent ? ptx::ld_u8(from) : ptx::ld_nc_u8(from);
  }
  static PTX_DEVICE float widen(Storage bits) { return bits ? 1.0f : 0.0f; }
};

struct U8 {
  using Storage = unsigned char;
  template <Path P>
  static PTX_DEVICE Storage load(const Storage* from) {
    return Bool::load<P>(from);
  }
  static PTX_DEVICE float widen(Storage bits) { return static_cast<float>(bits); }
};

struct I8 : U8 {
  static PTX_DEVICE float widen(Storage bits) {
    return static_cast<float>(bits ^ 0x80u) - 128.0f;
  }
};

struct I32 {
  using Storage = int;
  template <Path P>
  static PTX_DEVICE Storage load(const Storage* from) {
    return static_cast<int>(P == Path::kCoherent ? ptx::ld_u32(from) : ptx::ld_nc_u32(from));
  }
  static PTX_DEVICE float widen(Storage bits) { return static_cast<float>(bits); }
};

struct I64 {
  using Storage = long long;
  template <Path P>
  static PTX_DEVICE Storage load(const Storage* from) {
    const ptx::U2 v = P == Path::kCoherent ? ptx::ld_v2(from) : ptx::ld_nc_v2(from);
    return static_cast<long long>(static_cast<unsigned long long>(v.y) << 32 | v.x);
  }
  static PTX_DEVICE float widen(Storage bits) { return static_cast<float>(bits); }
};

template <class T>
constexpr bool kInputOnly = false;
template <>
constexpr bool kInputOnly<Bool> = true;
template <>
constexpr bool kInputOnly<I8> = true;
template <>
constexpr bool kInputOnly<U8> = true;
template <>
constexpr bool kInputOnly<I32> = true;
template <>
constexpr bool kInputOnly<I64> = true;

// The value of v after it is stored as T and read back.
template <class T>
PTX_DEVICE float round_to(float v) {
  return T::widen(T::narrow(v));
}

// ---- one element ----------------------------------------------------------------------------

template <class T, Path P>
PTX_DEVICE typename T::Storage load_bits(const typename T::Storage* from) {
  if constexpr (kInputOnly<T>) {
    return T::template load<P>(from);
  } else if constexpr (sizeof(typename T::Storage) == 4) {
    return P == Path::kCoherent ? ptx::ld_f32(from) : ptx::ld_nc_f32(from);
  } else {
    return P == Path::kCoherent ? ptx::ld_u16(from) : ptx::ld_nc_u16(from);
  }
}

template <class T, Path P>
PTX_DEVICE float load(const typename T::Storage* from) {
  if constexpr (!kInputOnly<T> && sizeof(typename T::Storage) == 4) {
    return load_bits<T, P>(from);
  } else {
    return T::widen(load_bits<T, P>(from));
  }
}

// The row, of `rows` in a table, that a run names at `place`; a negative one counts from the end. Of
// one that is not there, which ONNX does not define, the nearest is read: nothing outside the table.
PTX_DEVICE int nearest_row(long long named, int rows) {
  const long long row = named < 0 ? named + rows : named;
  return static_cast<int>(row < 0 ? 0 : row < rows ? row : rows - 1);
}
PTX_DEVICE int picked_row(const long long* picks, int place, int rows) {
  return nearest_row(I64::load<Path::kCoherent>(picks + place), rows);
}
PTX_DEVICE int picked_row(const int* picks, int place, int rows) {
  return nearest_row(I32::load<Path::kCoherent>(picks + place), rows);
}

// Where an axis of `size` elements ends for a kernel: at what memory says and `more`, if that is within it.
PTX_DEVICE int ended(long long count, int more, int size) {
  return count > -more && count < size - more ? static_cast<int>(count) + more : size;
}
PTX_DEVICE int ended(const long long* count, int more, int size) {
  return ended(I64::load<Path::kCoherent>(count), more, size);
}
PTX_DEVICE int ended(const int* count, int more, int size) {
  return ended(static_cast<long long>(I32::load<Path::kCoherent>(count)), more, size);
}

template <class T>
PTX_DEVICE void store(typename T::Storage* to, float v) {
  if constexpr (sizeof(typename T::Storage) == 4) {
    ptx::st_f32(to, v);
  } else {
    ptx::st_u16(to, T::narrow(v));
  }
}

// ---- eight elements, 16-byte aligned ---------------------------------------------------------

template <class T>
struct Eight {
  ptx::U4 v;
};
template <>
struct Eight<F32> {
  ptx::U4 v, high;
};
template <>
struct Eight<I8> {
  ptx::U2 v;
};
template <>
struct Eight<U8> {
  ptx::U2 v;
};
template <class T>
constexpr bool kIsByte = sizeof(typename T::Storage) == 1;

template <Path P>
PTX_DEVICE void load16_if(ptx::U4& to, const void* from, bool valid) {
  if constexpr (P == Path::kStream) {
    ptx::ld_stream_v4_if(to, from, valid);
  } else if constexpr (P == Path::kConst) {
    ptx::ld_nc_v4_if(to, from, valid);
  } else {
    ptx::ld_v4_if(to, from, valid);
  }
}

template <Path P>
PTX_DEVICE ptx::U4 load16(const void* from) {
  if constexpr (P == Path::kStream) {
    return ptx::ld_stream_v4(from);
  } else if constexpr (P == Path::kConst) {
    return ptx::ld_nc_v4(from);
  } else {
    return ptx::ld_v4(from);
  }
}

template <class T, Path P>
PTX_DEVICE Eight<T> load8(const typename T::Storage* from) {
  Eight<T> e;
  if constexpr (kIsByte<T>) {
    e.v = P == Path::kCoherent ? ptx::ld_v2(from) : ptx::ld_nc_v2(from);
    return e;
  } else {
    e.v = load16<P>(from);
  }
  if constexpr (sizeof(typename T::Storage) == 4) e.high = load16<P>(from + 4);
  return e;
}

// Where `valid`; otherwise `to` keeps its value and `from` is not read.
template <class T, Path P>
PTX_DEVICE void load8_if(Eight<T>& to, const typename T::Storage* from, bool valid) {
  if constexpr (kIsByte<T>) {
    if (valid) to = load8<T, P>(from);
    return;
  } else {
    load16_if<P>(to.v, from, valid);
  }
  if constexpr (sizeof(typename T::Storage) == 4) load16_if<P>(to.high, from + 4, valid);
}

// Elements 0, stride, 2 * stride, ... of which the first `count` exist; the others are zero.
template <class T, Path P>
PTX_DEVICE Eight<T> gather8(const typename T::Storage* from, int stride, int count) {
  unsigned r[8];
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    if constexpr (sizeof(typename T::Storage) == 4) {
      r[j] = j < count ? ptx::f32_to_bits(load_bits<T, P>(from + j * stride)) : 0u;
    } else {
      r[j] = j < count ? static_cast<unsigned>(load_bits<T, P>(from + j * stride)) : 0u;
    }
  }
  Eight<T> e;
  if constexpr (sizeof(typename T::Storage) == 4) {
    e.v = {r[0], r[1], r[2], r[3]};
    e.high = {r[4], r[5], r[6], r[7]};
  } else if constexpr (kIsByte<T>) {
    e.v = {r[0] | r[1] << 8 | r[2] << 16 | r[3] << 24, r[4] | r[5] << 8 | r[6] << 16 | r[7] << 24};
  } else {
    e.v = {r[0] | r[1] << 16, r[2] | r[3] << 16, r[4] | r[5] << 16, r[6] | r[7] << 16};
  }
  return e;
}

template <class T>
PTX_DEVICE void unpack8(const Eight<T>& e, float (&to)[8]) {
  if constexpr (sizeof(typename T::Storage) == 4) {
    const unsigned r[8] = {e.v.x, e.v.y, e.v.z, e.v.w, e.high.x, e.high.y, e.high.z, e.high.w};
#pragma unroll
    for (int j = 0; j < 8; ++j) to[j] = ptx::bits_to_f32(r[j]);
  } else if constexpr (kIsByte<T>) {
#pragma unroll
    for (int j = 0; j < 8; ++j)
      to[j] = T::widen(static_cast<typename T::Storage>((j < 4 ? e.v.x : e.v.y) >> j % 4 * 8));
  } else {
    T::unpack(e.v.x, to[0], to[1]);
    T::unpack(e.v.y, to[2], to[3]);
    T::unpack(e.v.z, to[4], to[5]);
    T::unpack(e.v.w, to[6], to[7]);
  }
}

template <class T>
PTX_DEVICE Eight<T> pack8(const float (&from)[8]) {
  Eight<T> e;
  e.v = {T::pack(from[0], from[1]), T::pack(from[2], from[3]), T::pack(from[4], from[5]),
         T::pack(from[6], from[7])};
  return e;
}

// ---- W = 1, 2, 4 or 8 elements, aligned to their size (16 bytes at most) ----------------------

template <class T, Path P, int W>
PTX_DEVICE void load_vector(const typename T::Storage* from, float (&to)[W]) {
  constexpr int kBytes = W * static_cast<int>(sizeof(typename T::Storage));
  if constexpr (W == 1) {
    to[0] = load<T, P>(from);
  } else if constexpr (kInputOnly<T>) {
#pragma unroll
    for (int j = 0; j < W; ++j) to[j] = load<T, P>(from + j);
  } else if constexpr (W == 8) {
    unpack8<T>(load8<T, P>(from), to);
  } else if constexpr (kBytes == 16) {
    const ptx::U4 v = load16<P>(from);
    to[0] = ptx::bits_to_f32(v.x);
    to[1] = ptx::bits_to_f32(v.y);
    to[2] = ptx::bits_to_f32(v.z);
    to[3] = ptx::bits_to_f32(v.w);
  } else if constexpr (kBytes == 8) {
    const ptx::U2 v = P == Path::kCoherent ? ptx::ld_v2(from) : ptx::ld_nc_v2(from);
    if constexpr (W == 2) {
      to[0] = ptx::bits_to_f32(v.x);
      to[1] = ptx::bits_to_f32(v.y);
    } else {
      T::unpack(v.x, to[0], to[1]);
      T::unpack(v.y, to[2], to[3]);
    }
  } else {
    T::unpack(P == Path::kCoherent ? ptx::ld_u32(from) : ptx::ld_nc_u32(from), to[0], to[1]);
  }
}

template <class T, int W>
PTX_DEVICE void store_vector(typename T::Storage* to, const float (&v)[W]) {
  if constexpr (W == 1) {
    store<T>(to, v[0]);
  } else if constexpr (sizeof(typename T::Storage) == 4) {
    if constexpr (W == 2) {
      ptx::st_v2(to, {ptx::f32_to_bits(v[0]), ptx::f32_to_bits(v[1])});
    } else {
#pragma unroll
      for (int j = 0; j < W; j += 4) {
        ptx::st_v4(to + j, {ptx::f32_to_bits(v[j]), ptx::f32_to_bits(v[j + 1]),
                            ptx::f32_to_bits(v[j + 2]), ptx::f32_to_bits(v[j + 3])});
      }
    }
  } else if constexpr (W == 8) {
    ptx::st_v4(to, pack8<T>(v).v);
  } else if constexpr (W == 4) {
    ptx::st_v2(to, {T::pack(v[0], v[1]), T::pack(v[2], v[3])});
  } else {
    ptx::st_u32(to, T::pack(v[0], v[1]));
  }
}
