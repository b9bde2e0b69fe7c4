// The emulator's runtime: compiled once, without instrumentation, and linked into every module, which
// so has a state of its own. The module's other object is the kernels' text, with its table of entries.
#include "launch.h"

#define EMU_EXPORT extern "C" __attribute__((visibility("default")))

extern "C" const emu::Entry emu_entries[];

EMU_EXPORT int emu_launch(int kernel, const emu::Launch* launch, emu::Failure* failure) {
    return emu::launch(emu_entries[kernel], *launch, failure);
}
EMU_EXPORT int emu_arity(int kernel) { return emu_entries[kernel].arity; }
EMU_EXPORT unsigned long long emu_const_mask(int kernel) { return emu_entries[kernel].const_mask; }
EMU_EXPORT void emu_release() { emu::release_threads(); }
EMU_EXPORT void* emu_map(unsigned long bytes, int initialised) {
    return emu::tensor_map(bytes, initialised != 0);
}
EMU_EXPORT void emu_unmap(void* p) { emu::tensor_unmap(static_cast<char*>(p)); }
EMU_EXPORT long emu_damage(const void* p, unsigned long bytes) {
    return emu::tensor_damage(static_cast<const char*>(p), bytes);
}
