#!/usr/bin/env bash
# Everything that runs on the H200 machine, in one call:
#
#     bash bench/h200.sh [tests] [primitives] [sweep] [models] [whole] [kinds] [bench] [coverage] \
#         [mutants] [failures] [counters] [ablation]
#
# It has torch, nvcc and cmake but no package registry, so what else is needed travels with the tree:
# .gpu/*.txz (onnxruntime-gpu, packed as ../shared/tools/pack_ort_gpu.py does, and newer cuda
# packages) and .whl/*.whl. Logs and results go to $OUT, or to ./out. BENCH_SECONDS is the time of all
# cases of `bench` (those that do not fit are named), BENCH_ARGS what else bench/run.py is told.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
OUT=${OUT:-$PWD/out}
SITE=${SITE:-/tmp/site}
mkdir -p "$OUT" "$SITE"
exec > >(tee -a "$OUT/log.txt") 2>&1

setup() {
    local pack
    for pack in .gpu/*.txz; do
        [ -e "$pack" ] && { tar xJf "$pack" -C "$SITE" || return 1; }
    done
    if compgen -G ".whl/*.whl" >/dev/null; then
        python3 -m pip install -q --no-index --no-deps --no-compile --no-cache-dir --upgrade \
            --target "$SITE" .whl/*.whl || return 1
    fi
    # The image has the CPU package too; with both installed mirage_onnx refuses to go on.
    if [ -d "$SITE/onnxruntime" ] && python3 -m pip show -q onnxruntime 2>/dev/null; then
        python3 -m pip uninstall -q -y onnxruntime || return 1
    fi
    # onnxruntime finds cuBLAS and cuDNN once torch has loaded them.
    cat >"$SITE/sitecustomize.py" <<'PY'
import sys


class TorchFirst:
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        if name == "onnxruntime":
            sys.meta_path.remove(cls)
            import torch  # noqa: F401
        return None


sys.meta_path.insert(0, TorchFirst)
PY
    export PYTHONPATH="$SITE:$PWD" PYTHONUNBUFFERED=1 MIRAGE_CACHE_DIR=/tmp/mirage-cache
    cmake -S cpp/ort_custom_ops -B build/ops -DCMAKE_BUILD_TYPE=Release --log-level=WARNING &&
        cmake --build build/ops --parallel "$(nproc)" -- -s || return 1
    python3 models/packed.py && python3 -m mirage_onnx env
}

step() { # NAME SECONDS COMMAND...
    local name=$1 limit=$2 start=$SECONDS
    shift 2
    echo "== $name: $*"
    timeout -k 10 "$limit" "$@"
    local code=$?
    echo "== $name: exit $code after $((SECONDS - start)) s"
    [ $code -eq 0 ] || failed+=("$name")
}

failed=()
start=$SECONDS
setup || { echo "== setup failed"; exit 1; }
echo "== setup: $((SECONDS - start)) s"
for name in "${@:-tests}"; do
    case $name in
    tests) step tests 450 python3 -m pytest -q -m gpu --durations=8 -p no:cacheprovider tests ;;
    primitives)
        step primitives 200 env PRIMITIVES_RECORD="$OUT/primitives" \
            python3 -m pytest -q -m gpu -p no:cacheprovider tests/gpu/test_primitives.py ;;
    sweep) step sweep 300 python3 bench/tiled_sweep.py --out "$OUT" --all ;;
    models) step models 200 python3 bench/models.py "$OUT/models.json" ;;
    whole) # .dev/whole/graphs.zip travels with the tree, too
        seconds=${BENCH_SECONDS:-540}
        step whole $((seconds + 20)) python3 bench/whole.py --out "$OUT" --total "$seconds" \
            ${BENCH_ARGS:-} ;;
    kinds)
        seconds=${BENCH_SECONDS:-540}
        step kinds $((seconds + 20)) python3 bench/kinds.py --out "$OUT" --total "$seconds" \
            ${BENCH_ARGS:-} ;;
    bench)
        seconds=${BENCH_SECONDS:-440}
        step bench $((seconds + 40)) python3 bench/run.py --out "$OUT" --total "$seconds" \
            ${BENCH_ARGS:-} ;;
    coverage | mutants | failures) # need no GPU, but its many cores; .dev/records/ goes on
        case $name in
        coverage) command=(bench/coverage.py --jobs $(($(nproc) / 2)) --out "$OUT") ;;
        mutants) command=(bench/pipeline_mutants.py --jobs "$(nproc)" --out "$OUT/pipeline_mutants.json") ;;
        failures) command=(bench/failures.py --jobs "$(nproc)" --out "$OUT/failures.json") ;;
        esac
        cp .dev/records/*.json "$OUT" 2>/dev/null
        step "$name" "${BENCH_SECONDS:-540}" python3 "${command[@]}" ${BENCH_ARGS:-} ;;
    counters) step counters 540 python3 bench/counters.py --out "$OUT" ${BENCH_ARGS:-} ;;
    ablation) step ablation 540 python3 bench/ablation.py --out "$OUT" ${BENCH_ARGS:-} ;;
    *) echo "unknown step $name"; failed+=("$name") ;;
    esac
done
[ ${#failed[@]} -eq 0 ] || { echo "== failed: ${failed[*]}"; exit 1; }
echo "== all done"
