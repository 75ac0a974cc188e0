#!/usr/bin/env bash
# A hunk that begins in line 1, and a file with one more line above: patch applies it, git does not,
# also where both have applied the same change from line 2 on, and -C lets git pass over context.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
git --version
patch --version | head -n 1

seq 9 >old
for line in 2 3; do # with one line of context the hunk begins in line 1 and in line 2
    sed "${line}s/\$/ changed/" old >new
    diff -U1 --label a/file --label b/file old new >"$line.patch" || true
done
git init -q apply && cd apply

outcome() {
    { echo "one more line" && cat ../old; } >file
    if "$@" >../said 2>&1; then echo "applied ($(grep -n changed file))"; else echo "refused"; fi
}
found=$(
    for line in 2 3; do
        echo "change of line $line: patch $(outcome patch -p1 --fuzz=0 -i "../$line.patch")," \
            "git $(outcome git apply "../$line.patch")," \
            "git -C1 $(outcome git apply -C1 "../$line.patch")"
    done
)
echo "$found"
[ "$found" = "change of line 2: patch applied (3:2 changed), git refused, git -C1 refused
change of line 3: patch applied (4:3 changed), git applied (4:3 changed), git -C1 applied (4:3 changed)" ]
