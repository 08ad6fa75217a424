#!/usr/bin/env bash
# queue.sh CORE FILE: the trials of FILE, a line each, one after another on one core; later lines may be added while it runs.
n=0
while true; do
  line=$(sed -n "$((n + 1))p" "$2")
  if [ -z "$line" ]; then sleep 3; continue; fi
  [ "$line" = end ] && break
  n=$((n + 1))
  taskset -c "$1" "$PYTHON" run.py "$line" "$LOGS" "$OUT" 2>&1 | grep -v -i warn
done
