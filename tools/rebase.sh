#!/bin/sh
# Move the patch series to another upstream release. docs/maintainers.md tells how.
#   tools/rebase.sh 0.30.0 --ascend 0.30.0rc2
set -eu
root=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd)
make --no-print-directory -s -C "$root" .venv/.made
case "${1-}" in
[a-z]* | -h | --help | '') ;; # a verb
*) set -- bump "$@" ;;
esac
exec env PYTHONPATH="$root/tools" "$root/.venv/bin/python" -m balance_tools rebase "$@"
