#!/bin/sh
# Build and inspect a release in dist/release-VERSION; docs/maintainers.md tells how.
#   tools/release.sh [--trial]    a trial may have changes and no section in CHANGELOG.md
set -eu
cd "$(dirname "$0")/.."
fail() {
    echo "error: $1" >&2
    exit 1
}

trial=
[ "${1-}" != --trial ] || trial=-trial
upstream=$(sed -n '/^\[vllm\]/,/^filename/s/^version = "\(.*\)"/\1/p' upstream.toml)
version=$upstream+balance.$(sed -n 's/^revision = //p' distribution.toml)
folder=dist/release-$version$trial
# The repository is the one here, not that of a hook, or of a folder above.
# shellcheck disable=SC2046
unset $(git rev-parse --local-env-vars)
GIT_CEILING_DIRECTORIES=$(dirname "$PWD")
export GIT_CEILING_DIRECTORIES
commit=$(git rev-parse --verify --quiet HEAD) || fail "$PWD: expected a git checkout with a commit, found none; clone the repository"
if [ -z "$trial" ]; then
    day='([0-9]{4}-[0-9]{2}-[0-9]{2})'
    sed -nE "s/^## (.*) \($day\)$/\1/p" CHANGELOG.md | grep -Fxq "$version" ||
        fail "CHANGELOG.md: expected a section '## $version (YYYY-MM-DD)', found none; write it, as docs/maintainers.md says, or make a trial"
    # By an index of its own: flags in that of the checkout hide changes.
    empty=$(mktemp -d)
    GIT_INDEX_FILE=$empty/index git -c core.sparseCheckout=false read-tree HEAD
    changes=$(GIT_INDEX_FILE=$empty/index git -c core.sparseCheckout=false status --porcelain)
    rm -r "$empty"
    [ -z "$changes" ] ||
        fail "$PWD: expected no changes against commit $commit, found some (git status); commit them, or make a trial"
    tagged=$(git rev-parse --verify --quiet "refs/tags/v$version^{commit}" || true)
    [ "${tagged:-$commit}" = "$commit" ] ||
        fail "distribution.toml: expected a version without a tag, found v$version on commit $tagged; raise the revision, as docs/maintainers.md says"
fi

part=dist/.release.part
rm -rf "$part"
mkdir -p "$part"
trap 'rm -rf "$part"' EXIT
PYTHONPATH=tools .venv/bin/python -m balance_tools wheel --all >"$part/SHA256SUMS"
while read -r _ wheel; do cp "$wheel" "$part"; done <"$part/SHA256SUMS"
(cd "$part" && sha256sum -- *.whl >SHA256SUMS && chmod 644 ./*)
.venv/bin/python -m pytest --quiet --release="$part" tests/wheel/test_requirements.py
.venv/bin/python -m pytest --quiet --release="$part" -m '' tests/wheel/test_contents.py # all seven
if [ -d "$folder" ] && [ -z "$trial" ]; then
    cmp -s "$folder/SHA256SUMS" "$part/SHA256SUMS" ||
        fail "$folder: expected no release here, or the same bytes, found others; raise the revision in distribution.toml, or remove the folder if it was never published"
else
    rm -rf "$folder"
    mv "$part" "$folder"
fi
cat "$folder/SHA256SUMS"
echo "$folder"
