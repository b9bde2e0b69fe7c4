// The emulator's runtime: one fiber per CUDA thread, all CTAs of one cluster alive together.
//
// Included once, through the host twin of ptx.cuh, into the one translation unit that also holds
// the kernels' text. Nothing here knows about a PTX instruction: it offers threads that can wait
// (park/wake), collectives of a warp, barriers of a block and of a cluster, checked memory, and a
// launch that ends in either success or one error message. A fault (segmentation, division by zero)
// inside a kernel becomes such a message too: the host process is a Python interpreter.
//
// Every state is a `static` of this one translation unit: two modules loaded together share nothing.
#pragma once

#include <csetjmp>
#include <csignal>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <sys/mman.h>
#include <sys/time.h>
#include <unistd.h>
#include <utility>
#if !defined(__x86_64__)
#include <ucontext.h>
#endif

namespace emu {

using usize = unsigned long;

// ---------------------------------------------------------------------------------------------
// What the Python side passes in (mirrored by ctypes structures in run.py; keep the order).

struct Range {  // one tensor: [lo, hi) may be read, and written if `writable`
    char* lo;
    char* hi;
    const char* name;
    int writable;
};

struct Launch {
    int grid[3];
    int block[3];
    int cluster[3];
    int smem_bytes;
    int timeout_s;  // of CPU time; a kernel that spins is stopped
    int order;      // 0: threads start in ascending order; 1: descending. Results must not differ.
    int ranges;
    const Range* range;
    void** args;  // one pointer per kernel parameter, as for cudaLaunchKernel
};

struct Entry {
    const char* name;
    void (*call)(void** args);
    int arity;
    unsigned long long const_mask;  // bit i: parameter i is a pointer to const
};

// ---------------------------------------------------------------------------------------------
// Fibers

constexpr usize kPage = 4096;
constexpr usize kGuard = 1 << 20;  // around tensors and shared memory: reserved, costs nothing
constexpr usize kStack = 64 * 1024;  // plus one guard page below
constexpr unsigned char kPoison = 0xff;  // every byte: NaN in f16, bf16, f32 and f64

struct Cta;
struct Warp;

struct Fiber {
    void* sp = nullptr;  // saved stack pointer while switched out
#if !defined(__x86_64__)
    ucontext_t context;
#endif
    char* stack = nullptr;
    Cta* cta = nullptr;
    Warp* warp = nullptr;
    int tid[3] = {0, 0, 0};
    int thread = 0;  // linear thread index in the block
    int lane = 0;
    bool done = false;
    const char* waits = nullptr;  // what it waits for, while parked
    const void* key = nullptr;    // ... and the object that will wake it
    // cluster barrier: has arrived in phase `cluster_phase` and not yet waited
    bool cluster_arrived = false;
    unsigned cluster_phase = 0;
};

struct Warp {
    Fiber* first = nullptr;  // its fibers are contiguous
    int size = 0;
    int arrived = 0;
    const char* what = nullptr;  // the collective under way
    void* payload[32] = {};
    unsigned epoch = 0;
};

struct Barrier {
    int arrived = 0;
    int expected = 0;
};

struct Cta {
    int block[3] = {0, 0, 0};
    int rank = 0;  // in its cluster
    char* smem = nullptr;
    Fiber* first = nullptr;
    int threads = 0;
    int live = 0;
    Warp warps[32];
    Barrier barriers[16];
};

struct State {
    const Launch* launch = nullptr;
    const char* kernel = "";
    void (*call)(void**) = nullptr;
    Fiber* fibers = nullptr;
    int fiber_count = 0;
    int fiber_capacity = 0;
    Cta* ctas = nullptr;
    int cta_count = 0;
    int cta_capacity = 0;
    usize smem_capacity = 0;
    Fiber** queue = nullptr;  // ring of runnable fibers, one slot more than there are fibers
    int head = 0, tail = 0, slots = 0;
    int live = 0;
    // cluster barrier
    int cluster_missing = 0;
    unsigned cluster_phase = 0;
    // error of the current launch
    bool failed = false;
    bool running = false;
    pid_t owner = 0;
    char* message = nullptr;
    usize message_size = 0;
    sigjmp_buf landing;
    void* scheduler_sp = nullptr;
#if !defined(__x86_64__)
    ucontext_t scheduler;
#endif
};

static State g;
static Fiber* cur = nullptr;

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

// ---------------------------------------------------------------------------------------------
// Errors: the first one wins; the fiber that found it never runs again.

static void say(const char* format, ...) __attribute__((format(printf, 1, 2)));
static void say(const char* format, ...) {
    const usize used = strlen(g.message);
    if (used + 1 >= g.message_size) return;
    va_list list;
    va_start(list, format);
    vsnprintf(g.message + used, g.message_size - used, format, list);
    va_end(list);
}

static void say_where(const Fiber* f) {
    say("kernel %s", g.kernel);
    if (!f) return;
    const int* b = f->cta->block;
    say(", block (%d,%d,%d), thread ", b[0], b[1], b[2]);
    if (g.launch->block[1] * g.launch->block[2] > 1)
        say("(%d,%d,%d): ", f->tid[0], f->tid[1], f->tid[2]);
    else
        say("%d: ", f->thread);
}

[[noreturn, gnu::noinline, gnu::cold]] static void fail(const char* format, ...)
    __attribute__((format(printf, 1, 2)));
[[noreturn, gnu::noinline, gnu::cold]] static void fail(const char* format, ...) {
    say_where(cur);
    const usize used = strlen(g.message);
    va_list list;
    va_start(list, format);
    if (used + 1 < g.message_size)
        vsnprintf(g.message + used, g.message_size - used, format, list);
    va_end(list);
    g.failed = true;
    to_scheduler();
    __builtin_unreachable();
}

// ---------------------------------------------------------------------------------------------
// Waiting

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

static inline void wake_range(Fiber* first, int count, const void* key) {
    for (int i = 0; i < count; ++i)
        if (first[i].key == key) {
            first[i].key = nullptr;
            first[i].waits = nullptr;
            enqueue(&first[i]);
        }
}

// Wakes every thread of the cluster that waits for `key`.
static inline void wake(const void* key) { wake_range(g.fibers, g.fiber_count, key); }

// Lets every other runnable thread run first (for a polling loop such as a try_wait).
static inline void yield() {
    enqueue(cur);
    to_scheduler();
}

// A collective of all lanes of the warp: the last lane to arrive runs `all` over the 32 payloads
// (which lie on the lanes' own stacks), then every lane goes on. Lanes that meet in different
// collectives are an error at once, a lane that never comes is found as a deadlock.
template <class T>
static inline void collective(const char* what, T& payload, void (*all)(Warp&, T** lane)) {
    Warp& w = *cur->warp;
    if (w.arrived == 0)
        w.what = what;
    else if (w.what != what && strcmp(w.what, what) != 0)
        fail("diverged warp: this lane is at %s while another waits at %s", what, w.what);
    w.payload[cur->lane] = &payload;
    if (++w.arrived < w.size) {
        park(what, &w);
        return;
    }
    w.arrived = 0;
    all(w, reinterpret_cast<T**>(w.payload));
    wake_range(w.first, w.size, &w);
}

struct Nothing {};
static inline void warp_barrier(const char* what) {
    Nothing none;
    collective<Nothing>(what, none, [](Warp&, Nothing**) {});
}

// bar.sync id, count. A thread that has exited does not arrive: the generator never lets a thread
// leave before its block's last barrier, so waiting for it is reported as a deadlock.
static inline void block_barrier(int id, int count, const char* what, bool wait = true) {
    if (id < 0 || id >= 16) fail("%s: barrier %d does not exist", what, id);
    if (count <= 0 || count > cur->cta->threads)
        fail("%s: barrier of %d threads in a block of %d", what, count, cur->cta->threads);
    Barrier& b = cur->cta->barriers[id];
    if (b.arrived == 0)
        b.expected = count;
    else if (b.expected != count)
        fail("%s: barrier %d of %d threads, but others came for %d", what, id, count, b.expected);
    if (++b.arrived == count) {
        b.arrived = 0;
        wake_range(cur->cta->first, cur->cta->threads, &b);
    } else if (wait) {
        park(what, &b);
    }
}

static inline void cluster_complete() {
    g.cluster_phase++;
    g.cluster_missing = g.live;
    wake(&g.cluster_phase);
}

static inline void cluster_arrive() {
    if (cur->cluster_arrived) fail("cluster_arrive twice without cluster_wait");
    cur->cluster_arrived = true;
    cur->cluster_phase = g.cluster_phase;
    if (--g.cluster_missing == 0) cluster_complete();
}

static inline void cluster_wait() {
    if (!cur->cluster_arrived) fail("cluster_wait without cluster_arrive");
    if (cur->cluster_phase == g.cluster_phase) park("cluster_wait", &g.cluster_phase);
    cur->cluster_arrived = false;
}

// ---------------------------------------------------------------------------------------------
// Checked memory

enum Access { kRead, kWrite };

static inline const char* verb(Access a) { return a == kRead ? "read" : "write"; }

[[noreturn, gnu::noinline, gnu::cold]] static void out_of_bounds(usize at, usize size, Access a) {
    const Range* best = nullptr;
    usize best_distance = ~usize(0);
    for (int i = 0; i < g.launch->ranges; ++i) {
        const Range& r = g.launch->range[i];
        const usize lo = reinterpret_cast<usize>(r.lo), hi = reinterpret_cast<usize>(r.hi);
        const usize distance = at < lo ? lo - at : at + size > hi ? at + size - hi : 0;
        if (distance < best_distance) best = &r, best_distance = distance;
    }
    if (!best)
        fail("out-of-bounds %s of %lu bytes at 0x%lx: no tensor there", verb(a), size, at);
    if (best_distance == 0)
        fail("write of %lu bytes at 0x%lx to the read-only tensor '%s' (byte %ld)", size, at,
             best->name, static_cast<long>(at - reinterpret_cast<usize>(best->lo)));
    fail("out-of-bounds %s of %lu bytes at 0x%lx: byte %ld of tensor '%s', which has %ld", verb(a),
         size, at, static_cast<long>(at - reinterpret_cast<usize>(best->lo)), best->name,
         static_cast<long>(best->hi - best->lo));
}

static int last_range = 0;

static inline void aligned(usize at, usize size, const char* what) {
    if (at & (size - 1)) fail("misaligned %s of %lu bytes at 0x%lx", what, size, at);
}

// A global access of `size` bytes (a power of two, also the alignment it needs).
static inline void check_global(const void* p, usize size, Access a) {
    const usize at = reinterpret_cast<usize>(p);
    aligned(at, size, a == kRead ? "global read" : "global write");
    for (int i = -1; i < g.launch->ranges; ++i) {  // first the one that was right last time
        const int index = i < 0 ? last_range : i;
        if (index >= g.launch->ranges) continue;
        const Range& r = g.launch->range[index];
        if (at >= reinterpret_cast<usize>(r.lo) && at + size <= reinterpret_cast<usize>(r.hi)) {
            if (a == kWrite && !r.writable) break;
            last_range = index;
            return;
        }
    }
    out_of_bounds(at, size, a);
}

static inline bool in_smem(const Cta* c, const void* p) {
    return p >= c->smem && p < c->smem + g.launch->smem_bytes;
}

// An access to the shared memory of `c`.
static inline void check_shared(const Cta* c, const void* p, usize size, Access a) {
    const usize at = reinterpret_cast<usize>(p);
    const usize lo = reinterpret_cast<usize>(c->smem);
    const usize hi = lo + static_cast<usize>(g.launch->smem_bytes);
    if (at < lo || at + size > hi)
        fail("out-of-bounds shared %s of %lu bytes at byte %ld of %d", verb(a), size,
             static_cast<long>(at - lo), g.launch->smem_bytes);
    aligned(at - lo, size, a == kRead ? "shared read" : "shared write");
}

// Generic access: shared memory of this block, else global.
static inline void check(const void* p, usize size, Access a) {
    if (in_smem(cur->cta, p))
        check_shared(cur->cta, p, size, a);
    else
        check_global(p, size, a);
}

static inline Cta* peer(unsigned rank) {
    if (rank >= static_cast<unsigned>(g.cta_count))
        fail("cluster rank %u in a cluster of %d", rank, g.cta_count);
    return &g.ctas[rank];
}

// Where `p` (in this block's shared memory) lies in the shared memory of block `rank`.
static inline char* map_shared(const void* p, unsigned rank, usize size, Access a) {
    check_shared(cur->cta, p, size, a);
    Cta* c = peer(rank);
    if (c->live == 0) fail("%s of the shared memory of block %u, which has exited", verb(a), rank);
    return c->smem + (static_cast<const char*>(p) - cur->cta->smem);
}

// ---------------------------------------------------------------------------------------------
// Launch

static void fiber_main() {
    g.call(g.launch->args);
    cur->done = true;
    Cta& c = *cur->cta;
    --g.live;
    // An exited thread counts as arrived at the cluster barrier.
    if (!(cur->cluster_arrived && cur->cluster_phase == g.cluster_phase) &&
        --g.cluster_missing == 0)
        cluster_complete();
    // Its shared memory may be given to another block now: whoever still reads it reads poison.
    if (--c.live == 0 && g.launch->smem_bytes)
        memset(c.smem, kPoison, static_cast<usize>(g.launch->smem_bytes));
    to_scheduler();
    __builtin_unreachable();
}

static void* pages(usize bytes, usize guard_below, usize guard_above) {
    char* p = static_cast<char*>(mmap(nullptr, guard_below + bytes + guard_above, PROT_NONE,
                                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
    if (p == MAP_FAILED || mprotect(p + guard_below, bytes, PROT_READ | PROT_WRITE)) return nullptr;
    return p + guard_below;
}

static inline usize rounded(usize n) { return (n + kPage - 1) / kPage * kPage; }

static void start_fiber(Fiber* f) {
    f->done = f->cluster_arrived = false;
    f->waits = nullptr;
    f->key = nullptr;
#if defined(__x86_64__)
    // What emu_switch pops: six registers, then the return address; at the first instruction of
    // fiber_main the stack pointer is 8 below a multiple of 16, as after a call.
    void** top = reinterpret_cast<void**>(f->stack + kStack);
    *--top = nullptr;
    *--top = reinterpret_cast<void*>(&fiber_main);
    for (int i = 0; i < 6; ++i) *--top = nullptr;
    f->sp = top;
#else
    getcontext(&f->context);
    f->context.uc_stack.ss_sp = f->stack;
    f->context.uc_stack.ss_size = kStack;
    f->context.uc_link = nullptr;
    makecontext(&f->context, fiber_main, 0);
#endif
}

static void say_deadlock() {
    say("deadlock in kernel %s: ", g.kernel);
    bool comma = false;
    for (int c = 0; c < g.cta_count; ++c) {
        const Cta& cta = g.ctas[c];
        for (int i = 0; i < cta.threads;) {  // runs of threads in the same condition
            const Fiber* f = &cta.first[i];
            int j = i + 1;
            while (j < cta.threads && cta.first[j].key == f->key && cta.first[j].done == f->done)
                ++j;
            if (cta.live) {
                say("%sblock (%d,%d,%d) thread", comma ? "; " : "", cta.block[0], cta.block[1],
                    cta.block[2]);
                if (j - i > 1)
                    say("s %d-%d ", i, j - 1);
                else
                    say(" %d ", i);
                if (f->done) {
                    say("exited");
                } else {
                    say("wait%s at %s", j - i > 1 ? "" : "s", f->waits ? f->waits : "nothing");
                    for (int b = 0; b < 16; ++b)
                        if (f->key == &cta.barriers[b])
                            say(" (%d of %d arrived)", cta.barriers[b].arrived,
                                cta.barriers[b].expected);
                    if (f->key == f->warp)
                        say(" (%d of %d lanes arrived)", f->warp->arrived, f->warp->size);
                    if (f->key == &g.cluster_phase)
                        say(" (%d threads missing)", g.cluster_missing);
                }
                comma = true;
            }
            i = j;
        }
    }
    g.failed = true;
}

static void run_cluster(const int* base) {
    const Launch& l = *g.launch;
    g.head = g.tail = 0;
    g.live = g.cluster_missing = g.fiber_count;
    g.cluster_phase++;
    for (int r = 0; r < g.cta_count; ++r) {
        Cta& c = g.ctas[r];
        c.rank = r;
        c.block[0] = base[0] + r % l.cluster[0];
        c.block[1] = base[1] + r / l.cluster[0] % l.cluster[1];
        c.block[2] = base[2] + r / l.cluster[0] / l.cluster[1];
        c.live = c.threads;
        for (Barrier& b : c.barriers) b = Barrier();
        for (Warp& w : c.warps) w.arrived = 0;
        if (l.smem_bytes) memset(c.smem, kPoison, rounded(static_cast<usize>(l.smem_bytes)));
    }
    for (int i = 0; i < g.fiber_count; ++i) {
        Fiber* f = &g.fibers[l.order ? g.fiber_count - 1 - i : i];
        start_fiber(f);
        enqueue(f);
    }
    while (g.head != g.tail) {
        Fiber* f = g.queue[g.head];
        if (++g.head == g.slots) g.head = 0;
        to_fiber(f);
        if (g.failed) return;
    }
    if (g.live) return say_deadlock();
    for (int r = 0; r < g.cta_count; ++r) {
        const usize used = static_cast<usize>(l.smem_bytes);
        for (usize i = used; used && i < rounded(used); ++i)
            if (static_cast<unsigned char>(g.ctas[r].smem[i]) != kPoison) {
                const int* b = g.ctas[r].block;
                say("kernel %s, block (%d,%d,%d): shared memory was written at byte %lu of %lu",
                    g.kernel, b[0], b[1], b[2], i, used);
                g.failed = true;
                return;
            }
    }
}

// Buffers are kept from launch to launch and only grow.
static bool reserve(const Launch& l) {
    const int threads = l.block[0] * l.block[1] * l.block[2];
    const int warps = (threads + 31) / 32;
    g.cta_count = l.cluster[0] * l.cluster[1] * l.cluster[2];
    g.fiber_count = g.cta_count * threads;
    if (g.fiber_count > g.fiber_capacity) {
        Fiber* bigger = new Fiber[static_cast<usize>(g.fiber_count)];
        for (int i = 0; i < g.fiber_count; ++i) {
            bigger[i].stack = i < g.fiber_capacity
                                  ? g.fibers[i].stack
                                  : static_cast<char*>(pages(kStack, kPage, 0));
            if (!bigger[i].stack) return false;
        }
        delete[] g.fibers;
        delete[] g.queue;
        g.fibers = bigger;
        g.fiber_capacity = g.fiber_count;
        g.slots = g.fiber_count + 1;
        g.queue = new Fiber*[static_cast<usize>(g.slots)];
    }
    const usize smem = rounded(static_cast<usize>(l.smem_bytes));
    if (g.cta_count > g.cta_capacity || smem != g.smem_capacity) {
        for (int i = 0; i < g.cta_capacity; ++i)
            if (g.ctas[i].smem) munmap(g.ctas[i].smem - kGuard, g.smem_capacity + 2 * kGuard);
        delete[] g.ctas;
        g.ctas = new Cta[static_cast<usize>(g.cta_count)];
        g.cta_capacity = g.cta_count;
        g.smem_capacity = smem;
        for (int i = 0; smem && i < g.cta_count; ++i)
            if (!(g.ctas[i].smem = static_cast<char*>(pages(smem, kGuard, kGuard)))) return false;
    }
    for (int r = 0; r < g.cta_count; ++r) {
        Cta& c = g.ctas[r];
        c.threads = threads;
        c.first = g.fibers + r * threads;
        for (int w = 0; w < warps; ++w) {
            c.warps[w].first = c.first + w * 32;
            c.warps[w].size = threads - w * 32 < 32 ? threads - w * 32 : 32;
        }
        for (int t = 0; t < threads; ++t) {
            Fiber& f = c.first[t];
            f.cta = &c;
            f.warp = &c.warps[t / 32];
            f.thread = t;
            f.lane = t % 32;
            f.tid[0] = t % l.block[0];
            f.tid[1] = t / l.block[0] % l.block[1];
            f.tid[2] = t / l.block[0] / l.block[1];
        }
    }
    return true;
}

// Memory for one tensor: a guard, a page of poison, the bytes, poison to a page's end, a guard.
static usize spread(usize bytes) { return kPage + rounded(bytes + 256); }

static char* tensor_map(usize bytes) {
    char* p = static_cast<char*>(pages(spread(bytes), kGuard, kGuard));
    if (!p) return nullptr;
    memset(p, kPoison, kPage);
    memset(p + kPage + bytes, kPoison, spread(bytes) - kPage - bytes);
    return p + kPage;
}

static void tensor_unmap(char* p, usize bytes) {
    munmap(p - kPage - kGuard, spread(bytes) + 2 * kGuard);
}

// The offset of a byte around the tensor that was overwritten by a plain store (the wrappers' stores
// are checked one by one), or 0 if there is none.
static long tensor_damage(const char* p, usize bytes) {
    const long end = static_cast<long>(spread(bytes) - kPage);
    for (long i = -static_cast<long>(kPage); i < end; ++i) {
        if (i == 0) i = static_cast<long>(bytes);
        if (static_cast<unsigned char>(p[i]) != kPoison) return i;
    }
    return 0;
}

static const int kSignals[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGVTALRM};
constexpr int kSignalCount = 6;
static struct sigaction old_action[kSignalCount];

static void on_signal(int number, siginfo_t* info, void*) {
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
    say_where(cur);
    if (number == SIGVTALRM) {
        say("no end after %d s of CPU time", g.launch->timeout_s);
        siglongjmp(g.landing, 1);
    }
    const char* name = number == SIGFPE   ? "arithmetic fault (integer division by zero)"
                       : number == SIGILL || number == SIGTRAP ? "trap"
                                                               : "wild access";
    if (number == SIGSEGV && info->si_code == SI_KERNEL)  // the processor gives no address
        say("misaligned 16-byte access, or an address that is none");
    else
        say("%s at 0x%lx", name, reinterpret_cast<usize>(info->si_addr));
    const char* at = static_cast<const char*>(info->si_addr);
    if (cur && number == SIGSEGV) {
        const char* guard = cur->stack - kPage;
        if (at >= guard && at < cur->stack) say(": the thread's stack of %lu bytes is full", kStack);
        for (int r = 0; r < g.cta_count; ++r) {
            const char* smem = g.ctas[r].smem;
            if (smem && at >= smem - kGuard && at < smem + g.smem_capacity + kGuard)
                say(": byte %ld of the %d of shared memory", static_cast<long>(at - smem),
                    g.launch->smem_bytes);
        }
        for (int i = 0; i < g.launch->ranges; ++i) {
            const Range& r = g.launch->range[i];
            if (at >= r.lo - kPage - kGuard && at < r.hi + kGuard)
                say(": byte %ld of tensor '%s', which has %ld", static_cast<long>(at - r.lo), r.name,
                    static_cast<long>(r.hi - r.lo));
        }
    }
    siglongjmp(g.landing, 1);
}

static int launch(const Entry& entry, const Launch& l, char* message, usize size) {
    g.launch = &l;
    g.kernel = entry.name;
    g.call = entry.call;
    g.message = message;
    g.message_size = size;
    g.failed = false;
    g.owner = gettid();
    message[0] = 0;
    last_range = 0;
    const int threads = l.block[0] * l.block[1] * l.block[2];
    for (int d = 0; d < 3; ++d)
        if (l.cluster[d] < 1 || l.grid[d] < 1 || l.grid[d] % l.cluster[d]) {
            say("kernel %s: a grid of %d blocks in dimension %d is no multiple of the cluster's %d",
                entry.name, l.grid[d], d, l.cluster[d]);
            return 1;
        }
    if (threads < 1 || threads > 1024 || !reserve(l)) {
        say("kernel %s: no memory for %d threads", entry.name, g.fiber_count);
        return 1;
    }
    // Faults run on a stack of their own: the fiber's may be the thing that is full.
    static char* signal_stack = static_cast<char*>(pages(16 * kPage, kPage, 0));
    stack_t ours = {}, theirs = {};
    ours.ss_sp = signal_stack;
    ours.ss_size = 16 * kPage;
    sigaltstack(&ours, &theirs);
    struct sigaction action = {};
    action.sa_sigaction = on_signal;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    for (int i = 0; i < kSignalCount; ++i) sigaction(kSignals[i], &action, &old_action[i]);
    itimerval limit = {};
    limit.it_value.tv_sec = l.timeout_s;
    if (sigsetjmp(g.landing, 1) == 0) {
        g.running = true;
        setitimer(ITIMER_VIRTUAL, &limit, nullptr);
        int base[3];
        for (base[2] = 0; base[2] < l.grid[2] && !g.failed; base[2] += l.cluster[2])
            for (base[1] = 0; base[1] < l.grid[1] && !g.failed; base[1] += l.cluster[1])
                for (base[0] = 0; base[0] < l.grid[0] && !g.failed; base[0] += l.cluster[0])
                    run_cluster(base);
    } else {
        g.failed = true;
    }
    g.running = false;
    cur = nullptr;
    limit.it_value.tv_sec = 0;
    setitimer(ITIMER_VIRTUAL, &limit, nullptr);
    for (int i = 0; i < kSignalCount; ++i) {
        // A timer signal may still be under way, and would by default end the process.
        if (kSignals[i] == SIGVTALRM && old_action[i].sa_handler == SIG_DFL) continue;
        sigaction(kSignals[i], &old_action[i], nullptr);
    }
    sigaltstack(&theirs, nullptr);
    return g.failed;
}

// A kernel as a function of the argument array that a CUDA launch takes, and what its parameter
// types say: how many there are, and which are pointers to const (the emulator then refuses writes).
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
static constexpr int arity(void (*)(A...)) {
    return sizeof...(A);
}

template <class... A>
static constexpr unsigned long long const_mask(void (*)(A...)) {
    unsigned long long mask = 0, bit = 1;
    ((mask |= IsConstPointer<A>::value ? bit : 0, bit <<= 1), ...);
    return mask;
}

template <class... A, usize... I>
static inline void apply(void (*kernel)(A...), void** args, std::index_sequence<I...>) {
    kernel(*static_cast<A*>(args[I])...);
}

template <class... A>
static inline void apply(void (*kernel)(A...), void** args) {
    apply(kernel, args, std::index_sequence_for<A...>());
}

template <auto Kernel>
static void call_kernel(void** args) {
    apply(Kernel, args);
}

template <auto Kernel>
static constexpr Entry entry(const char* name) {
    return Entry{name, &call_kernel<Kernel>, arity(Kernel), const_mask(Kernel)};
}

}  // namespace emu
