#!/usr/bin/env bash
# Fuzzes every target for a time and says how long each ran: run.sh [TIME [PATTERN]], such as run.sh 60s 'FuzzFrame|FuzzState'.
# What is found stays in the package's testdata/fuzz, where go test finds it again.
set -uo pipefail
cd "$(dirname "$0")/../.."
time=${1:-60s} pattern=${2:-.} go=${GO:-go} failed=0 total=0
while IFS=: read -r file line; do
  target=$(sed -E 's/func (Fuzz[A-Za-z0-9]+)\(.*/\1/' <<<"$line")
  grep -qE "$pattern" <<<"$target" || continue
  package=./$(dirname "$file") log=$(mktemp) began=$SECONDS
  # Making interesting inputs small would take most of the time; what fails is still made small.
  nice -n 19 "$go" test -run='^$' -fuzz="^$target\$" -fuzztime="$time" -fuzzminimizetime=50x -parallel="${PARALLEL:-2}" "$package" >"$log" 2>&1
  status=$?
  # The fuzzer calls it a failure when its own time is up in the middle of something; a real one leaves its input, or a trace.
  if [ $status -ne 0 ] && grep -q '^ *context deadline exceeded$' "$log" && ! grep -qE 'Failing input|panic|goroutine ' "$log"; then
    status=0
  fi
  spent=$((SECONDS - began)) total=$((total + SECONDS - began))
  counts=$(grep -oE 'execs: [0-9]+' "$log" | tail -1)
  ran=$(grep -oE 'elapsed: [0-9hms]+' "$log" | tail -1)
  if [ $status -eq 0 ] && [ -n "$counts" ]; then
    printf 'ok    %-40s %-22s %s, %s, %d s with the build\n' "$package" "$target" "$ran" "$counts" "$spent"
  else
    failed=$((failed + 1))
    printf 'FAIL  %-40s %-22s %s\n' "$package" "$target" "$ran"
    sed 's/^/      /' "$log"
  fi
  rm -f "$log"
done < <(grep -rHoE --include='*_test.go' '^func Fuzz[A-Za-z0-9]+\(f \*testing\.F\)' cmd consensus fsm internal nodeagent planner transfer | sort)
printf 'fuzz: %s, %d min %d s, %d failed\n' "$([ $failed -eq 0 ] && echo PASS || echo FAIL)" $((total / 60)) $((total % 60)) "$failed"
[ "$failed" -eq 0 ]
