#!/bin/sh
# Runs the parts of this bundle: `./run --help` says how. Needs a POSIX shell and, for a GPU, NVIDIA's driver.
set -u
here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd) || exit 2

usage() {
    cat <<'EOF'
usage: ./run [--device cuda|sim] PART [arguments]

Parts that run in the foreground and take the program's own arguments:
  doctor          what this machine has, what is missing, and a self-test
  digits          trains a network on handwritten digits (--graph, --steps N)
  conformance     every rule of the driver interface, one line each
  litmus          conformance, then small concurrent programs with their outcomes
  NAME            any other program of this bundle: see which with ls

Parts that are run in turn, each with a log, and a table at the end:
  tests [NAME..]  the integration tests, or those of the crates named
  benches         the benches, as JSON lines
  all             all of the above; digits eagerly, again, and as a graph, with
                  their losses compared

  --device D      cuda or sim (default: cuda if this machine has a GPU)

Logs go to the folder that the variable OUT names (default: ./out). Libraries are
found through the loader's path, CUDA_HOME, and the nvidia wheels of the active
Python; `./run doctor` shows which. Where NVRTC is missing the bundle's own
precompiled kernels are used. The exit status is 0 only if every part's was.
EOF
}

device=sim
for file in /dev/nvidia[0-9]* /dev/dxg; do
    if [ -e "$file" ]; then device=cuda; fi
done
while [ $# -gt 0 ]; do
    case $1 in
    --device)
        case ${2-} in
        cuda | sim) device=$2 ;;
        *) echo "run: --device takes cuda or sim, not '${2-}'" >&2; exit 2 ;;
        esac
        shift 2 ;;
    -h | --help) usage; exit 0 ;;
    *) break ;;
    esac
done
if [ $# -eq 0 ]; then usage >&2; exit 2; fi
part=$1
shift

export THALWEG_DEVICE="$device" THALWEG_TEST_DEVICE="$device"
# Tests share the GPU: while one captures a graph, calls of another thread would break the capture.
if [ "$device" = cuda ]; then export RUST_TEST_THREADS=1; fi
out=${OUT:-out}

# unpack ARCHIVE NAME FOLDER: puts what NAME.tar.* holds into FOLDER/NAME; whole or not at all, so that a run that is cut short
# does no harm.
unpack() {
    mkdir -p "$3/$2.$$" && tar -C "$3/$2.$$" -mxf "$here/$1" || return 1
    # What others can write is not used.
    chmod -R go-w "$3/$2.$$/$2" || return 1
    rm -rf "${3:?}/$2" && mv "$3/$2.$$/$2" "$3/$2" && rmdir "$3/$2.$$"
}

# unpacked ARCHIVE NAME: says where NAME is: beside its archive or, where nothing can be written there, beside the logs.
unpacked() {
    if [ ! -d "$here/$2" ] || [ "$here/$1" -nt "$here/$2" ]; then
        unpack "$1" "$2" "$here" 2>/dev/null || { unpack "$1" "$2" "$out" && echo "$(cd "$out" && pwd)/$2" && return; } || return 1
    fi
    echo "$here/$2"
}

programs=$here
if [ -f "$here/programs.tar.xz" ]; then
    programs=$(unpacked programs.tar.xz programs) || { echo "run: the programs cannot be unpacked; tar and xz are needed" >&2; exit 2; }
fi
export CARGO_BIN_EXE_thalweg="$programs/thalweg"
if [ -f "$here/kernels.tar.xz" ] && [ -z "${THALWEG_PRECOMPILED_KERNELS-}" ]; then
    kernels=$(unpacked kernels.tar.xz kernels) ||
        echo "run: the precompiled kernels cannot be unpacked, for which tar and xz are needed: NVRTC compiles them instead" >&2
    export THALWEG_PRECOMPILED_KERNELS="$kernels"
fi
summary=
failures=0

# row NAME STATUS SECONDS TEXT: one line of the table.
row() {
    summary="$summary$(printf '%-24s %6s %7s  %.39s' "$1" "$2" "$3" "$4")
"
    [ "$2" = 0 ] || failures=$((failures + 1))
}

# step NAME COMMAND..: runs a part with a log, and remembers how it went.
step() {
    name=$1
    shift
    log="$out/$(printf '%s' "$name" | tr '/ ' '--').log"
    printf '== %s\n' "$name"
    start=$(date +%s)
    "$@" >"$log" 2>&1 </dev/null
    status=$?
    seconds=$(($(date +%s) - start))
    # What the program says at its end; for tests, the line with the counts.
    says=$(sed -n 's/^test result: //p' "$log" | tail -n 1)
    [ -n "$says" ] || says=$(grep -v '^[[:space:]]*$' "$log" | tail -n 1)
    case $says in '{'*) says="$(grep -c '^{' "$log") figures" ;; esac
    [ "$status" = 0 ] || tail -n 15 "$log" | sed 's/^/   | /'
    row "$name" "$status" "$seconds" "$says"
}

