#!/usr/bin/env bash
# Builds the binary with fault points, and with a wall clock that can be set: clock.sh OUT. Nothing of the product is changed
# for it; the standard library of this one binary is, in the function that reads the clock.
set -euo pipefail
cd "$(dirname "$0")/../.."
go=${GO:-go} out=$1 work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
src=$("$go" env GOROOT)/src/time/time.go
sed 's/^\tsec, nsec, mono := runtimeNow()$/&\n\tsec += WallStep/' "$src" >"$work/time.go"
printf '\n// WallStep is by how many seconds the wall clock is off.\nvar WallStep int64\n' >>"$work/time.go"
[ "$(grep -c 'sec += WallStep' "$work/time.go")" = 1 ] || { echo "clock.sh: time.Now of this Go version reads the clock in another way" >&2; exit 1; }
printf '{"Replace":{"%s":"%s"}}\n' "$src" "$work/time.go" >"$work/overlay.json"
CGO_ENABLED=0 "$go" build -trimpath -overlay "$work/overlay.json" -tags faults,clock -o "$out" ./cmd/naradctl-plane
