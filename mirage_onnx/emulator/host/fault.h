// A fault (segmentation, division by zero) or an endless loop inside a kernel becomes an error message:
// the host process is a Python interpreter.
#pragma once

#include <csignal>

#include "reserve.h"

namespace emu {

static const int kSignals[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGVTALRM};
constexpr int kSignalCount = 6;
static struct sigaction old_action[kSignalCount];

// The instruction at fault if it is the library's, else where the text called last.
static const void* fault_place([[maybe_unused]] void* context) {
#if defined(__x86_64__)
  const char* pc =
      reinterpret_cast<const char*>(static_cast<ucontext_t*>(context)->uc_mcontext.gregs[REG_RIP]);
  if (pc >= &__ehdr_start && pc < &_end) return pc + 1;
#endif
  return cur ? cur->pc : nullptr;
}

static void say_fault(int number, const siginfo_t* info) {
  const char* name = number == SIGFPE         ? "arithmetic fault (integer division by zero)"
      : number == SIGILL || number == SIGTRAP ? "trap"
                                              : "wild access";
  if (number == SIGSEGV && info->si_code == SI_KERNEL)  // the processor gives no address
    say("misaligned 16-byte access, or an address that is none");
  else if (number == SIGSEGV || number == SIGBUS)
    say("%s at 0x%lx", name, reinterpret_cast<usize>(info->si_addr));
  else
    say("%s", name);
  const char* at = static_cast<const char*>(info->si_addr);
  if (!cur || number != SIGSEGV) return;
  if (at >= cur->stack - kPage && at < cur->stack)
    say(": the thread's stack of %lu bytes is full", kStack);
  for (int r = 0; r < g.cta_count; ++r) {
    const char* smem = g.ctas[r].smem;
    if (at >= smem - kGuard / 2 && at < smem + kGuard)
      say(": byte %ld of the %d of shared memory", static_cast<long>(at - smem), g.smem_bytes);
  }
  for (int i = 0; i < g.launch->ranges; ++i) {
    const Range& r = g.launch->range[i];
    if (at >= r.lo - kPage - kGuard && at < r.hi + kGuard)
      say(": byte %ld of tensor '%s', which has %ld", static_cast<long>(at - r.lo), r.name,
          static_cast<long>(r.hi - r.lo));
  }
}

static void on_signal(int number, siginfo_t* info, void* context) {
  if (number == SIGVTALRM && !g.running) return;  // fired while the launch was ending
  if (number == SIGVTALRM && gettid() != g.owner) {
    tgkill(getpid(), g.owner, SIGVTALRM);  // the timer counts the process, not a thread
    return;
  }
  if (!g.running || gettid() != g.owner) {  // another thread of the process: not ours
    for (int i = 0; i < kSignalCount; ++i)
      if (kSignals[i] == number) sigaction(number, &old_action[i], nullptr);
    return;  // the instruction faults again, into the handler that was there before
  }
  g.running = false;
  begin_failure(number == SIGVTALRM ? kTimeout : kFault, cur, fault_place(context));
  if (number == SIGVTALRM)
    say("no end after %d s of CPU time", g.launch->timeout_s);
  else
    say_fault(number, info);
  siglongjmp(g.landing, 1);
}

}  // namespace emu
