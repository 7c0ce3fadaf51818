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
#   serve      the same model behind the router, at 1 to 128 streams
#   roofline   each kernel's share of what the device can do
# CHECK_ARGUMENTS is handed on, such as "--device 1"; "--emulated" tries smoke, devices and demo without a GPU.
# STEP_SECONDS (590) is what a step may take: what it has seen by then is kept.
# SERVE_DEVICE (cuda:0), SERVE_MODEL (a folder; 20b), SERVE_STREAMS, SERVE_SECONDS (15, of each) and SERVE_TOKENS (128, of an
# answer and in words of a prompt) are serve's own: SERVE_DEVICE=cpu SERVE_MODEL=demo-model SERVE_SECONDS=2 tries it without a GPU.
set -u
cd "$(dirname "$0")"
mkdir -p results
cp commit.txt results/ 2>/dev/null
limit=${STEP_SECONDS:-590} # of a step, weights included; at most 590, so that a call that is cut off after ten minutes is not
[ "$limit" -le 590 ] || limit=590
failed=0
router=./bin/llm-router

within() { # WORDS...: runs them until the step's end; 124 where that came first
  local left=$((end - SECONDS))
  [ "$left" -gt 0 ] || return 124
  timeout -k 5 "$left" "$@"
}

check() { # STEP WORDS...: one row for each line, kept and shown
  local step=$1
  shift
  # shellcheck disable=SC2086
  within "$@" ${CHECK_ARGUMENTS:-} | tee -a "results/$step.jsonl"
  local status=${PIPESTATUS[0]}
  case $status in 124 | 137) say "$step" "it ran into the limit of $limit seconds" ;; esac
  return "$status"
}

say() { # STEP WORDS: a row of its own
  printf '{"what":"step","ok":false,"step":"%s","error":"%s"}\n' "$1" "$(printf %s "$2" | tr -d '\000-\037"\\')" | tee -a "results/$1.jsonl"
}

weights() { # STEP: random weights in the shape of gpt-oss-20b
  [ -f 20b/complete ] && return 0
  within ./bin/gpt-oss-synth --shape 20b --out 20b && touch 20b/complete && return 0
  say "$1" "the weights could not be made within $limit seconds: 14 GB of disk are needed in $PWD"
  return 1
}

serve() { # The router and a node in one process, a worker with the device, and requests from outside.
  local device=${SERVE_DEVICE:-cuda:0} model=${SERVE_MODEL:-20b} tokens=${SERVE_TOKENS:-128} streams home up row status=0
  [[ $model = /* ]] || model=./$model
  home=$(mktemp -d)
  timeout -k 5 "$limit" $router up --data-dir "$home/data" --log-dir "$home/log" --listen 127.0.0.1:0 --device "$device" >"$home/up.log" 2>&1 &
  up=$!
  until grep -q "listens on" "$home/up.log"; do
    if ! kill -0 "$up" 2>/dev/null || [ "$SECONDS" -gt "$end" ]; then
      say serve "the router did not start: $(tail -n 1 "$home/up.log")"
      return 1
    fi
    sleep 0.2
  done
  if within $router models add "$model" --id served --data-dir "$home/data" --device "$device" \
    --sequences-max 128 --context-length 1024 --wait >"$home/add.log" 2>&1; then
    for streams in ${SERVE_STREAMS:-1 2 4 8 16 32 64 128}; do
      if row=$(within $router bench served --data-dir "$home/data" --api completions \
        --ignore-eos --concurrency "$streams" --seconds "${SERVE_SECONDS:-15}" --prompt-words "$tokens" --max-tokens "$tokens" --json); then
        printf '{"what":"serve","ok":true,"device":"%s","streams":%s,%s\n' "$device" "$streams" "${row#\{}" | tee -a results/serve.jsonl
      else
        say serve "no figures at $streams streams: they failed, or the limit of $limit seconds came"
        status=1
        break
      fi
    done
  else
    say serve "the model was not taken: $(tail -n 1 "$home/add.log")"
    status=1
  fi
  kill -TERM "$up"
  wait "$up"
  [ "$status" -ne 0 ] || rm -rf "$home"
  return "$status"
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
    20b) weights 20b && check 20b $program model --model 20b ;;
    serve) { [ -n "${SERVE_MODEL:-}" ] || weights serve; } && serve ;;
  esac
}

[ $# -gt 0 ] || { sed -n '2,17p' "$0"; exit 2; }
[ -d bin ] || tar -xzf programs.tar.gz || exit 1
for step in "$@"; do
  case $step in
    smoke | devices | demo | sanitizer | recompile | 20b | serve | roofline) ;;
    *)
      say unknown "there is no step $step: see ./run.sh"
      failed=1
      continue
      ;;
  esac
  start=$SECONDS end=$((SECONDS + limit))
  printf '{"what":"run","ok":true,"step":"%s","date":"%s","commit":"%s"}\n' "$step" "$(date -u +%F)" "$(cat commit.txt 2>/dev/null)" >>"results/$step.jsonl"
  if run "$step"; then result=true; else result=false failed=1; fi
  printf '{"what":"step","ok":%s,"step":"%s","seconds":%s}\n' "$result" "$step" "$((SECONDS - start))" | tee -a "results/$step.jsonl"
done
exit "$failed"
