#!/usr/bin/env bash
# A plain diff, as diff -u, quilt and svn write it: git apply takes it, libgit2 (pygit2 1.21.0) is
# not able to parse it before git's own line 'diff --git' stands above.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv env
env/bin/pip install -qq pygit2==1.21.0
git --version

git init -q tree
seq 9 >tree/file
sed 's/2/two/' tree/file >new
diff -u --label a/file --label b/file tree/file new >plain.patch || true
{ echo "diff --git a/file b/file" && cat plain.patch; } >git.patch
git -C tree apply --check ../plain.patch && git -C tree apply --check ../git.patch
echo "git apply --check: both"

env/bin/python - <<'PYTHON'
import pygit2

print("libgit2", pygit2.LIBGIT2_VERSION)


def parsed(name):
    try:
        return [patch.delta.new_file.path for patch in pygit2.Diff.parse_diff(open(name).read())]
    except Exception as error:
        return f"{type(error).__name__}: {error}"


found = parsed("plain.patch"), parsed("git.patch")
print("plain diff:", found[0])
print("with git's line:", found[1])
refused = isinstance(found[0], str) and "invalid hunk header outside patch" in found[0]
raise SystemExit(not (refused and found[1] == ["file"]))
PYTHON
