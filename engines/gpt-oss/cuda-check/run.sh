#!/usr/bin/env bash
# Runs the named steps one after the other: ./run.sh STEP…
# Each writes lines of JSON to results/STEP.jsonl as it goes, and to the terminal. Needs the GPU's driver and nothing else;
# `sanitizer` needs CUDA's compute-sanitizer, `recompile` its NVRTC, and both say so where it is missing.
#   smoke      the GPUs, and whether the kernels load
#   devices    every operator against plain Rust
#   demo       the demo model's recorded answers
#   sanitizer  the demo model's shortest answer under compute-sanitizer
#   recompile  every operator with kernels compiled here
#   20b        a whole model of random weights, made here: load, memory, decode, prefill
#   roofline   each kernel's share of what the device can do
# CHECK_ARGUMENTS is handed on, such as "--device 1"; "--emulated" tries smoke, devices and demo without a GPU.
set -u
cd "$(dirname "$0")"
mkdir -p results
limit=590 # seconds of a step
failed=0

check() { # STEP WORDS...: one row for each line, kept and shown
  local step=$1
  shift
  # shellcheck disable=SC2086
  timeout "$limit" "$@" ${CHECK_ARGUMENTS:-} | tee -a "results/$step.jsonl"
  local status=${PIPESTATUS[0]}
  [ "$status" -ne 124 ] || say "$step" "it ran into the limit of $limit seconds"
  return "$status"
}

say() { # STEP WORDS: a row of its own
  printf '{"what":"step","ok":false,"step":"%s","error":"%s"}\n' "$1" "$2" | tee -a "results/$1.jsonl"
}

run() {
  local program=./bin/gpt-oss-cuda-check
  case $1 in
    smoke | devices | roofline) check "$1" $program "$1" ;;
    demo) check demo $program demo --model demo-model ;;
    sanitizer)
      command -v compute-sanitizer >/dev/null || { say sanitizer "compute-sanitizer is not installed: it comes with the CUDA toolkit"; return 1; }
      check sanitizer compute-sanitizer --error-exitcode 9 $program demo --model demo-model --only capital_low
      ;;
    recompile) check recompile $program devices --kernels kernels ;;
    20b)
      [ -f 20b/complete ] || { timeout "$limit" ./bin/gpt-oss-synth --shape 20b --out 20b && touch 20b/complete; } || { say 20b "the weights could not be made: 14 GB of disk are needed"; return 1; }
      check 20b $program model --model 20b
      ;;
    *) say unknown "there is no step $1"; return 1 ;;
  esac
}

[ $# -gt 0 ] || { sed -n '2,12p' "$0"; exit 2; }
for step in "$@"; do
  start=$SECONDS
  if run "$step"; then result=true; else result=false failed=1; fi
  printf '{"what":"step","ok":%s,"step":"%s","seconds":%s}\n' "$result" "$step" "$((SECONDS - start))" | tee -a "results/$step.jsonl"
done
exit "$failed"
