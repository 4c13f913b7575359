#!/bin/sh
# Makes bindings/*.h and bindings/*.c anew out of bindings/sdk.wit and a folder of WIT (default: wit beside this file). Needed only
# when the interfaces change; a plugin is built without it.
#
#     cargo install wit-bindgen-cli --version 0.63.0 --locked --no-default-features --features c
#     ./regenerate.sh [FOLDER]
set -eu
sdk=$(cd "$(dirname "$0")" && pwd)
wit=$(cd "${1:-$sdk/wit}" && pwd)
all=$(mktemp -d)
trap 'rm -rf "$all"' EXIT
cp -r "$wit/deps" "$all/deps"
mkdir "$all/deps/plugin"
cp "$wit/plugin.wit" "$all/deps/plugin/"
cp "$sdk/bindings/sdk.wit" "$all/"
generate() {
    wit-bindgen c "$all" --world "espalier:sdk/$1" --out-dir "$sdk/bindings" --no-object-file $2
}
generate imports ""
for kind in harness environment reward group-reward judge task-generator; do
    generate $kind --no-helpers
done
