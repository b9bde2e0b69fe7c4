// What the Python side passes in and gets back (mirrored by ctypes structures; keep the order), and a
// kernel as a function of the argument array that a CUDA launch takes.
#pragma once

namespace emu {

struct Range {  // one tensor: [lo, hi) may be read, and written if `writable`
  char* lo;
  char* hi;
  const char* name;
  int writable;
  int predecessor_writes;  // a kernel that may not have ended does
};

struct Launch {
  int grid[3];
  int block;  // threads
  int cluster;  // blocks, along x
  int smem_bytes;
  int timeout_s;  // of CPU time; a kernel that spins is stopped
  int descending;  // threads start in descending order. Results must not differ.
  int checks;  // races, uninitialised and asynchronous memory, dependent launch
  int pdl;  // may start before its predecessor ended
  mutable int early;  // out: a thread triggered before it waited
  int ranges;
  const Range* range;
  void** args;  // one pointer per kernel parameter, as for cudaLaunchKernel
};

struct Failure {
  int kind;  // Kind of api.h
  int block[3];
  int thread;  // in the block; -1: the error is nobody's
  long place;  // an offset in the library, of the instruction after the one at fault; 0: unknown
  char message[8192];  // \1 offset \2 stands for a line of the text
};

struct Entry {
  void (*call)(void** args);
  int arity;
  unsigned long long const_mask;  // bit i: parameter i is a pointer to const
};

template <class A>
struct IsConstPointer {
  static constexpr bool value = false;
};
template <class T>
struct IsConstPointer<const T*> {
  static constexpr bool value = true;
};
template <class T>
struct IsConstPointer<const T* __restrict__> {
  static constexpr bool value = true;
};

template <class... A>
constexpr int arity(void (*)(A...)) {
  return sizeof...(A);
}

template <class... A>
constexpr unsigned long long const_mask(void (*)(A...)) {
  unsigned long long mask = 0, bit = 1;
  ((mask |= IsConstPointer<A>::value ? bit : 0, bit <<= 1), ...);
  return mask;
}

template <unsigned long... I>
struct Numbers {};
// 0, 1, ... n - 1: that of <utility> would be read by every compilation, with 4,000 lines beside it.
template <unsigned long n, unsigned long... I>
struct NumbersBelow : NumbersBelow<n - 1, n - 1, I...> {};
template <unsigned long... I>
struct NumbersBelow<0, I...> {
  using type = Numbers<I...>;
};

template <class... A, unsigned long... I>
__attribute__((always_inline)) inline void apply(void (*kernel)(A...), void** args, Numbers<I...>) {
  kernel(*static_cast<A*>(args[I])...);
}

template <class... A>
__attribute__((always_inline)) inline void apply(void (*kernel)(A...), void** args) {
  apply(kernel, args, typename NumbersBelow<sizeof...(A)>::type());
}

template <auto Kernel>
__attribute__((noinline, no_sanitize("thread"))) void call_kernel(void** args) {
  apply(Kernel, args);
}

template <auto Kernel>
constexpr Entry entry() {
  return Entry{&call_kernel<Kernel>, arity(Kernel), const_mask(Kernel)};
}

}  // namespace emu
