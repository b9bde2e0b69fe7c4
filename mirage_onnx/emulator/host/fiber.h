// A CUDA thread is a fiber: a stack of its own, switched to and from by the scheduler (cluster.h).
#pragma once

#include "state.h"

namespace emu {

#if defined(__x86_64__)
// Saves the callee-saved registers on the old stack, takes the new one. Rounding and exception
// masks are never changed by kernels, so mxcsr and the x87 control word stay as they are.
extern "C" void emu_switch(void** save, void* load) __attribute__((visibility("hidden")));
asm(R"(
.text
.globl emu_switch
.hidden emu_switch
.type emu_switch,@function
emu_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
.size emu_switch,.-emu_switch
)");
#endif

[[gnu::noinline]] static void to_scheduler() {
#if defined(__x86_64__)
  emu_switch(&cur->sp, g.scheduler_sp);
#else
  swapcontext(&cur->context, &g.scheduler);
#endif
}

[[gnu::noinline]] static void to_fiber(Fiber* f) {
  cur = f;
#if defined(__x86_64__)
  emu_switch(&g.scheduler_sp, f->sp);
#else
  swapcontext(&g.scheduler, &f->context);
#endif
  cur = nullptr;
}

static void start_fiber(Fiber* f, void (*main)()) {
#if defined(__x86_64__)
  // What emu_switch pops: six registers, then the return address; at the first instruction of
  // `main` the stack pointer is 8 below a multiple of 16, as after a call.
  void** top = reinterpret_cast<void**>(f->stack + kStack);
  *--top = nullptr;
  *--top = reinterpret_cast<void*>(main);
  for (int i = 0; i < 6; ++i) *--top = nullptr;
  f->sp = top;
#else
  getcontext(&f->context);
  f->context.uc_stack.ss_sp = f->stack;
  f->context.uc_stack.ss_size = kStack;
  f->context.uc_link = nullptr;
  makecontext(&f->context, main, 0);
#endif
}

static inline void enqueue(Fiber* f) {
  g.queue[g.tail] = f;
  if (++g.tail == g.slots) g.tail = 0;
}

// Waits until somebody wakes `key`. `what` is shown if that never happens.
static inline void park(const char* what, const void* key) {
  cur->waits = what;
  cur->key = key;
  to_scheduler();
}

static inline void wake_one(Fiber* f) {
  f->key = nullptr;
  f->waits = nullptr;
  enqueue(f);
}

// Runs again when nothing else can.
static inline void poll(const char* what) {
  cur->waits = what;
  g.pollers[g.poller_count++] = cur;
  to_scheduler();
  cur->waits = nullptr;
}

// ---- where the running thread is

int thread() { return cur->thread; }
int lane() { return cur->thread & 31; }
int block(int dimension) { return cur->cta->block[dimension]; }
int cluster_rank() { return cur->cta->rank; }
char* smem() { return cur->cta->smem; }
Cta* cta() { return cur->cta; }
Fiber* lane_of(Warp& warp, int lane) { return warp.first + lane; }

}  // namespace emu