begin() {
    mkdir -p "$out" || exit 2
    {
        date -u '+date    %Y-%m-%dT%H:%M:%SZ'
        sed 's/^/bundle  /' "$here/VERSION"
        echo "system  $(uname -srm)"
        echo "device  $device"
        if [ "$device" = cuda ] && command -v nvidia-smi >/dev/null 2>&1; then
            nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader | sed 's/^/gpu    /'
        fi
    } | tee "$out/machine.txt"
}

finish() {
    {
        printf '\n%-24s %6s %7s  %s\n' part status seconds 'what it says'
        printf '%s' "$summary"
        printf '%s of the parts failed; logs are in %s\n' "$failures" "$out"
    } | tee "$out/summary.txt"
    [ "$failures" -eq 0 ]
    exit
}

run_tests() {
    for test in "$programs"/tests/*; do
        [ -x "$test" ] || continue
        name=${test##*/}
        if [ $# -gt 0 ]; then
            # With or without the prefix that all of them have.
            case " $* " in *" $name "* | *" ${name#thalweg-} "*) ;; *) continue ;; esac
        fi
        step "tests/${name#thalweg-}" "$test"
    done
}

run_benches() {
    for bench in "$programs"/benches/*; do
        [ -x "$bench" ] || continue
        name=${bench##*/}
        step "bench/${name#thalweg-}" "$bench" --bench --json "$@"
    done
}

run_examples() {
    for example in "$programs"/*; do
        [ -f "$example" ] && [ -x "$example" ] || continue
        case ${example##*/} in
        run | thalweg | conformance | digits) ;;
        graph_study) step graph_study "$example" --device "$device" --html "$out/graph_study.html" ;;
        *) step "${example##*/}" "$example" ;;
        esac
    done
}

run_digits() {
    step digits "$programs/digits" --device "$device" --json
    step digits-again "$programs/digits" --device "$device" --json
    step digits-graph "$programs/digits" --device "$device" --graph --json
    losses=$(cat "$out"/digits.log "$out"/digits-again.log "$out"/digits-graph.log | grep '^losses:' | sort | uniq -c)
    case $losses in
    *' 3 losses:'*) row digits-losses 0 0 "the same in all three runs" ;;
    *) row digits-losses 1 0 "they differ: see the logs" ;;
    esac
}

case $part in
doctor) exec "$programs/thalweg" doctor "$@" ;;
digits) exec "$programs/digits" --device "$device" "$@" ;;
conformance) exec "$programs/conformance" --device "$device" "$@" ;;
litmus) exec "$programs/conformance" --device "$device" --litmus "$@" ;;
tests) begin; run_tests "$@"; finish ;;
benches) begin; run_benches "$@"; finish ;;
all)
    begin
    step doctor "$programs/thalweg" doctor
    step litmus "$programs/conformance" --device "$device" --litmus
    run_tests
    run_digits
    run_examples
    run_benches
    finish ;;
*)
    case $part in
    */* | run) ;;
    *) if [ -f "$programs/$part" ] && [ -x "$programs/$part" ]; then exec "$programs/$part" "$@"; fi ;;
    esac
    echo "run: there is no part '$part'" >&2
    usage >&2
    exit 2 ;;
esac
