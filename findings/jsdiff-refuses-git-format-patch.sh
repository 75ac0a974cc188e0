#!/usr/bin/env bash
# The last lines that git format-patch writes, '-- ' and its version: jsdiff (npm: diff 9.0.0) reads
# them as one more line of the last hunk, and refuses the patch. git and patch pass over them.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
npm init --yes >npm.log
npm install --silent --no-audit --no-fund diff@9.0.0 >>npm.log
git --version
echo "node $(node --version), diff $(node -p 'require("diff/package.json").version')"

git init -q tree && cd tree
git config user.name Somebody && git config user.email somebody@example.org
seq 9 >file && git add file && git commit -q -m "Begin"
sed -i 's/2/two/' file && git commit -q -a -m "Change a line"
git format-patch -q -1 --stdout >../mail.patch
git format-patch -q -1 --stdout --no-signature >../unsigned.patch
git checkout -q HEAD~1
git apply --check ../mail.patch && patch -p1 --dry-run -i ../mail.patch >/dev/null
echo "git apply, patch: taken"
cd ..

cat >read.js <<'NODE'
const { applyPatch } = require("diff");
const { readFileSync } = require("fs");
const read = (name) => {
  try {
    const text = applyPatch(readFileSync("tree/file", "utf8"), readFileSync(name, "utf8"));
    return text && text.includes("two") ? "applied" : "not applied";
  } catch (error) {
    return `${error.name}: ${error.message}`;
  }
};
const [mail, unsigned] = [read("mail.patch"), read("unsigned.patch")];
console.log(`jsdiff: ${mail}\njsdiff, without the signature: ${unsigned}`);
process.exit(/has more lines than expected/.test(mail) && unsigned === "applied" ? 0 : 1);
NODE
node read.js
